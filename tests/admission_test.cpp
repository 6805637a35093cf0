// SPDX-License-Identifier: BSL-1.0
// Without this file the rule of admission is tested only through coroutines, which hide its cases.
#include <amux/detail/admission.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace {

using amux::lock_mode;
using rule = amux::detail::admission<std::uint32_t>;

/// Two shards: keys a and b in the first, c and d in the second.
///
/// Requests are numbered as they arrive, and written as a mode and what they ask for: "Xa", "Sac" for two keys at once,
/// "XG" for the whole mux, which has a wall in each shard.
class table {
public:
    table() = default;
    table(const table&) = delete;
    table& operator=(const table&) = delete;

    void arrive(const std::string& words)
    {
        std::istringstream in{words};
        for (std::string w; in >> w;)
            arrive_one(w);
    }

    /// "leave 0", "withdraw 1", "downgrade 0". Gives the numbers of those who are granted: "1 2".
    std::string act(const std::string& action)
    {
        std::istringstream in{action};
        std::string what;
        std::size_t number = 0;
        in >> what >> number;
        asker& r = all_[number];
        rule::granted_list granted;
        for (rule::place& p : r.places) {
            auto& state = shard_of(p);
            if (what == "downgrade")
                p.key ? state.downgrade(*p.key, granted) : state.downgrade_wall(granted);
            else if (what == "withdraw" && !p.occupied)
                state.withdraw(p, granted);
            else
                p.key ? state.leave(*p.key, r.mode, granted) : state.leave_wall(r.mode, granted);
        }
        if (what == "downgrade")
            r.mode = lock_mode::shared;
        else
            forget(r);
        granted.sort();
        std::string numbers;
        for (rule::request* g = granted.first(); g; g = g->next)
            numbers += (numbers.empty() ? "" : " ") + std::to_string(g->ticket);
        return numbers;
    }

    /// Takes out whoever waits, and lets nobody in.
    void abandon_waiting()
    {
        for (asker& r : all_) {
            const bool waits = std::any_of(r.places.begin(), r.places.end(),
                                           [](const rule::place& p) { return !p.occupied; });
            if (!waits || r.gone)
                continue;
            for (rule::place& p : r.places)
                shard_of(p).abandon(p);
            forget(r);
        }
        for (auto& s : shards_)
            s.forget_waiting();
    }

    bool admits(const std::string& word) const
    {
        const lock_mode mode = mode_of(word);
        if (word[1] == 'G')
            return shards_[0].admits_wall(mode) && shards_[1].admits_wall(mode);
        return std::all_of(word.begin() + 1, word.end(), [&](char k) {
            return shards_[index(k) / 2].admits(keys_[index(k)], mode);
        });
    }

    /// What a newcomer would be granted, of "Xa", "Sa", "XG" and "SG".
    std::string admitted() const
    {
        std::string words;
        for (const char* const w : {"Xa", "Sa", "XG", "SG"})
            words += admits(w) ? (words.empty() ? "" : " ") + std::string{w} : std::string{};
        return words;
    }

    bool idle() const
    {
        return admitted() == "Xa Sa XG SG" && shards_[0].walls_idle() && shards_[1].walls_idle() &&
               std::all_of(std::begin(keys_), std::end(keys_),
                           [](const rule::key_state& k) { return k.idle(); });
    }

private:
    struct asker : rule::request {
        std::deque<rule::place> places;
        bool gone = false;
    };

    /// Its places are gone, as with the frame of a coroutine: who still follows their links crashes.
    static void forget(asker& r)
    {
        r.gone = true;
        auto* const nowhere = reinterpret_cast<rule::place*>(alignof(rule::place));
        for (rule::place& p : r.places)
            p.queue_prev = p.queue_next = p.line_prev = p.line_next = nowhere;
    }

    static lock_mode mode_of(const std::string& word)
    {
        return word[0] == 'X' ? lock_mode::exclusive : lock_mode::shared;
    }
    static std::size_t index(char key) { return static_cast<std::size_t>(key - 'a'); }

    rule::shard_state& shard_of(const rule::place& p)
    {
        if (p.key)
            return shards_[(p.key - keys_) / 2];
        return shards_[&p == &static_cast<asker*>(p.owner)->places.front() ? 0 : 1];
    }

    void arrive_one(const std::string& word)
    {
        const bool at_once = admits(word);
        asker& r = all_.emplace_back();
        r.mode = mode_of(word);
        r.ticket = all_.size() - 1;
        r.several = word.size() > 2 || word[1] == 'G';
        for (const char k : word[1] == 'G' ? std::string{"GG"} : word.substr(1)) {
            rule::place& p = r.places.emplace_back();
            p.owner = &r;
            p.key = k == 'G' ? nullptr : &keys_[index(k)];
            auto& state = shard_of(p);
            p.occupied =
                at_once || (p.key ? state.admits(*p.key, r.mode) : state.admits_wall(r.mode));
            if (p.occupied)
                p.key ? state.occupy(*p.key, r.mode) : state.occupy_wall(r.mode);
            else
                ++r.missing, state.append(p);
        }
    }

    rule::shard_state shards_[2];
    rule::key_state keys_[4];
    std::deque<asker> all_;
};

struct row {
    const char* why;
    const char* arrivals;
    const char* action;
    const char* granted;
};

void check(std::initializer_list<row> rows)
{
    for (const row& r : rows) {
        table t;
        t.arrive(r.arrivals);
        CAPTURE(r.why, r.arrivals, r.action);
        CHECK(t.act(r.action) == r.granted);
    }
}

} // namespace

TEST_CASE("admission: a newcomer is admitted when it conflicts with nothing held or waiting",
          "[admission]")
{
    struct question {
        const char* arrivals;
        const char* admitted;
    };
    constexpr question questions[] = {
        {"", "Xa Sa XG SG"},
        {"Sa", "Sa SG"},
        {"Xa", ""},
        {"Sb", "Xa Sa SG"},
        {"Xb", "Xa Sa"},
        {"Sc", "Xa Sa SG"},
        {"Xc", "Xa Sa"},
        {"SG", "Sa SG"},
        {"XG", ""},
        // who waits counts as well
        {"Sa Xa", ""},
        {"Sb Xb", "Xa Sa"},
        {"Sb XG", ""},
        {"Xb SG", "Sa"},
        {"Xc SG", "Sa"},
        // a place that is reserved for a request that waits for another one
        {"Xb Xab", ""},
        {"Xb Sab", "Sa"},
        {"Xc Xac", ""},
    };
    for (const question& q : questions) {
        table t;
        t.arrive(q.arrivals);
        CAPTURE(q.arrivals);
        CHECK(t.admitted() == q.admitted);
    }
}

TEST_CASE(
    "admission: a place on a key is clear at the head of the queue, in no wall's way, "
    "with room",
    "[admission]")
{
    check({
        {"the head", "Xa Xa Xa", "leave 0", "1"},
        {"readers together, up to the writer", "Xa Sa Sa Xa Sa", "leave 0", "1 2"},
        {"no room while another reader is in", "Sa Sa Xa", "leave 0", ""},
        {"not the head", "Sa Xa Sa", "leave 0", "1"},
        {"the head leaves, room for the next", "Sa Xa Sa", "withdraw 1", "2"},
        {"the middle leaves, the head stays", "Xa Xa Sa Sa", "withdraw 2", ""},
        {"two readers behind a writer that leaves", "Sa Xa Sa Sa Xa", "withdraw 1", "2 3"},
        {"another key has its own queue", "Xa Xb Xa Xb", "leave 1", "3"},
        {"held back by a held wall", "XG Xa Sb", "leave 0", "1 2"},
        {"held back by a held shared wall", "SG Xa Xb", "leave 0", "1 2"},
        {"one of two shared walls is not enough", "SG SG Xa", "leave 0", ""},
        {"a wall waits ahead", "Xa XG Xb", "leave 0", "1"},
        {"a shared wall waits ahead of a writer", "Xa SG Xb Sb", "leave 0", "1"},
        {"free of the wall, but the key is taken", "Xa SG Xa", "withdraw 1", ""},
    });
}

TEST_CASE("admission: a wall is clear when it is the first, no writer waits ahead and it fits",
          "[admission]")
{
    check({
        {"nothing is left", "Xa XG", "leave 0", "1"},
        {"another key is held", "Xa Xb XG", "leave 0", ""},
        {"in the other shard", "Xa Xc XG", "leave 0", ""},
        {"readers do not mind a shared one", "Xa Sb SG", "leave 0", "2"},
        {"readers mind an exclusive one", "Xa Sb XG", "leave 0", ""},
        {"not the first", "Xa XG XG", "leave 0", "1"},
        {"shared ones together, up to the exclusive one", "Xa SG SG XG SG", "leave 0", "1 2"},
        {"a writer waits ahead", "Sa Xa SG", "leave 0", "1"},
        {"the writer ahead leaves", "Sa Xa SG", "withdraw 1", "2"},
        {"a reader waits ahead", "Xa Sa XG", "leave 0", "1"},
        {"a reader waits ahead of a shared one", "Xa Sa SG", "leave 0", "1 2"},
        {"the last reader", "Sa XG", "leave 0", "1"},
        {"the last shared wall", "SG XG", "leave 0", "1"},
        {"not the last shared wall", "SG SG XG", "leave 0", ""},
        {"a reader inside a shared wall", "SG Sa XG", "leave 0", ""},
    });
}

TEST_CASE("admission: a wall that leaves the line lets in whom it alone held back", "[admission]")
{
    check({
        {"the only one", "Sa XG Sa Xb", "withdraw 1", "2 3"},
        {"the first, another behind", "Sa XG Sa XG Sb", "withdraw 1", "2"},
        {"the last: the first still holds back", "Sa XG Sb XG Sb", "withdraw 3", ""},
        {"the middle of three", "Xa SG Sb XG Sc SG Sd", "withdraw 3", "4 6"},
        {"an exclusive one ahead of a shared one", "Sa XG SG Sb Xb", "withdraw 1", "2 3"},
        {"a shared one ahead of an exclusive one", "Xa SG Xb XG Xc", "withdraw 1", "2"},
        {"a shared one, under a held shared one", "SG Xa SG Xb", "withdraw 2", ""},
        {"an exclusive one, under a held shared one", "SG XG Sa Xb", "withdraw 1", "2"},
        {"under a held exclusive one", "XG XG Sa", "withdraw 1", ""},
        {"the writer ahead of the next wall counts then", "Sa XG Xa SG", "withdraw 1", ""},
    });
}

TEST_CASE("admission: a downgrade lets readers in, up to the first writer", "[admission]")
{
    check({
        {"readers of the key", "Xa Sa Sa Xa Sa", "downgrade 0", "1 2"},
        {"a writer first", "Xa Xa Sa", "downgrade 0", ""},
        {"a shared wall", "Xa SG", "downgrade 0", "1"},
        {"no exclusive wall", "Xa XG Sa", "downgrade 0", ""},
        {"a shared wall and readers, mixed", "Xa Sa SG Sa SG", "downgrade 0", "1 2 3 4"},
        {"of a wall: readers, not writers", "XG Sa Xb Sc", "downgrade 0", "1 3"},
        {"of a wall: a shared wall", "XG SG Sa", "downgrade 0", "1 2"},
        {"of a wall: a writer ahead of a shared wall", "XG Xa SG Sb", "downgrade 0", "3"},
        {"of a wall: up to an exclusive wall", "XG Sa XG Sb", "downgrade 0", "1"},
    });
}

TEST_CASE("admission: a request for several places is granted when it has them all", "[admission]")
{
    check({
        {"one of two is not enough", "Xa Xb Xab", "leave 0", ""},
        {"the second one", "Xa Xab", "leave 0", "1"},
        {"in two shards", "Xa Xac", "leave 0", "1"},
        {"a reservation holds back", "Xa Xab Xb", "leave 0", "1"},
        {"a reservation is given up", "Xa Xac Xc", "withdraw 1", "2"},
        {"a reservation of a wall is given up", "Xa XG Xc Sd", "withdraw 1", "2 3"},
        {"against each other", "Xa Xab Xba", "leave 0", "1"},
        {"readers pass a reservation of readers", "Xa Sab Sb", "leave 0", "1"},
        {"a wall behind a reservation", "Xa Xac XG", "leave 0", "1"},
        {"in order of arrival, whatever the order of keys", "Xa Sca Sac", "leave 0", "1 2"},
        {"in order of arrival over both shards", "XG Sc Sa Xd Xb", "leave 0", "1 2 3 4"},
        {"the last of three", "Xa Xad Xd Xd", "leave 0", "1"},
    });
}

TEST_CASE("admission: abandoned requests leave what is held, and nothing else", "[admission]")
{
    table t;
    t.arrive("Xa Sb XG Xa Sc Sca SG Xb");
    t.abandon_waiting();
    CHECK(t.admitted() == "");
    CHECK(t.admits("Xc"));
    CHECK(t.admits("Sb"));
    CHECK(t.act("leave 0") == "");
    CHECK(t.admitted() == "Xa Sa SG");
    t.arrive("Xa SG");
    CHECK(t.act("leave 8") == "9");
    CHECK(t.act("leave 9") == "");
    CHECK(t.act("leave 1") == "");
    CHECK(t.idle());
}

TEST_CASE("admission: an abandoned writer holds back no whole-mux request", "[admission]")
{
    table t;
    t.arrive("Sa Xa");
    CHECK_FALSE(t.admits("SG"));
    t.abandon_waiting();
    CHECK(t.admits("SG"));
}

TEST_CASE("admission: whoever has left is met no more, whatever left the line before",
          "[admission]")
{
    table t;
    t.arrive("Sa XG Sb Xa");
    CHECK(t.act("withdraw 1") == "2");
    CHECK(t.act("leave 0") == "3");
    CHECK(t.act("leave 3") == "");
    CHECK(t.act("leave 2") == "");
    t.arrive("SG");
    CHECK(t.act("leave 4") == "");
    CHECK(t.idle());
}

TEST_CASE("admission: whole-mux locks are handed on in linear time", "[admission]")
{
    constexpr std::size_t many = 60'000;
    const bool writers_between = GENERATE(false, true);
    rule::shard_state shard;
    rule::key_state key;
    shard.occupy_wall(lock_mode::exclusive);
    std::deque<rule::request> requests(2 * many + 1);
    std::deque<rule::place> places(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
        // Shared walls, and behind each a writer, or behind all an exclusive wall.
        const bool exclusive = writers_between ? i % 2 == 1 : i == many;
        requests[i].ticket = i;
        requests[i].mode = exclusive ? lock_mode::exclusive : lock_mode::shared;
        places[i].owner = &requests[i];
        places[i].key = writers_between && exclusive ? &key : nullptr;
        shard.append(places[i]);
    }
    rule::granted_list granted;
    shard.leave_wall(lock_mode::exclusive, granted);
    std::size_t served = 0;
    for (rule::request* r = granted.first(); r; r = r->next, ++served) {
        rule::granted_list next;
        if (places[r->ticket].key)
            shard.leave(key, r->mode, next);
        else
            shard.leave_wall(r->mode, next);
        for (rule::request* n = next.first(); n;) {
            rule::request& pushed = *n;
            n = n->next;
            pushed.next = nullptr;
            granted.push(pushed);
        }
    }
    CHECK(served == requests.size());
}

TEST_CASE("admission: the granted are sorted by arrival, in however many runs they come",
          "[admission]")
{
    using tickets = std::vector<std::uint64_t>;
    tickets in =
        GENERATE(tickets{}, tickets{7}, tickets{1, 2, 3}, tickets{3, 2, 1},
                 tickets{4, 5, 6, 1, 2, 3}, tickets{2, 4, 6, 1, 3, 5, 7, 0}, tickets(1000, 0));
    if (in.size() == 1000) {
        std::iota(in.begin(), in.end(), std::uint64_t{0});
        std::shuffle(in.begin(), in.end(), std::mt19937{1});
    }
    std::deque<rule::request> requests(in.size());
    rule::granted_list granted;
    for (std::size_t i = 0; i < in.size(); ++i) {
        requests[i].ticket = in[i];
        granted.push(requests[i]);
    }
    granted.sort();
    tickets out;
    for (rule::request* r = granted.first(); r; r = r->next)
        out.push_back(r->ticket);
    std::sort(in.begin(), in.end());
    CHECK(out == in);
}

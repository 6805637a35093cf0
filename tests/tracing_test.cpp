// SPDX-License-Identifier: BSL-1.0
// Without this file a trace may show holds that never were, in times that never passed, or be no JSON at all.
#include "support/allocation_counter.hpp"
#include "support/request.hpp"
#include "support/virtual_clock.hpp"

#include <amux/asyncmux.hpp>
#include <amux/counting.hpp>
#include <amux/tracing.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <sstream>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using support::journal;
using support::request;
using support::virtual_clock;

namespace {

template <class Key, class Threading = amux::multi_threaded>
using traced_mux = amux::asyncmux<Key, amux::tracing<Key, Threading, virtual_clock>>;

/// The events of a document that are of one of the phases, one a line, without what all have.
journal events_of(const std::string& document, std::string_view phases)
{
    journal found;
    std::istringstream lines{document};
    for (std::string line; std::getline(lines, line);) {
        constexpr std::string_view head = R"({"ph":"X","pid":1,"tid":)";
        if (line.size() < head.size() || phases.find(line[7]) == phases.npos)
            continue;
        if (line.ends_with(','))
            line.pop_back();
        found.push_back(line[7] + (' ' + line.substr(head.size(), line.size() - 1 - head.size())));
    }
    return found;
}

template <class Mux>
journal events_of(Mux& mux, std::string_view phases)
{
    return events_of(mux.observer().chrome_trace(), phases);
}

/// Is told of downgrades.
struct told_of_downgrades : amux::multi_threaded {
    struct observer : amux::no_observer {
        int downgrades = 0;
        void on_downgrade(const amux::lock_observation&) noexcept { ++downgrades; }
    };
};

/// A clock that is asked while an event is being written, and reads the trace then.
struct reading_clock {
    static inline std::function<void()> read;
    static amux::clock::time_point now()
    {
        if (const auto once = std::exchange(read, nullptr))
            once();
        return virtual_clock::now();
    }
};

/// A key that has no text.
struct pair_key {
    int a = 0;
    int b = 0;
    bool operator==(const pair_key&) const = default;
};
struct pair_hash {
    std::size_t operator()(const pair_key& k) const noexcept
    {
        return static_cast<std::size_t>(k.a * 31 + k.b);
    }
};

/// The name of the first track that a key gets.
template <class Key>
std::string track_name(const Key& key)
{
    traced_mux<Key> mux;
    mux.observer().start(8);
    static_cast<void>(mux.try_lock(key));
    const journal names = events_of(mux, "M");
    const std::string_view before = R"(M 2,"name":"thread_name","args":{"name":)";
    return names.size() == 2 ? names[1].substr(before.size(), names[1].size() - before.size() - 1)
                             : "";
}

} // namespace

TEMPLATE_TEST_CASE("tracing: an exclusive hold lies on the track of its key, in its time",
                   "[tracing]", amux::multi_threaded, amux::single_threaded)
{
    traced_mux<std::string, TestType> mux;
    virtual_clock::advance(1h);
    mux.observer().start(100);
    virtual_clock::advance(1500ns);
    request a{mux.lock("a")};
    request b{mux.lock("b")};
    virtual_clock::advance(2ms);
    a.unlock();
    virtual_clock::advance(1ms);
    b.unlock();
    CHECK(
        events_of(mux, "MX") ==
        journal{
            R"(M 1,"name":"process_name","args":{"name":"mux"})",
            R"(M 2,"name":"thread_name","args":{"name":"'a'"})",
            R"(M 3,"name":"thread_name","args":{"name":"'b'"})",
            R"(X 2,"ts":1.500,"dur":2000.000,"cat":"hold","name":"exclusive","args":{"end":"released"})",
            R"(X 3,"ts":1.500,"dur":3000.000,"cat":"hold","name":"exclusive","args":{"end":"released"})"});
}

TEST_CASE("tracing: a wait says how it ended, and waits may overlap", "[tracing]")
{
    traced_mux<std::string> mux;
    mux.observer().start(100);
    request a{mux.lock("a")};
    std::stop_source stop;
    request stopped{mux.lock_shared("a", stop.get_token())};
    virtual_clock::advance(1ms);
    request b{mux.lock("a")};
    virtual_clock::advance(1ms);
    stop.request_stop();
    virtual_clock::advance(1ms);
    a.unlock();
    CHECK(
        events_of(mux, "be") ==
        journal{
            R"(b 2,"ts":0.000,"cat":"wait","id":1,"name":"'a': waiting","args":{"mode":"shared","end":"given up"})",
            R"(e 2,"ts":2000.000,"cat":"wait","id":1,"name":"'a': waiting","args":{"mode":"shared","end":"given up"})",
            R"(b 2,"ts":1000.000,"cat":"wait","id":2,"name":"'a': waiting","args":{"mode":"exclusive","end":"granted"})",
            R"(e 2,"ts":3000.000,"cat":"wait","id":2,"name":"'a': waiting","args":{"mode":"exclusive","end":"granted"})"});
}

TEST_CASE("tracing: who shares a lock is counted, after a downgrade too", "[tracing]")
{
    traced_mux<std::string> mux;
    mux.observer().start(100);
    request writer{mux.lock("a")};
    request reader{mux.lock_shared("a")};
    virtual_clock::advance(1ms);
    writer.guard().downgrade();
    virtual_clock::advance(1ms);
    writer.unlock();
    reader.unlock();
    CHECK(
        events_of(mux, "XC") ==
        journal{
            R"(X 2,"ts":0.000,"dur":1000.000,"cat":"hold","name":"exclusive","args":{"end":"downgraded"})",
            R"(C 2,"ts":1000.000,"name":"'a': shared by","args":{"holders":1})",
            R"(C 2,"ts":1000.000,"name":"'a': shared by","args":{"holders":2})",
            R"(C 2,"ts":2000.000,"name":"'a': shared by","args":{"holders":1})",
            R"(C 2,"ts":2000.000,"name":"'a': shared by","args":{"holders":0})"});
}

TEST_CASE("tracing: several keys, and the whole mux, are no key", "[tracing]")
{
    traced_mux<std::string> mux;
    mux.observer().start(100);
    request two{mux.lock_all("a", "b")};
    request others{mux.lock_all_shared("c", "d", "e")};
    request whole{mux.lock()};
    virtual_clock::advance(1ms);
    others.unlock();
    two.unlock();
    virtual_clock::advance(1ms);
    whole.unlock();
    CHECK(
        events_of(mux, "MXe") ==
        journal{
            R"(M 1,"name":"process_name","args":{"name":"mux"})",
            R"(M 2,"name":"thread_name","args":{"name":"several keys"})",
            R"(M 3,"name":"thread_name","args":{"name":"the whole mux"})",
            R"(e 2,"ts":1000.000,"cat":"hold","id":1,"name":"3 keys","args":{"mode":"shared","end":"released"})",
            R"(e 2,"ts":1000.000,"cat":"hold","id":2,"name":"2 keys","args":{"mode":"exclusive","end":"released"})",
            R"(e 3,"ts":1000.000,"cat":"wait","id":3,"name":"the whole mux: waiting","args":{"mode":"exclusive","end":"granted"})",
            R"(X 3,"ts":1000.000,"dur":1000.000,"cat":"hold","name":"exclusive","args":{"end":"released"})"});
}

TEST_CASE("tracing: a list of one key is a list, though locked as that key", "[tracing]")
{
    traced_mux<std::string> mux;
    mux.observer().start(100);
    request list{mux.lock_all("a", "a")};
    request key{mux.lock("a")};
    virtual_clock::advance(1ms);
    list.unlock();
    key.unlock();
    CHECK(
        events_of(mux, "Xe") ==
        journal{
            R"(e 2,"ts":1000.000,"cat":"hold","id":1,"name":"1 key","args":{"mode":"exclusive","end":"released"})",
            R"(e 3,"ts":1000.000,"cat":"wait","id":2,"name":"'a': waiting","args":{"mode":"exclusive","end":"granted"})",
            R"(X 3,"ts":1000.000,"dur":0.000,"cat":"hold","name":"exclusive","args":{"end":"released"})"});
}

TEST_CASE("tracing: of an empty set of keys there is nothing to draw", "[tracing]")
{
    traced_mux<int> mux;
    mux.observer().start(2);
    request none{mux.lock_all(std::vector<int>{})};
    request key{mux.lock(7)};
    key.unlock();
    CHECK(mux.observer().dropped() == 0);
    CHECK(events_of(mux, "MXbe").size() == 3);
}

TEST_CASE("tracing: what goes on yet is drawn until now", "[tracing]")
{
    traced_mux<int> mux;
    mux.observer().start(100);
    request a{mux.lock(7)};
    request two{mux.lock_all(8, 9)};
    request b{mux.lock(7)};
    virtual_clock::advance(5us);
    const journal seen = events_of(mux, "Xe");
    REQUIRE(seen.size() == 3);
    CHECK(
        seen[0] ==
        R"(X 2,"ts":0.000,"dur":5.000,"cat":"hold","name":"exclusive","args":{"end":"still held"})");
    CHECK(
        seen[1] ==
        R"(e 3,"ts":5.000,"cat":"hold","id":1,"name":"2 keys","args":{"mode":"exclusive","end":"still held"})");
    CHECK(
        seen[2] ==
        R"(e 2,"ts":5.000,"cat":"wait","id":2,"name":"'7': waiting","args":{"mode":"exclusive","end":"still waiting"})");
}

TEST_CASE("tracing: what does not fit is counted, and nothing is made up for it", "[tracing]")
{
    traced_mux<int> mux;
    request before{mux.lock(1)};
    request shared_before{mux.lock_shared(2)};
    request set_before{mux.lock_all(3, 4)};
    CHECK(mux.observer().dropped() == 0);
    CHECK(events_of(mux, "X").empty());
    CHECK(mux.observer().chrome_trace().find(R"("dropped":0})") != std::string::npos);
    mux.observer().start(4);
    before.unlock(); // of its beginning nothing is known
    shared_before.unlock();
    set_before.unlock();
    virtual_clock::advance(1us);
    request in{mux.lock(1)};
    virtual_clock::advance(1s);
    in.unlock();
    static_cast<void>(mux.try_lock(1));
    CHECK(mux.observer().dropped() == 3);
    const std::string document = mux.observer().chrome_trace();
    CHECK(document.find(R"("otherData":{"dropped":3})") != document.npos);
    CHECK(document.find("several keys") == document.npos);
    CHECK(document.find("\"traceEvents\":[\n{") != document.npos);
    CHECK(
        events_of(document, "XC") ==
        journal{
            R"(X 2,"ts":1.000,"dur":0.000,"cat":"hold","name":"exclusive","args":{"end":"still held"})"});
    mux.observer().start(3);
    CHECK(mux.observer().dropped() == 0);
    CHECK(events_of(mux, "X").empty());
}

TEST_CASE("tracing: recording allocates nothing", "[tracing]")
{
    traced_mux<long long> mux;
    mux.observer().start(100);
    static_cast<void>(mux.try_lock(std::numeric_limits<long long>::min()));
    const std::size_t before = support::allocations();
    static_cast<void>(mux.try_lock(std::numeric_limits<long long>::min()));
    CHECK(support::allocations() == before);
    traced_mux<std::string> strings;
    strings.observer().start(4);
    const std::string key(200, 'k');
    static_cast<void>(strings.try_lock(key));
    const std::size_t then = support::allocations();
    static_cast<void>(strings.try_lock(key));
    CHECK(support::allocations() == then);
}

TEST_CASE("tracing: a key is called by its text, whatever is in it", "[tracing]")
{
    CHECK(track_name<std::string>("") == "\"''\"");
    CHECK(track_name<std::string>("say \"hi\"") == R"("'say \"hi\"'")");
    CHECK(track_name<std::string>("it's\\\n") == R"("'it\\'s\\\\\\x0a'")");
    CHECK(track_name<std::string>("gr\xC3\xBC\xC3\x9F \xE2\x82\xAC") ==
          "\"'gr\xC3\xBC\xC3\x9F \xE2\x82\xAC'\"");
    CHECK(track_name(-12) == R"("'-12'")");
    CHECK(track_name('x') == R"("'x'")");
    CHECK(track_name(true) == R"("'true'")");
    CHECK(track_name(std::numeric_limits<long long>::min()) == R"("'-9223372036854775808'")");
    const std::string exactly(32, 'k');
    CHECK(track_name(exactly) == "\"'" + exactly + "'\"");
}

TEST_CASE("tracing: each key has a track of its own, whatever it is called", "[tracing]")
{
    traced_mux<std::string> mux;
    mux.observer().start(100);
    const std::string long_key(40, 'k');
    const std::string cut = track_name(long_key);
    for (const std::string& key :
         {std::string{}, std::string{"(empty)"}, std::string{"the whole mux"},
          std::string{"several keys"}, std::string{"''"}, long_key, cut.substr(1, cut.size() - 2)})
        static_cast<void>(mux.try_lock(key));
    static_cast<void>(mux.try_lock());
    static_cast<void>(mux.try_lock_all("a", "b"));
    journal names = events_of(mux, "M");
    CHECK(names.size() == 10);
    for (std::string& name : names)
        name.erase(0, name.find("args"));
    std::sort(names.begin(), names.end());
    CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
}

TEST_CASE("tracing: long keys are cut, and still told apart", "[tracing]")
{
    const std::string one = track_name(std::string(40, 'k') + "1");
    const std::string two = track_name(std::string(40, 'k') + "2");
    CHECK(one != two);
    CHECK(one.size() == 36);
    CHECK(one.starts_with("\"'" + std::string(23, 'k') + "'~"));
    CHECK(one == track_name(std::string(40, 'k') + "1"));
}

TEST_CASE("tracing: keys without a text have numbers", "[tracing]")
{
    amux::asyncmux<pair_key, amux::tracing<pair_key, amux::multi_threaded, virtual_clock>,
                   pair_hash>
        mux;
    mux.observer().start(100);
    request a{mux.lock(pair_key{1, 2})};
    request b{mux.lock(pair_key{3, 4})};
    virtual_clock::advance(1us);
    a.unlock();
    CHECK(
        events_of(mux, "MX") ==
        journal{
            R"(M 1,"name":"process_name","args":{"name":"mux"})",
            R"(M 2,"name":"thread_name","args":{"name":"key #1"})",
            R"(M 3,"name":"thread_name","args":{"name":"key #2"})",
            R"(X 2,"ts":0.000,"dur":1.000,"cat":"hold","name":"exclusive","args":{"end":"released"})",
            R"(X 3,"ts":0.000,"dur":1.000,"cat":"hold","name":"exclusive","args":{"end":"still held"})"});
}

TEST_CASE("tracing: a policy may count and trace", "[tracing]")
{
    amux::asyncmux<std::string, amux::tracing<std::string, amux::counting<>>> mux;
    mux.observer().start(100);
    request a{mux.lock("a")};
    {
        request given_up{mux.lock("a")};
    }
    request b{mux.lock("a")};
    a.unlock();
    b.unlock();
    CHECK(mux.observer().counts().grants_after_wait == 1);
    CHECK(mux.observer().counts().waits_given_up == 1);
    CHECK(mux.observer().counts().releases == 2);
    CHECK(events_of(mux, "X").size() == 2);
    CHECK(events_of(mux, "b").size() == 2);
}

TEST_CASE("tracing: the observer that was there before is told of downgrades", "[tracing]")
{
    amux::asyncmux<std::string, amux::tracing<std::string, told_of_downgrades>> mux;
    auto guard = mux.try_lock("a");
    guard.downgrade();
    CHECK(mux.observer().downgrades == 1);
}

TEST_CASE("tracing: what is being written just now is left out", "[tracing]")
{
    amux::asyncmux<int, amux::tracing<int, amux::multi_threaded, reading_clock>> mux;
    mux.observer().start(8);
    const auto first = mux.try_lock(1);
    std::string document;
    reading_clock::read = [&] { document = mux.observer().chrome_trace(); };
    const auto second = mux.try_lock(2);
    CHECK(events_of(std::as_const(document), "MXbe").size() == 3);
    CHECK(events_of(mux, "MXbe").size() == 5);
}

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/lock_backend.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace amux::testing {

/// Something that a process saw of a lease. A call is one acquisition, under a name that is its own in its process.
struct history_event {
    /// What happened.
    enum class kind : unsigned char {
        asked, ///< the call begins
        granted, ///< `fence`, if any, and `until`: when belief ends
        believes, ///< from now on until `until`, sooner or later than before
        ended, ///< of what was granted: by release, by loss
        failed, ///< the call ends without a grant
        died, ///< the process: every call of it is over; key and call are empty
    };

    /// Which of these.
    kind what{};
    /// When.
    clock::time_point at;
    /// Who saw it.
    std::string process;
    /// Of the lease.
    std::string key;
    /// The name of the acquisition, its own in its process.
    std::string call;
    /// Of a grant, by a store that can count.
    std::optional<fencing_token> fence{};
    /// Of `granted` and `believes`: when belief ends.
    clock::time_point until{};
};

/// What several processes saw, put together, and whether leases kept their promises in it.
///
/// As text an event is a line: `granted 1200000 p1 key call-7 fence 42 until 9900000`, times in nanoseconds of a clock
/// that all share (CLOCK_BOOTTIME on one machine), words without white space. So processes can write to a file each.
/// A belief ends when the last `until` that was known has come, at the end of its call, or with its process.
class history {
public:
    /// What happens in one.
    using kind = history_event::kind;

    /// Events of one process in its order; those of different processes too, where their times are equal.
    void add(history_event e) { events_.push_back(std::move(e)); }
    /// Reads one event a line. Returns: how many lines, empty ones left out, were none; they are ignored.
    std::size_t add_lines(std::string_view text);
    /// What `to_line` has written; none when the line is no event.
    static std::optional<history_event> from_line(std::string_view line);
    /// The event as a line of text, without its end.
    static std::string to_line(const history_event& e);

    /// How many events there are.
    std::size_t size() const noexcept { return events_.size(); }

    /// What is wrong, each with the lines that show it; empty when nothing is:
    /// two calls that believed in one key at a time; a fence that is not above all those granted before; a call that was
    /// granted or ended more than once, that ended without being asked, or believed after its end or after its time;
    /// and, if `complete`, a call that never ended.
    std::vector<std::string> faults(bool complete = true) const;

private:
    struct life {
        std::vector<const history_event*> events;
        std::string process;
        std::string key;
        std::string call;
        bool granted = false;
        bool over = false;
        clock::time_point from; // of the grant
        std::size_t order = 0; // of the grant, among all events
        clock::time_point until; // of belief, as far as is known
        std::optional<fencing_token> fence;
    };
    using lives = std::map<std::tuple<std::string, std::string, std::string>, life>;

    static void take(life& l, const history_event& e, std::size_t order,
                     std::vector<std::string>& found);
    static void check_key(std::vector<const life*>& granted, std::vector<std::string>& found);
    static std::string lines_of(const life& l);
    static std::string name_of(const life& l)
    {
        return l.process + "'s call " + l.call + " for " + l.key;
    }

    std::vector<history_event> events_;
};

inline std::string history::to_line(const history_event& e)
{
    constexpr std::array names{"asked", "granted", "believes", "ended", "failed", "died"};
    std::string line = names[static_cast<std::size_t>(e.what)];
    line += ' ' + std::to_string(e.at.time_since_epoch().count()) + ' ' + e.process;
    if (e.what == kind::died)
        return line;
    line += ' ' + e.key + ' ' + e.call;
    if (e.fence)
        line += " fence " + std::to_string(*e.fence);
    if (e.what == kind::granted || e.what == kind::believes)
        line += " until " + std::to_string(e.until.time_since_epoch().count());
    return line;
}

inline std::optional<history_event> history::from_line(std::string_view line)
{
    std::vector<std::string_view> words;
    while (!line.empty()) {
        const auto end = (std::min)(line.find_first_of(" \t\r"), line.size());
        if (end != 0)
            words.push_back(line.substr(0, end));
        line.remove_prefix((std::min)(end + 1, line.size()));
    }
    const auto number = [](std::string_view w, auto& value) {
        const auto [end, error] = std::from_chars(w.data(), w.data() + w.size(), value);
        return error == std::errc{} && end == w.data() + w.size();
    };
    constexpr std::array<std::string_view, 6> names{"asked", "granted", "believes",
                                                    "ended", "failed",  "died"};
    history_event e;
    const auto name =
        words.empty() ? names.end() : std::find(names.begin(), names.end(), words.front());
    if (name == names.end())
        return std::nullopt;
    e.what = static_cast<kind>(name - names.begin());
    clock::rep at = 0;
    if (words.size() < (e.what == kind::died ? 3u : 5u) || !number(words[1], at))
        return std::nullopt;
    e.at = clock::time_point{clock::duration{at}};
    e.process = words[2];
    if (e.what == kind::died)
        return words.size() == 3 ? std::optional{std::move(e)} : std::nullopt;
    e.key = words[3];
    e.call = words[4];
    bool has_until = false;
    for (std::size_t n = 5; n + 1 < words.size(); n += 2) {
        std::uint64_t value = 0;
        if (!number(words[n + 1], value))
            return std::nullopt;
        if (words[n] == "fence")
            e.fence = value;
        else if (words[n] == "until")
            e.until = clock::time_point{clock::duration{static_cast<clock::rep>(value)}};
        has_until |= words[n] == "until";
    }
    if ((e.what == kind::granted || e.what == kind::believes) && !has_until)
        return std::nullopt;
    return e;
}

inline std::size_t history::add_lines(std::string_view text)
{
    std::size_t bad = 0;
    while (!text.empty()) {
        const auto end = (std::min)(text.find('\n'), text.size());
        const auto line = text.substr(0, end);
        if (auto e = from_line(line))
            add(*std::move(e));
        else if (line.find_first_not_of(" \t\r") != std::string_view::npos)
            ++bad;
        text.remove_prefix((std::min)(end + 1, text.size()));
    }
    return bad;
}

inline std::string history::lines_of(const life& l)
{
    std::string text;
    for (const history_event* e : l.events)
        text += "\n    " + to_line(*e);
    return text;
}

inline void history::take(life& l, const history_event& e, std::size_t order,
                          std::vector<std::string>& found)
{
    const auto wrong = [&](const char* what) {
        found.push_back(name_of(l) + ' ' + what + ':' + lines_of(l));
    };
    const bool first = l.events.empty();
    l.events.push_back(&e);
    if ((e.what == kind::asked) != first)
        return wrong(first ? "was never asked" : "is asked twice");
    if (l.over)
        return wrong(e.what == kind::granted || e.what == kind::believes ? "goes on after its end"
                                                                         : "ends twice");
    switch (e.what) {
        case kind::granted:
            if (l.granted)
                return wrong("is granted twice");
            l.granted = true;
            l.order = order;
            l.from = e.at;
            l.until = e.until;
            l.fence = e.fence;
            break;
        case kind::believes:
            if (!l.granted)
                return wrong("believes without a grant");
            if (e.at >= l.until && e.until > e.at)
                return wrong("believes again after its time was up");
            l.until = (std::max)(e.until, (std::min)(l.until, e.at));
            break;
        case kind::ended:
            if (!l.granted)
                wrong("ends without a grant");
            break;
        case kind::failed:
            if (l.granted)
                wrong("fails after its grant");
            break;
        default:
            break;
    }
    if (e.what == kind::ended || e.what == kind::failed || e.what == kind::died) {
        l.over = true;
        l.until = (std::min)(l.until, e.at);
    }
}

/// Grants of one key, in order of time.
inline void history::check_key(std::vector<const life*>& granted, std::vector<std::string>& found)
{
    std::sort(granted.begin(), granted.end(),
              [](const life* a, const life* b) { return a->order < b->order; });
    const life* longest = nullptr;
    const life* highest = nullptr;
    for (const life* l : granted) {
        if (longest && l->from < longest->until && l->from < l->until)
            found.push_back(name_of(*longest) + " and " + name_of(*l) +
                            " believe at once:" + lines_of(*longest) + lines_of(*l));
        if (!longest || l->until > longest->until)
            longest = l;
        if (!l->fence)
            continue;
        if (highest && *l->fence <= *highest->fence)
            found.push_back(name_of(*l) + " has a fence not above that of " + name_of(*highest) +
                            ", which was granted before:" + lines_of(*highest) + lines_of(*l));
        else
            highest = l;
    }
}

inline std::vector<std::string> history::faults(bool complete) const
{
    std::vector<std::string> found;
    std::vector<const history_event*> sorted;
    for (const auto& e : events_)
        sorted.push_back(&e);
    std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
        return std::tie(a->at, a) < std::tie(b->at, b); // equal times in order of arrival
    });
    lives all;
    std::size_t order = 0;
    for (const history_event* e : sorted) {
        ++order;
        if (e->what == kind::died) {
            for (auto& [name, l] : all) {
                if (l.process == e->process && !l.over)
                    take(l, *e, order, found);
            }
            continue;
        }
        life& l = all[{e->process, e->key, e->call}];
        std::tie(l.process, l.key, l.call) = std::tie(e->process, e->key, e->call);
        take(l, *e, order, found);
    }
    std::map<std::string_view, std::vector<const life*>> granted;
    for (const auto& [name, l] : all) {
        if (l.granted)
            granted[l.key].push_back(&l);
        if (complete && !l.over)
            found.push_back(name_of(l) + " never ends:" + lines_of(l));
    }
    for (auto& [key, of_key] : granted)
        check_key(of_key, found);
    return found;
}

} // namespace amux::testing

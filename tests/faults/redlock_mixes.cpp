// SPDX-License-Identifier: BSL-1.0
// Without this file some mixture of yes, no, trouble and silence at the nodes may be counted wrong, or leave a key behind.
#include "support/redlock_world.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <string>
#include <utility>

using namespace std::chrono_literals;
using amux::backend_error_kind;
using amux::testing::course;
using amux::testing::operation;
using support::redlock_world;

namespace {

enum class manner : unsigned char {
    yes,
    no,
    not_applied,
    in_doubt, // not carried out
    reply_lost,
    silent, // not carried out, and heard of after two seconds
    acts_late, // after half a second; heard of after two, as a doubt
    late_yes, // carried out, and heard of, after half a second
};
constexpr std::size_t manners = 8;
constexpr std::array<const char*, manners> names{"yes",        "no",     "not applied", "in doubt",
                                                 "reply lost", "silent", "acts late",   "late yes"};
using mix = std::array<manner, 3>;

std::string text_of(const mix& m)
{
    std::string text;
    for (const manner each : m)
        text += std::string{names[static_cast<std::size_t>(each)]} + ", ";
    return text;
}

std::ptrdiff_t count(const mix& m, manner what)
{
    return std::count(m.begin(), m.end(), what);
}

course course_of(manner m)
{
    switch (m) {
        case manner::not_applied:
            return course::fails(backend_error_kind::not_applied);
        case manner::in_doubt:
            return course::fails(backend_error_kind::indeterminate);
        case manner::reply_lost:
            return course::loses_reply();
        case manner::silent:
            return course::is_silent(2s);
        case manner::acts_late:
            return course::acts_late(500ms, 2s);
        case manner::late_yes:
            return course::slow(500ms, 0ms);
        default:
            return course::at_once();
    }
}

std::ptrdiff_t count_open(const mix& m)
{
    return count(m, manner::silent) + count(m, manner::acts_late) + count(m, manner::late_yes);
}

enum class answer : unsigned char { yes, no, trouble };
using expectation = std::pair<answer, std::chrono::milliseconds>;

/// What the table at `redlock` says, and when.
expectation expected(const mix& m)
{
    const auto yes = count(m, manner::yes);
    const auto no = count(m, manner::no);
    const auto open = count_open(m);
    if (yes >= 2)
        return {answer::yes, 0ms};
    if (no >= 2)
        return {answer::no, 0ms};
    return {answer::trouble, (std::max)(yes, no) + open >= 2 ? 200ms : 0ms};
}

/// The same, but that a node which misses the lease is given it, as soon as all are heard of and no majority misses it.
expectation expected_of_extend(const mix& m)
{
    const bool given = count(m, manner::no) == 1 && count_open(m) == 0;
    return given && count(m, manner::yes) == 1 ? expectation{answer::yes, 0ms} : expected(m);
}

template <class Asked>
answer answer_of(Asked& a)
{
    if (a.state() != "done")
        return answer::trouble;
    if constexpr (requires { a.value().acquired; })
        return a.value().acquired ? answer::yes : answer::no;
    else
        return a.value() ? answer::yes : answer::no;
}

/// The answer of one operation, at the time when it is to come and not before.
template <class Asked>
void check_answer(redlock_world& w, Asked a, const expectation& e)
{
    const auto [what, when] = e;
    w.loop.run_ready();
    if (when != 0ms) {
        w.pass(when - 10ms);
        REQUIRE(a.state() == "waits");
        w.pass(10ms);
    }
    REQUIRE(a.state() != "waits");
    REQUIRE(answer_of(a) == what);
    if (what == answer::trouble)
        REQUIRE(a.state() == "trouble");
}

template <class F>
std::size_t for_every_mix(F check)
{
    std::size_t worlds = 0;
    for (std::size_t n = 0; n < manners * manners * manners; ++n, ++worlds) {
        const mix m{static_cast<manner>(n % manners), static_cast<manner>(n / manners % manners),
                    static_cast<manner>(n / manners / manners)};
        INFO(text_of(m));
        check(m);
    }
    return worlds;
}

} // namespace

TEST_CASE("redlock: acquire, in every mixture of answers, is granted or leaves nothing",
          "[redlock][faults]")
{
    const auto worlds = for_every_mix([](const mix& m) {
        redlock_world w;
        for (std::size_t n = 0; n < 3; ++n) {
            if (m[n] == manner::no)
                w.stores[n].usurp(w.key, "other", 1min);
            w.stores[n].next(operation::acquire, course_of(m[n]));
        }
        check_answer(w, w.acquire("a"), expected(m));
        w.pass(3'500ms); // the last release that fails here is tried again by then
        const bool granted = expected(m).first == answer::yes;
        const auto without = count(m, manner::no) + count(m, manner::not_applied) +
                             count(m, manner::in_doubt) + count(m, manner::silent);
        REQUIRE(w.held_by("a") == (granted ? static_cast<std::size_t>(3 - without) : 0));
        REQUIRE(w.held_by("other") == static_cast<std::size_t>(count(m, manner::no)));
    });
    CHECK(worlds == 512);
}

TEST_CASE("redlock: extend, in every mixture of answers, is true of a majority alone",
          "[redlock][faults]")
{
    for_every_mix([](const mix& m) {
        redlock_world w;
        w.grant("a", 5s);
        for (std::size_t n = 0; n < 3; ++n) {
            if (m[n] == manner::no)
                w.stores[n].drop(w.key);
            w.stores[n].next(operation::extend, course_of(m[n]));
        }
        check_answer(w, w.extend("a", 10s), expected_of_extend(m));
        w.pass(3'500ms);
        if (expected(m).first == answer::no) {
            REQUIRE(w.held_by("a") == 0); // lost for certain: the rest is freed
            return;
        }
        REQUIRE(w.held_by("a") == 3); // it is put where it was missing
        w.pass(2'500ms); // what was not extended is over
        const auto extended = count(m, manner::yes) + count(m, manner::no) +
                              count(m, manner::reply_lost) + count(m, manner::acts_late) +
                              count(m, manner::late_yes);
        REQUIRE(w.held_by("a") == static_cast<std::size_t>(extended));
    });
}

TEST_CASE("redlock: release, in every mixture of answers, frees every node in the end",
          "[redlock][faults]")
{
    for_every_mix([](const mix& m) {
        redlock_world w;
        w.grant("a");
        for (std::size_t n = 0; n < 3; ++n) {
            if (m[n] == manner::no)
                w.stores[n].drop(w.key);
            w.stores[n].next(operation::release, course_of(m[n]));
        }
        check_answer(w, w.release("a"), expected(m));
        w.pass(3'500ms);
        REQUIRE(w.held_by("a") == 0);
        REQUIRE(w.calls(operation::release) <= 6); // not for ever
    });
}

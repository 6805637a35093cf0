// SPDX-License-Identifier: BSL-1.0
// Without this file a lease may be right at most moments and wrong at the one when its time is up, or two things meet.
#include "support/lease_bench.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <stop_token>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using amux::acquired_lock;
using amux::backend_error_kind;
using amux::end_reason;
using amux::testing::course;
using amux::testing::operation;
using support::lease_bench;

TEST_CASE("lease moment: when its time is up it is over, though the loop has not seen it",
          "[lease][end]")
{
    lease_bench b;
    std::stop_source stop;
    acquired_lock l = b.hold("k", {.ttl = 1s}, stop.get_token());
    b.pass(987ms);
    CHECK(l.is_held());
    CHECK(l.remaining() == 1ms);
    b.loop.advance(1ms);
    CHECK_FALSE(l.is_held());
    CHECK(l.remaining() == 0ms);
    SECTION("it is released")
    {
        auto released = b.ask(l.release());
        b.pass();
        CHECK_FALSE(released.value());
    }
    SECTION("it is stopped")
    {
        stop.request_stop();
        b.pass();
    }
    auto end = b.ask(l.ended());
    b.pass();
    CHECK(end.value().reason == end_reason::expired);
    CHECK(b.log.names() == "acquire lost");
}

TEST_CASE("lease moment: a renewal that is answered when the time is up does not revive it",
          "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    b.store.next(operation::extend, course::held());
    auto extended = b.ask(l.extend(5s));
    b.pass();
    b.loop.advance(988ms);
    b.store.answer(b.store.oldest_in_flight(operation::extend));
    b.pass();
    CHECK(extended.state() == "ended");
    CHECK_FALSE(l.is_held());
    CHECK(b.log.names() == "acquire lost");
    CHECK_FALSE(b.store.holder("k"));
}

TEST_CASE("lease moment: nothing is left of it once it is given back", "[lease][end]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 10s});
    b.store.next(operation::release, course::held());
    auto released = b.ask(l.release());
    b.pass();
    CHECK(l.remaining() == 0ms);
    CHECK(l.valid_until() > b.loop.now());
    b.store.answer(b.store.oldest_in_flight(operation::release));
    b.pass();
    CHECK(released.value());
}

TEST_CASE("lease moment: while a renewal is on its way none follows it", "[lease][renewal]")
{
    lease_bench b;
    b.store.always(operation::extend, course::is_silent(60s));
    acquired_lock l = b.hold("k", {.ttl = 3s, .renew = true, .stop_margin = 1s});
    b.pass_slowly(2500ms, 10ms); // `lost_token` stops meanwhile
    CHECK(l.lost_token().stop_requested());
    CHECK(b.count(operation::extend) == 1);
}

TEST_CASE("lease moment: what happens before a renewal is due brings none", "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l =
        b.hold("k", {.ttl = 3s, .renew = true, .renew_interval = 1400ms, .stop_margin = 2500ms});
    b.pass_slowly(1s, 10ms);
    CHECK(l.lost_token().stop_requested());
    CHECK(b.count(operation::extend) == 0);
}

TEST_CASE("lease moment: renewals come after four fifths of their interval, or later",
          "[lease][renewal]")
{
    lease_bench b;
    const bool given = GENERATE(false, true);
    const amux::acquire_options often{.ttl = 3s, .renew = true};
    const amux::acquire_options seldom{.ttl = 3s, .renew = true, .renew_interval = 3s};
    std::vector<acquired_lock> held;
    for (int i = 0; i < 50; ++i)
        held.push_back(b.hold("k" + std::to_string(i), given ? seldom : often));
    b.pass_slowly(given ? 1199ms : 799ms);
    CHECK(b.count(operation::extend) == 0);
    b.pass_slowly(given ? 301ms : 201ms);
    CHECK(b.count(operation::extend) == 50);
}

TEST_CASE(
    "lease moment: tries of a renewal in trouble are 1/20, 1/10, 1/5 and 1/4 of the ttl apart",
    "[lease][renewal]")
{
    lease_bench b;
    b.store.always(operation::extend, course::fails(backend_error_kind::not_applied));
    std::vector<acquired_lock> held;
    for (int i = 0; i < 20; ++i)
        held.push_back(
            b.hold(std::to_string(i), {.ttl = 100s, .renew = true, .renew_interval = 10s}));
    b.pass_slowly(99s, 10ms);
    for (const acquired_lock& l : held) {
        std::vector<amux::clock::time_point> tries;
        for (const auto& call : b.store.calls()) {
            if (call.op == operation::extend && call.key == l.key())
                tries.push_back(call.at);
        }
        REQUIRE(tries.size() >= 5);
        std::size_t i = 0;
        for (const auto apart : {5000ms, 10000ms, 20000ms, 25000ms}) {
            const auto d = tries[i + 1] - tries[i];
            CHECK(d >= apart * 3 / 4);
            CHECK(d <= apart * 5 / 4 + 10ms);
            ++i;
        }
    }
}

TEST_CASE("lease moment: after a renewal that succeeds trouble is waited for anew",
          "[lease][renewal]")
{
    lease_bench b;
    const auto fails = course::fails(backend_error_kind::not_applied);
    acquired_lock l = b.hold("k", {.ttl = 100s, .renew = true, .renew_interval = 10s});
    for (const course& c : {fails, fails, fails, course::at_once(), fails})
        b.store.next(operation::extend, c);
    while (b.count(operation::extend) < 6)
        b.pass(10ms);
    const auto& calls = b.store.calls();
    CHECK(calls.back().at - calls[calls.size() - 2].at <= 6260ms);
}

TEST_CASE("lease moment: a release that hangs keeps the line until the lease is over",
          "[lease][waiting]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    b.store.next(operation::release, course::is_silent(60s));
    auto released = b.ask(l.release());
    auto next = b.ask(b.locks.acquire("k"));
    b.pass_slowly(999ms);
    CHECK(b.count(operation::acquire) == 1);
    b.pass(1ms);
    CHECK(b.count(operation::acquire) == 2);
    next.drop();
    b.pass(60s);
}

TEST_CASE("lease moment: an extend that drain gives up is told once", "[lease][drain]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 10s});
    b.store.next(operation::extend, course::is_silent(60s));
    auto extended = b.ask(l.extend(10s));
    b.pass();
    auto drained = b.ask(b.locks.drain(10ms));
    b.pass();
    b.pass(10ms);
    CHECK_FALSE(drained.value());
    CHECK(extended.state() == "trouble");
    CHECK(b.log.count("error") == 1);
    b.pass(60s);
}

TEST_CASE("lease moment: a release is tried until the longest ttl that was asked for is over",
          "[lease][end]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    b.store.next(operation::extend, course::loses_reply());
    auto extended = b.ask(l.extend(10s));
    b.pass();
    CHECK(extended.state() == "trouble");
    b.store.always(operation::release, course::fails(backend_error_kind::not_applied));
    auto released = b.ask(l.release());
    b.pass_slowly(3s, 10ms);
    CHECK(released.state() == "trouble");
    b.store.always(operation::release, course::at_once());
    b.pass_slowly(6s, 10ms);
    CHECK_FALSE(b.store.holder("k"));
}

TEST_CASE("lease moment: an extend that is answered after the release is not released again",
          "[lease][end]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 10s});
    b.store.next(operation::extend, course::late(100ms));
    auto extended = b.ask(l.extend(10s));
    b.pass();
    auto released = b.ask(l.release());
    b.pass();
    CHECK(released.value());
    b.pass(100ms);
    CHECK(b.count(operation::release) == 1);
}

TEST_CASE("lease moment: the hooks are told why a release has failed", "[lease][hooks]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 10s});
    b.store.next(operation::release, course::fails(backend_error_kind::not_applied));
    auto released = b.ask(l.release());
    b.pass();
    CHECK(released.state() == "trouble");
    CHECK(support::error_name(b.log.last("error").cause) == "trouble");
    CHECK(support::error_name(b.log.last("release").cause) == "trouble");
}

TEST_CASE("lease moment: a release by another token leaves a live handle alone", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k");
    auto released = b.ask(b.locks.release("k", "another token"));
    b.pass();
    CHECK_FALSE(released.value());
    CHECK(l.is_held());
    CHECK(b.store.holder("k") == l.token());
}

TEST_CASE("lease moment: the timer of lost_token renews no lease that is not to be renewed",
          "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 3s, .stop_margin = 1s});
    b.pass_slowly(2500ms, 10ms);
    CHECK(l.lost_token().stop_requested());
    CHECK(b.count(operation::extend) == 0);
}

TEST_CASE("lease moment: lost_token never stops for a release, however long that takes",
          "[lease][end]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 3s, .stop_margin = 1s});
    b.store.next(operation::release, course::late(2500ms));
    auto released = b.ask(l.release());
    b.pass_slowly(2510ms, 10ms);
    CHECK(released.value());
    CHECK_FALSE(l.lost_token().stop_requested());
}

TEST_CASE("lease moment: after an extend in doubt the renewal comes in the shorter of both ttl",
          "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 100s, .renew = true});
    b.store.next(operation::extend, course::fails(backend_error_kind::indeterminate));
    auto extended = b.ask(l.extend(2s));
    b.pass();
    CHECK(extended.state() == "trouble");
    b.pass_slowly(130ms);
    CHECK(b.count(operation::extend) == 2);
    CHECK(l.is_held());
}

TEST_CASE("lease moment: expires_at is the wall clock's time at which belief ends", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1h});
    const auto from_now = l.expires_at() - std::chrono::system_clock::now();
    CHECK(from_now > 50min);
    CHECK(from_now < 70min);
    CHECK(b.log.last("acquire").expires_at - std::chrono::system_clock::now() > 50min);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file corners that attackers of the leases have found may come back: storms, forgotten pauses, late requests.
#include "support/lease_bench.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <memory>
#include <stop_token>

using namespace std::chrono_literals;
using amux::acquired_lock;
using amux::testing::course;
using amux::testing::operation;
using support::lease_bench;

TEST_CASE("waiting: the pause for others outlives the leader that began it", "[lease][waiting]")
{
    lease_bench b{{.poll_interval = 200ms, .local_turns = 1}};
    acquired_lock first = b.hold("k");
    auto impatient = b.ask(b.locks.acquire("k", {.max_wait = 20ms}));
    auto patient = b.ask(b.locks.acquire("k"));
    b.pass();
    auto released = b.ask(first.release());
    b.pass_slowly(50ms);
    CHECK(impatient.state() == "timeout");
    CHECK(patient.state() == "waits");
    b.pass_slowly(250ms);
    CHECK(patient.state() == "done");
}

TEST_CASE("renewal: none is sent after a release in the callback of lost_token", "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 3s, .renew = true, .stop_margin = 2200ms});
    const std::stop_callback give_back{l.lost_token(), [&] { static_cast<void>(l.release()); }};
    b.pass(1500ms);
    CHECK(b.count(operation::release) == 1);
    CHECK(b.count(operation::extend) == 0);
}

TEST_CASE("waiting: a release that hangs holds up the line no longer than the lease",
          "[lease][waiting]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    b.store.next(operation::release, course::is_silent(60s));
    auto released = b.ask(l.release());
    auto next = b.ask(b.locks.acquire("k", {.max_wait = 20s}));
    b.pass_slowly(1300ms, 10ms);
    CHECK(next.state() == "done");
    CHECK(released.state() == "waits");
    next.drop();
    b.pass(60s);
}

TEST_CASE("drain: a stop releases a lease also after a drain that gave up", "[lease][drain]")
{
    lease_bench b;
    std::stop_source stop;
    acquired_lock held = b.hold("k", {}, stop.get_token());
    auto other = std::make_unique<acquired_lock>(b.hold("j"));
    b.store.next(operation::release, course::is_silent(60s));
    other.reset();
    auto drained = b.ask(b.locks.drain(10ms));
    b.pass();
    b.pass(10ms);
    REQUIRE(drained.state() == "done");
    CHECK_FALSE(drained.value());
    CHECK(b.log.count("error") == 1); // the one that hangs, once
    stop.request_stop();
    b.pass();
    CHECK(b.count(operation::release) == 2);
    b.pass(60s);
}

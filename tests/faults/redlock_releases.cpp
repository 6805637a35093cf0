// SPDX-License-Identifier: BSL-1.0
// Without this file what a redlock is to free may be freed late, be asked for without end, or be left where it is.
#include "support/redlock_world.hpp"

#include <amux/redlock.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <chrono>

using namespace std::chrono_literals;
using amux::backend_error_kind;
using amux::testing::course;
using amux::testing::operation;
using Catch::Matchers::ContainsSubstring;
using support::redlock_world;

TEST_CASE("redlock: a node whose release is in doubt does not count for half a minute", "[redlock]")
{
    redlock_world w;
    w.grant("a", 1s);
    w.stores[0].next(operation::release, course::fails(backend_error_kind::indeterminate));
    auto r = w.release("a");
    w.stores[1].always(operation::acquire, course::fails(backend_error_kind::not_applied));
    auto again = w.acquire("a", 1s);
    w.loop.run_ready();
    CHECK(r.value());
    CHECK(again.state() == "trouble");
    CHECK_THAT(again.message(), ContainsSubstring("a release of the same token"));
    w.pass(29s); // the lease is over long since
    auto early = w.acquire("a", 1s);
    w.loop.run_ready();
    CHECK(early.state() == "trouble");
    w.pass(2s);
    auto later = w.acquire("a", 1s);
    w.loop.run_ready();
    CHECK(later.state() == "done");
}

TEST_CASE("redlock: a node that refuses a release for good is not asked again", "[redlock]")
{
    redlock_world w;
    w.grant("a");
    w.stores[0].always(operation::release, course::fails(backend_error_kind::permanent));
    auto r = w.release("a");
    w.pass(10s);
    CHECK(r.value());
    CHECK(w.stores[0].count(operation::release) == 1);
}

TEST_CASE("redlock: an extend neither counts what is to be freed nor keeps it", "[redlock]")
{
    redlock_world w;
    w.grant("a");
    for (auto& s : w.stores)
        s.next(operation::release, course::fails(backend_error_kind::not_applied));
    auto r = w.release("a");
    auto e = w.extend("a");
    w.loop.run_ready();
    REQUIRE(e.state() == "trouble");
    CHECK_THAT(e.message(), ContainsSubstring("a release of the same token"));
    w.pass(100ms);
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: a release is not doubted because of an extend", "[redlock]")
{
    redlock_world w; // which creates nothing, however late it is carried out
    w.grant("a");
    w.stores[0].next(operation::extend, course::fails(backend_error_kind::indeterminate));
    auto e = w.extend("a");
    auto r = w.release("a");
    w.pass(5s);
    CHECK(r.value());
    CHECK(w.calls(operation::release) == 3);
}

TEST_CASE("redlock: a release that hangs for longer than its lease does not count as over",
          "[redlock]")
{
    redlock_world w;
    w.grant("a", 1s);
    w.stores[0].next(operation::release, course::slow(5s, 0ms));
    auto r = w.release("a");
    w.pass(2s);
    w.stores[1].next(operation::acquire, course::fails(backend_error_kind::not_applied));
    auto a = w.acquire("a");
    w.loop.run_ready();
    REQUIRE(a.state() == "trouble");
    CHECK_THAT(a.message(), ContainsSubstring("node 1: a release of the same token"));
}

TEST_CASE("redlock: a shorter time to live that hangs does not count as over when all is freed",
          "[redlock]")
{
    redlock_world w;
    SECTION("an acquire on its way")
    {
        w.stores[0].next(operation::acquire, course::slow(5s, 0ms));
        for (std::size_t n = 1; n != 3; ++n)
            w.stores[n].next(operation::acquire, course::fails(backend_error_kind::not_applied));
        auto shorter = w.acquire("a", 1s);
        w.pass(500ms);
    }
    SECTION("an extend in doubt")
    {
        w.grant("a");
        w.stores[0].next(operation::extend, course::loses_reply());
        auto shorter = w.extend("a", 1s);
        auto r = w.release("a");
        w.loop.run_ready();
    }
    w.stores[1].next(operation::acquire, course::fails(backend_error_kind::not_applied));
    auto longer = w.acquire("a");
    w.loop.run_ready();
    REQUIRE(longer.state() == "trouble");
    CHECK_THAT(longer.message(), ContainsSubstring("node 1: yes, but a shorter time"));
}

TEST_CASE("redlock: a token that was granted elsewhere is released until its ttl may be over",
          "[redlock]")
{
    redlock_world w;
    for (auto& s : w.stores)
        s.usurp(w.key, "a", 1h);
    w.stores[2].always(operation::release, course::fails(backend_error_kind::not_applied));
    auto r = w.release("a");
    w.pass(10s);
    CHECK(r.value());
    CHECK(w.held_by("a") == 1);
    if (GENERATE(false, true)) {
        w.stores[2].always(operation::release, course::at_once());
        w.pass(20s);
        CHECK(w.held_by("a") == 0);
    } else {
        w.pass(21s);
        const auto asked = w.stores[2].count(operation::release);
        CHECK(asked >= 10);
        w.pass(5min);
        CHECK(w.stores[2].count(operation::release) == asked);
    }
}

TEST_CASE("redlock: what is left of a lease is minded for its own ttl, not for another one's",
          "[redlock]")
{
    redlock_world w;
    auto longer = w.acquire("b", 24h);
    auto freed = w.release("b");
    w.grant("a", 1s);
    w.stores[2].always(operation::release, course::fails(backend_error_kind::not_applied));
    auto r = w.release("a");
    w.pass(2s);
    CHECK(r.value());
    const auto asked = w.stores[2].count(operation::release);
    w.pass(5min);
    CHECK(w.stores[2].count(operation::release) == asked);
}

TEST_CASE("redlock: a release that goes on failing is not asked for without a pause", "[redlock]")
{
    redlock_world w;
    w.grant("a", 1h);
    for (auto& s : w.stores)
        s.always(operation::release, course::fails(backend_error_kind::not_applied));
    for (int n = 0; n != 100; ++n) { // by a caller who has no patience
        auto r = w.release("a");
        w.loop.run_ready();
    }
    const auto asked = w.calls(operation::release);
    CHECK(asked <= 3 * 101);
    w.pass(10s);
    CHECK(w.calls(operation::release) <= asked + 3 * 10);
}

TEST_CASE("redlock: each attempt that fails is given back at once, however many there were",
          "[redlock]")
{
    // A release in doubt at node 3 keeps what is known of the token alive.
    redlock_world w;
    w.grant("a");
    w.stores[2].next(operation::release, course::fails(backend_error_kind::indeterminate));
    auto r = w.release("a");
    w.loop.run_ready();
    w.stores[1].usurp(w.key, "other", 1h);
    for (int n = 0; n != 20; ++n) {
        auto a = w.acquire("a");
        w.pass(20ms);
        CHECK(a.state() == "trouble");
        REQUIRE(w.stores[0].holder(w.key) != "a");
        w.pass(200ms);
    }
    w.stores[0].next(operation::release, course::fails(backend_error_kind::not_applied));
    auto last = w.acquire("a");
    w.pass(200ms);
    CHECK(w.stores[0].holder(w.key) != "a"); // it is asked again as soon as after the first attempt
}

TEST_CASE("redlock: an acquire that fails frees also what its token had where it was not asked",
          "[redlock]")
{
    redlock_world w;
    w.grant("a", 300ms);
    w.stores[0].next(operation::extend, course::late(250ms)); // heard of when nobody believes
    w.stores[1].next(operation::extend, course::fails(backend_error_kind::not_applied));
    w.stores[2].next(operation::extend, course::fails(backend_error_kind::not_applied));
    auto e = w.extend("a", 1h);
    w.pass(1s);
    CHECK(e.state() == "trouble");
    CHECK(w.stores[0].holder(w.key) == "a");
    w.stores[0].next(operation::acquire, course::fails(backend_error_kind::not_applied));
    w.stores[1].usurp(w.key, "other", 1h);
    auto a = w.acquire("a", 300ms);
    w.pass(100ms);
    CHECK(a.state() == "trouble");
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: a release is tried until the lease is over, whenever it was asked for",
          "[redlock]")
{
    redlock_world w;
    w.grant("a", 20s);
    w.stores[2].always(operation::release, course::fails(backend_error_kind::not_applied));
    w.pass(10s);
    auto r = w.release("a");
    w.pass(11s);
    const auto asked = w.stores[2].count(operation::release);
    CHECK(asked >= 8);
    w.pass(1min);
    CHECK(w.stores[2].count(operation::release) == asked);
}

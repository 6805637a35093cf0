// SPDX-License-Identifier: BSL-1.0
// Without this file a redlock may count wrong, leave keys behind, or wait for a node that hangs.
#include "support/redlock_world.hpp"
#include "support/seeded_bits.hpp"

#include <amux/distributed_lock.hpp>
#include <amux/loop_thread.hpp>
#include <amux/memory_backend.hpp>
#include <amux/redlock.hpp>
#include <amux/sync_wait.hpp>
#include <amux/testing/conformance.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::backend_error_kind;
using amux::memory_backend;
using amux::redlock;
using amux::testing::course;
using amux::testing::operation;
using Catch::Matchers::ContainsSubstring;
using support::asked;
using support::memories;
using support::redlock_world;
using support::scripted_node;

static_assert(amux::lock_backend<redlock<memory_backend>>);
static_assert(amux::metadata_backend<redlock<memory_backend>>);
static_assert(amux::notifying_backend<redlock<memory_backend>>);
static_assert(amux::inspecting_backend<redlock<memory_backend>>);
// The counters of different nodes are not ordered: whoever had the third of them would be sure of nothing.
static_assert(!amux::fencing_backend<redlock<memory_backend>>);

namespace {

backend_error_kind kind_of(const std::exception_ptr& e)
{
    try {
        std::rethrow_exception(e);
    } catch (const amux::backend_error& trouble) {
        return trouble.kind();
    }
}

} // namespace

TEST_CASE("redlock: over three and five nodes it keeps the law of lock_backend",
          "[redlock][conformance]")
{
    const std::size_t count = GENERATE(3u, 5u);
    amux::manual_event_loop loop;
    redlock store{memories(count, loop), loop};
    const auto results =
        amux::testing::run_conformance(store, amux::testing::in_virtual_time(loop));
    CHECK(results.size() == 19); // all but the two of fences
    for (const auto& r : results) {
        INFO(r.name << ": " << r.message);
        CHECK(r.ok);
    }
}

TEST_CASE("redlock: it keeps the law with a node that is down, and with one that hangs",
          "[redlock][conformance]")
{
    const bool hangs = GENERATE(false, true);
    redlock_world w;
    for (const auto op : {operation::acquire, operation::extend, operation::release, operation::get,
                          operation::inspect, operation::wait})
        w.stores[1].always(op,
                           hangs ? course::held() : course::fails(backend_error_kind::not_applied));
    for (const auto& r :
         amux::testing::run_conformance(*w.lock, amux::testing::in_virtual_time(w.loop))) {
        INFO(r.name << ": " << r.message);
        CHECK(r.ok);
    }
}

TEST_CASE("redlock: an even number of nodes, or fewer than three, is refused", "[redlock]")
{
    amux::manual_event_loop loop;
    for (const std::size_t count : {0u, 1u, 2u, 4u, 6u}) {
        try {
            const redlock store{memories(count, loop), loop};
            FAIL("made of " << count);
        } catch (const std::invalid_argument& e) {
            CHECK_THAT(e.what(), ContainsSubstring("odd number"));
        }
    }
    CHECK_THROWS_AS((redlock{memories(3, loop), loop, {.node_timeout = 0ms}}),
                    std::invalid_argument);
}

TEST_CASE("redlock: all nodes are asked at once, and a majority decides without the others",
          "[redlock]")
{
    redlock_world w{5};
    for (std::size_t n = 0; n < 5; ++n)
        w.stores[n].always(operation::acquire, course::late(10ms * static_cast<int>(n + 1)));
    auto a = w.acquire("a");
    w.loop.run_ready();
    CHECK(w.calls(operation::acquire) == 5);
    w.pass(20ms);
    CHECK(a.state() == "waits");
    w.pass(10ms); // the third of five
    REQUIRE(a.state() == "done");
    CHECK(a.value().acquired);
}

TEST_CASE("redlock: a failed quorum leaves no key behind", "[redlock]")
{
    // Where a library forgets the nodes that did say yes, their keys stay for a ttl, in the way of everybody.
    redlock_world w{5};
    for (std::size_t n = 0; n < 3; ++n)
        w.stores[n].usurp(w.key, "other", 1min);
    auto a = w.acquire("a");
    w.loop.run_ready();
    REQUIRE(a.state() == "done");
    CHECK(!a.value().acquired);
    CHECK(w.held_by("a") == 0);
    CHECK(w.held_by("other") == 3);
}

TEST_CASE("redlock: with one of three nodes dead leases are had, extended and released",
          "[redlock]")
{
    // Where a library lets the first exception of a node out, one dead node of three is the end of every lock.
    redlock_world w;
    const std::size_t dead = GENERATE(0u, 1u, 2u);
    for (const auto op :
         {operation::acquire, operation::extend, operation::release, operation::get})
        w.stores[dead].always(op, course::fails(backend_error_kind::not_applied));
    auto a = w.acquire("a");
    w.loop.run_ready();
    REQUIRE(a.state() == "done");
    CHECK(a.value().acquired);
    auto held = w.get();
    auto extended = w.extend("a");
    w.loop.run_ready();
    CHECK(held.value() == "a");
    CHECK(extended.value());
    auto released = w.release("a");
    w.loop.run_ready();
    CHECK(released.value());
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: validity counts from before the first request", "[redlock]")
{
    // The second yes comes 400 ms after the start, of a lease of 300: the nodes hold it, nobody may believe in it.
    redlock_world w{3, {.node_timeout = 1s}};
    w.stores[0].always(operation::acquire, course::at_once());
    w.stores[1].always(operation::acquire, course::slow(390ms, 0ms));
    w.stores[2].always(operation::acquire, course::slow(390ms, 0ms));
    auto a = w.acquire("a", 300ms);
    w.pass(290ms);
    CHECK(a.state() == "waits");
    w.pass(10ms); // the lease would be over
    CHECK(a.state() == "trouble");
    w.pass(100ms);
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: a lease and a limit may be without end", "[redlock]")
{
    redlock_world w{3, {.node_timeout = (support::milliseconds::max)()}};
    for (const auto op : {operation::acquire, operation::extend})
        w.stores[2].always(op, course::held());
    w.grant("a", (support::milliseconds::max)());
    auto e = w.extend("a", (support::milliseconds::max)());
    w.pass(1min);
    CHECK(e.value());
    auto r = w.release("a");
    w.loop.run_ready();
    CHECK(r.value());
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: a grant that comes after its time is up is given back", "[redlock]")
{
    // The loop stood still, so that no limit has been seen: the clock is looked at first.
    redlock_world w;
    w.stores[0].always(operation::acquire, course::held());
    w.stores[1].always(operation::acquire, course::held());
    auto a = w.acquire("a", 1s);
    w.loop.run_ready();
    w.loop.advance(988ms); // 1 s, less 12 ms for the drift
    w.stores[0].answer(1);
    w.loop.run_ready();
    CHECK(a.state() == "trouble");
    CHECK(kind_of(a.error()) == backend_error_kind::not_applied);
    CHECK_THAT(a.message(), ContainsSubstring("too late"));
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: a refusal that comes when the lease would be over is one", "[redlock]")
{
    redlock_world w;
    for (std::size_t n = 0; n != 2; ++n) {
        w.stores[n].usurp(w.key, "other", 1min);
        w.stores[n].always(operation::acquire, course::held());
    }
    auto a = w.acquire("a", 1s);
    w.loop.run_ready();
    w.loop.advance(988ms); // the loop stood still
    w.stores[0].answer(1);
    w.stores[1].answer(1);
    w.loop.run_ready();
    REQUIRE(a.state() == "done");
    CHECK(!a.value().acquired);
}

TEST_CASE("redlock: a yes that comes when the call is over is given back", "[redlock]")
{
    redlock_world w;
    w.stores[1].always(operation::acquire, course::fails(backend_error_kind::not_applied));
    w.stores[2].always(operation::acquire, course::slow(700ms, 0ms));
    auto a = w.acquire("a");
    w.pass(200ms);
    CHECK(a.state() == "trouble");
    w.pass(490ms);
    CHECK(w.held_by("a") == 0);
    w.pass(10ms); // it is carried out, and answered, now
    CHECK(w.calls(operation::release) == 2);
    CHECK(w.held_by("a") == 0);
}

TEST_CASE(
    "redlock: a node that hangs costs a call no more than its limit, and only when it matters",
    "[redlock]")
{
    redlock_world w{3, {.node_timeout = 150ms}};
    for (const auto op : {operation::acquire, operation::extend, operation::release})
        w.stores[2].always(op, course::held());
    auto a = w.acquire("a");
    w.loop.run_ready();
    CHECK(a.state() == "done");
    w.stores[0].drop(w.key); // one says no now, and one hangs
    auto e = w.extend("a");
    w.pass(140ms);
    CHECK(e.state() == "waits");
    w.pass(10ms);
    REQUIRE(e.state() == "trouble");
    CHECK(kind_of(e.error()) == backend_error_kind::indeterminate);
    CHECK_THAT(e.message(), ContainsSubstring("node 1: no") && ContainsSubstring("node 2: yes") &&
                                ContainsSubstring("node 3: no answer in 150 ms"));
}

TEST_CASE("redlock: trouble tells how long a silent node was waited for", "[redlock]")
{
    // No longer than the lease would be good for, whatever the limit is.
    redlock_world w{3, {.node_timeout = 10s}};
    for (const auto op : {operation::acquire, operation::extend}) {
        w.stores[0].next(op, course::held());
        w.stores[1].next(op, course::held());
    }
    auto a = w.acquire("a", 100ms);
    w.pass(100ms);
    REQUIRE(a.state() == "trouble");
    CHECK_THAT(a.message(),
               ContainsSubstring("no majority of 3 nodes in acquire: node 1: no answer "
                                 "in 100 ms; node 2: no answer in 100 ms; node 3: yes"));
    w.grant("b");
    auto e = w.extend("b", 200ms);
    w.pass(200ms);
    REQUIRE(e.state() == "trouble");
    CHECK_THAT(e.message(), ContainsSubstring("node 1: no answer in 200 ms"));
}

TEST_CASE("redlock: an acquire in doubt that is carried out after its release is released again",
          "[redlock]")
{
    redlock_world w;
    w.stores[0].next(operation::acquire, course::acts_late(300ms, 10ms));
    w.stores[1].next(operation::acquire, course::fails(backend_error_kind::not_applied));
    w.stores[2].next(operation::acquire, course::fails(backend_error_kind::not_applied));
    auto a = w.acquire("a");
    w.pass(20ms);
    CHECK(a.state() == "trouble");
    CHECK(w.calls(operation::release) == 1); // node 1 had nothing to release then
    w.pass(1s);
    CHECK(w.held_by("a") == 0);
    w.pass(10s); // the ttl is over
    const auto asked = w.calls(operation::release);
    w.pass(20s);
    CHECK(w.calls(operation::release) == asked);
}

TEST_CASE("redlock: who asks again with the token that has a minority gets the majority",
          "[redlock]")
{
    redlock_world w;
    w.stores[0].usurp(w.key, "a", 1s); // what a lost answer may leave
    auto a = w.acquire("a");
    w.loop.run_ready();
    REQUIRE(a.state() == "done");
    CHECK(a.value().acquired);
    CHECK(w.held_by("a") == 3);
}

TEST_CASE("redlock: a release on its way does not undo what its token gets later", "[redlock]")
{
    // The first attempt fails, and its release hangs on the way to node 1. Until it is there the node does not count.
    redlock_world w;
    w.stores[1].next(operation::acquire, course::fails(backend_error_kind::not_applied));
    w.stores[2].always(operation::acquire, course::fails(backend_error_kind::not_applied));
    w.stores[0].next(operation::release, course::slow(1s, 0ms));
    auto first = w.acquire("a");
    auto second = w.acquire("a");
    w.pass(900ms);
    CHECK(first.state() == "trouble");
    CHECK(second.state() == "trouble");
    w.pass(200ms);
    auto third = w.acquire("a");
    w.pass(5s);
    REQUIRE(third.state() == "done");
    CHECK(third.value().acquired);
    CHECK(w.held_by("a") == 2);
}

TEST_CASE("redlock: an extend on its way does not shorten what a later one has promised",
          "[redlock]")
{
    // A majority has extended by a second while the question to node 3 was on its way. Until it is there, node 3 does not
    // count for more than a second.
    redlock_world w;
    w.grant("a");
    w.stores[2].next(operation::extend, course::slow(100ms, 0ms));
    auto shorter = w.extend("a", 1s);
    w.loop.run_ready();
    CHECK(shorter.value());
    w.stores[1].next(operation::extend, course::fails(backend_error_kind::not_applied));
    auto longer = w.extend("a", 10s);
    w.loop.run_ready();
    REQUIRE(longer.state() == "trouble");
    CHECK_THAT(longer.message(), ContainsSubstring("shorter"));
    w.pass(100ms);
    auto again = w.extend("a", 10s);
    w.pass(5s);
    CHECK(again.value());
    CHECK(w.held_by("a") == 3);
}

TEST_CASE("redlock: a refusal tells when a majority is free at the latest", "[redlock]")
{
    redlock_world w{5};
    const std::vector<amux::testing::scripted_backend::milliseconds> left{5s, 1s, 4s, 2s, 3s};
    for (std::size_t n = 0; n < 5; ++n)
        w.stores[n].usurp(w.key, "other " + std::to_string(n), left[n]);
    for (std::size_t n = 0; n < 5; ++n)
        w.stores[n].always(operation::acquire, course::late(n < 2 ? 0ms : 1ms));
    auto a = w.acquire("a");
    w.pass(10ms);
    REQUIRE(a.state() == "done");
    CHECK(!a.value().acquired);
    CHECK(a.value().holder_ttl > 1s);
    CHECK(a.value().holder_ttl <= 5s);
}

TEST_CASE("redlock: a lease that a majority has lost is lost, and the rest is freed", "[redlock]")
{
    redlock_world w;
    w.grant("a");
    w.stores[0].drop(w.key);
    w.stores[1].drop(w.key);
    auto e = w.extend("a");
    w.loop.run_ready();
    REQUIRE(e.state() == "done");
    CHECK(!e.value());
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: what nobody waits for any more is given back", "[redlock]")
{
    redlock_world w;
    w.stores[1].always(operation::acquire, course::late(50ms));
    w.stores[2].always(operation::acquire, course::late(50ms));
    {
        amux::manual_event_loop gone;
        asked<amux::unfenced_result> a{gone, [](auto& l) -> amux::task<amux::unfenced_result> {
                                           auto result = co_await l.acquire("k", "a", 10s);
                                           co_return result;
                                       }(*w.lock)};
        gone.run_ready();
    }
    CHECK(w.held_by("a") == 3);
    w.pass(50ms);
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: it may go while it is asked, and who waits is told", "[redlock]")
{
    redlock_world w;
    for (auto& s : w.stores)
        s.always(operation::acquire, course::late(50ms));
    auto a = w.acquire("a");
    w.loop.run_ready();
    w.lock.reset();
    w.pass(50ms); // by now the nodes have answered
    CHECK(a.state() == "trouble");
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: a wait for a release ends with the hint of a majority", "[redlock]")
{
    redlock_world w;
    w.grant("a");
    std::stop_source stop;
    const auto wait = [](redlock<scripted_node>& l, std::stop_token s) -> amux::task<> {
        co_await l.wait_for_release("k", s);
    };
    asked<void> first{w.loop, wait(*w.lock, {})};
    asked<void> second{w.loop, wait(*w.lock, stop.get_token())};
    w.stores[0].drop(w.key); // it has lost its data
    w.pass(1s); // no limit ends it
    CHECK(first.state() == "waits");
    SECTION("a release")
    {
        auto r = w.release("a");
        w.pass(10ms);
        CHECK(first.state() == "done");
        CHECK(second.state() == "done");
    }
    SECTION("a stop")
    {
        stop.request_stop();
        w.pass(10ms);
        CHECK(first.state() == "waits");
        CHECK(second.state() == "done");
        auto r = w.release("a");
        w.pass(10ms);
    }
}

TEST_CASE("redlock: after split votes a wait tells of a release when a random time is over",
          "[redlock]")
{
    const support::seeded_bits bits{3};
    redlock_world w;
    w.stores[0].usurp(w.key, "other", 1h);
    w.stores[1].usurp(w.key, "another", 1h);
    for (int n = 0; n < 10; ++n) {
        auto a = w.acquire("a" + std::to_string(n)); // gets one of three
        w.loop.run_ready();
        CHECK(!a.value().acquired);
    }
    std::stop_source stop;
    asked<void> wait{w.loop, [](redlock<scripted_node>& l, std::stop_token s) -> amux::task<> {
                         co_await l.wait_for_release("k", s);
                     }(*w.lock, stop.get_token())};
    w.stores[0].drop(w.key);
    w.pass(20ms);
    CHECK(wait.state() == "waits");
    SECTION("it is no longer than a poll may be")
    {
        w.pass(240ms);
    }
    SECTION("a stop ends it")
    {
        stop.request_stop();
        w.loop.run_ready();
    }
    SECTION("the end of the redlock ends it")
    {
        w.lock.reset();
        w.loop.run_ready();
    }
    CHECK(wait.state() == "done");
}

TEST_CASE("redlock: after plain refusals, or as many grants, a wait tells of a release at once",
          "[redlock]")
{
    redlock_world w;
    w.stores[0].usurp(w.key, "other", 1h);
    w.stores[1].usurp(w.key, "another", 1h);
    const bool split = GENERATE(false, true);
    if (!split)
        w.stores[2].usurp(w.key, "a third", 1h);
    for (int n = 0; n != 8; ++n) {
        auto a = w.acquire("a" + std::to_string(n));
        w.loop.run_ready();
        CHECK(!a.value().acquired);
    }
    if (split) {
        w.stores[0].drop(w.key);
        w.stores[1].drop(w.key);
        for (int n = 0; n != 8; ++n)
            w.grant("b");
    }
    asked<void> wait{w.loop, [](redlock<scripted_node>& l) -> amux::task<> {
                         co_await l.wait_for_release("k");
                     }(*w.lock)};
    w.loop.run_ready();
    CHECK(wait.state() == "waits");
    for (auto& s : w.stores)
        s.drop(w.key);
    w.loop.run_ready();
    CHECK(wait.state() == "done");
}

TEST_CASE("redlock: without a majority that can tell, waiting and looking are in trouble",
          "[redlock]")
{
    redlock_world w;
    w.grant("a");
    for (const auto op : {operation::get, operation::wait}) {
        w.stores[0].always(op, course::fails(backend_error_kind::not_applied));
        w.stores[2].always(op, course::fails(backend_error_kind::not_applied));
    }
    auto held = w.get();
    asked<void> wait{w.loop, [](redlock<scripted_node>& l) -> amux::task<> {
                         co_await l.wait_for_release("k");
                     }(*w.lock)};
    w.pass(10ms);
    CHECK(held.state() == "trouble");
    CHECK(wait.state() == "trouble");
    w.stores[0].always(operation::get, course::at_once()); // two of three say so
    auto again = w.get();
    w.pass(10ms);
    CHECK(again.value() == "a");
}

TEST_CASE("redlock: trouble that a majority calls permanent is permanent", "[redlock]")
{
    redlock_world w;
    for (auto& s : w.stores)
        s.always(operation::acquire, course::fails(backend_error_kind::permanent));
    w.stores[0].always(operation::acquire, course::fails(backend_error_kind::not_applied));
    auto a = w.acquire("a");
    w.loop.run_ready();
    REQUIRE(a.state() == "trouble");
    CHECK(kind_of(a.error()) == backend_error_kind::permanent);
    w.stores[1].always(operation::acquire, course::fails(backend_error_kind::not_applied));
    auto minority = w.acquire("b");
    w.loop.run_ready();
    CHECK(kind_of(minority.error()) == backend_error_kind::not_applied);
}

TEST_CASE("redlock: distributed_lock takes it, and may be called from another thread", "[redlock]")
{
    amux::loop_thread thread;
    std::vector<memory_backend> nodes(3);
    redlock store{std::move(nodes), thread.loop()};
    amux::distributed_lock locks{store, thread.loop()};
    auto held = amux::sync_wait(locks.acquire("k"));
    CHECK(held.is_held());
    CHECK(!held.fence());
    CHECK(!amux::sync_wait(locks.try_acquire("k")));
    CHECK(amux::sync_wait(held.verify()));
    CHECK(amux::sync_wait(held.release()));
    CHECK(amux::sync_wait(locks.drain(10s)));
}

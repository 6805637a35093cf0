// SPDX-License-Identifier: BSL-1.0
// Without this file a lease may die of nodes that lose their data one after the other, or a dead one come back to life.
#include "support/redlock_world.hpp"

#include <amux/distributed_lock.hpp>
#include <amux/redlock.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

using namespace std::chrono_literals;
using amux::acquired_lock;
using amux::backend_error_kind;
using amux::testing::course;
using amux::testing::operation;
using Catch::Matchers::ContainsSubstring;
using support::asked;
using support::redlock_world;
using support::scripted_node;

namespace {

/// A process with a redlock of its own.
struct process {
    using locks_type = amux::distributed_lock<amux::redlock<scripted_node>&>;

    explicit process(redlock_world& w) : world{w} {}

    std::optional<acquired_lock> try_acquire(const amux::acquire_options& options)
    {
        asked<std::optional<acquired_lock>> lease{world.loop, locks.try_acquire("k", options)};
        world.pass(0ms);
        return std::move(lease.value());
    }

    redlock_world& world;
    amux::redlock<scripted_node> store{world.nodes(), world.loop};
    locks_type locks{store, world.loop};
};

/// That only a put back decides: nodes 1 and 2 are asked, node 3 is in trouble; node 1 has lost its data.
void leave_two_of_three(redlock_world& w)
{
    w.stores[0].drop(w.key);
    w.stores[2].always(operation::extend, course::fails(backend_error_kind::not_applied));
}

} // namespace

TEST_CASE("redlock: a lease outlives the loss of each node's data in turn, with renewals between",
          "[redlock][wipes]")
{
    const std::size_t count = GENERATE(3u, 5u);
    redlock_world w{count};
    process holder{w};
    process other{w};
    for (std::size_t n = count / 2 + 1; n < count; ++n) // granted by no more than a majority
        w.stores[n].next(operation::acquire, course::fails(backend_error_kind::not_applied));
    auto lease = holder.try_acquire({.ttl = 1s, .renew = true});
    REQUIRE(lease);
    const std::string token{lease->token()};
    w.pass(400ms);
    for (std::size_t n = 0; n < 2 * count; ++n) {
        REQUIRE(w.held_by(token) == count);
        w.stores[n % count].drop(w.key);
        REQUIRE_FALSE(other.try_acquire({.ttl = 1s}));
        w.pass(400ms);
    }
    CHECK(lease->is_held());
    lease.reset();
    w.pass(100ms);
    CHECK(w.held_by(token) == 0);
    CHECK(other.try_acquire({.ttl = 1s}));
    w.pass(100ms);
}

TEST_CASE("redlock: with a node dead and another one wiped the lease goes on", "[redlock][wipes]")
{
    redlock_world w;
    w.grant("a");
    leave_two_of_three(w);
    auto e = w.extend("a");
    w.loop.run_ready();
    REQUIRE(e.state() == "done");
    CHECK(e.value());
    CHECK(w.stores[0].holder(w.key) == "a");
}

TEST_CASE("redlock: with a node that hangs and another one wiped the next renewal goes on",
          "[redlock][wipes]")
{
    // Whether a majority has lost the lease is known when the limit is over; then it is put back.
    redlock_world w;
    w.grant("a");
    w.stores[0].drop(w.key);
    w.stores[2].always(operation::extend, course::held());
    auto first = w.extend("a");
    w.pass(200ms);
    CHECK(first.state() == "trouble");
    CHECK(w.stores[0].holder(w.key) == "a");
    auto second = w.extend("a");
    w.loop.run_ready();
    CHECK(second.value());
}

TEST_CASE("redlock: where somebody else has the key it is not put back", "[redlock][wipes]")
{
    redlock_world w;
    w.grant("a");
    leave_two_of_three(w);
    w.stores[0].usurp(w.key, "other", 1min);
    auto e = w.extend("a");
    w.loop.run_ready();
    CHECK(e.state() == "trouble");
    CHECK_THAT(e.message(), ContainsSubstring("node 1: no"));
    CHECK(w.stores[0].holder(w.key) == "other");
}

TEST_CASE("redlock: what a majority misses is put nowhere", "[redlock][wipes]")
{
    // Nodes lose it, or another process releases it by its token: it would come back to life.
    const bool slowly = GENERATE(false, true);
    redlock_world w{5};
    w.grant("a");
    for (std::size_t n = 0; n < 3; ++n)
        w.stores[n].drop(w.key);
    w.stores[2].always(operation::extend, course::late(slowly ? 100ms : 0ms));
    auto e = w.extend("a");
    w.pass(200ms);
    REQUIRE(e.state() == "done");
    CHECK_FALSE(e.value());
    CHECK(w.calls(operation::acquire) == 5);
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: a lease that is over is put nowhere", "[redlock][wipes]")
{
    redlock_world w;
    w.grant("a", 1s);
    leave_two_of_three(w);
    w.pass(990ms); // 12 ms are for the drift; node 2 has it yet
    auto e = w.extend("a", 1s);
    w.loop.run_ready();
    CHECK(e.state() == "trouble");
    CHECK(w.calls(operation::acquire) == 3);
    CHECK(w.stores[0].holder(w.key) == std::nullopt);
}

TEST_CASE("redlock: what is put back when the lease is over does not count, and is freed",
          "[redlock][wipes]")
{
    redlock_world w;
    w.grant("a", 300ms);
    leave_two_of_three(w);
    w.stores[0].next(operation::acquire, course::slow(140ms, 10ms));
    w.pass(200ms);
    auto e = w.extend("a", 300ms);
    w.pass(140ms);
    CHECK(w.stores[0].holder(w.key) == "a");
    CHECK(e.state() == "waits");
    w.pass(10ms);
    REQUIRE(e.state() == "trouble");
    CHECK_THAT(e.message(), ContainsSubstring("node 1: the lease was missing there, and is back"));
    CHECK(w.stores[0].holder(w.key) == std::nullopt);
}

TEST_CASE("redlock: what is put back late stays when another extend goes on with the lease",
          "[redlock][wipes]")
{
    redlock_world w;
    w.grant("a", 300ms); // believed for 295
    w.stores[0].drop(w.key);
    w.stores[0].next(operation::acquire, course::slow(140ms, 10ms));
    w.stores[2].next(operation::extend, course::loses_reply());
    w.pass(200ms);
    auto first = w.extend("a", 300ms);
    w.pass(140ms);
    w.stores[1].next(operation::extend, course::late(30ms));
    w.stores[2].next(operation::extend, course::late(30ms));
    w.stores[0].next(operation::extend, course::fails(backend_error_kind::not_applied));
    auto second = w.extend("a", 300ms);
    w.pass(70ms); // the acquire is answered before it
    CHECK(first.state() == "trouble");
    CHECK(second.value());
    w.pass(30ms);
    CHECK(w.held_by("a") == 3);
}

TEST_CASE("redlock: a release during a renewal's acquire leaves no key, whichever comes first",
          "[redlock][wipes]")
{
    redlock_world w;
    w.grant("a");
    w.stores[0].drop(w.key);
    SECTION("the acquire is carried out after the release")
    {
        w.stores[0].next(operation::acquire, course::slow(300ms, 0ms));
    }
    SECTION("the acquire is carried out before the release")
    {
        w.stores[0].next(operation::acquire, course::slow(0ms, 300ms));
    }
    SECTION("the release is carried out first, and heard of last")
    {
        w.stores[0].next(operation::acquire, course::slow(100ms, 0ms));
        w.stores[0].next(operation::release, course::slow(0ms, 300ms));
    }
    auto e = w.extend("a");
    w.loop.run_ready();
    CHECK(e.value());
    auto r = w.release("a");
    w.loop.run_ready();
    CHECK(r.value());
    w.pass(500ms);
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: a release on its way with a slow grant of its token leaves no key", "[redlock]")
{
    // Node 3 frees nothing, then grants, and tells of the grant first.
    redlock_world w;
    w.stores[2].next(operation::acquire, course::slow(100ms, 0ms));
    w.stores[2].next(operation::release, course::slow(0ms, 300ms));
    w.grant("a");
    auto r = w.release("a");
    w.pass(500ms);
    CHECK(r.value());
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: what is put back when the lease is lost is freed", "[redlock][wipes]")
{
    redlock_world w;
    w.grant("a");
    w.stores[0].drop(w.key);
    w.stores[0].next(operation::acquire, course::slow(300ms, 0ms));
    auto first = w.extend("a");
    w.loop.run_ready();
    CHECK(first.value());
    w.stores[1].drop(w.key); // two of three, before the next renewal
    auto second = w.extend("a");
    w.loop.run_ready();
    CHECK_FALSE(second.value());
    w.pass(400ms);
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: an older extend that finds its lease missing does not shorten a later one",
          "[redlock][wipes]")
{
    redlock_world w;
    w.grant("a");
    w.stores[0].drop(w.key);
    SECTION("its answer comes late")
    {
        w.stores[0].next(operation::extend, course::slow(0ms, 100ms));
        auto shorter = w.extend("a", 1s);
        auto longer = w.extend("a", 10s);
        w.pass(200ms);
        CHECK(shorter.value());
        CHECK(longer.value());
        w.pass(2s);
        CHECK(w.held_by("a") == 3);
    }
    SECTION("its acquire is on its way: the node does not count for more")
    {
        w.stores[0].next(operation::acquire, course::slow(100ms, 0ms));
        auto shorter = w.extend("a", 1s);
        w.loop.run_ready();
        leave_two_of_three(w);
        auto longer = w.extend("a", 10s);
        w.loop.run_ready();
        CHECK(shorter.value());
        REQUIRE(longer.state() == "trouble");
        CHECK_THAT(longer.message(), ContainsSubstring("node 1: yes, but a shorter"));
        w.pass(200ms);
    }
}

TEST_CASE("redlock: a lease is put back with its metadata", "[redlock][wipes]")
{
    redlock_world w;
    process holder{w};
    auto lease = holder.try_acquire({.ttl = 1s, .renew = true, .metadata = "who"});
    REQUIRE(lease);
    w.stores[1].drop(w.key);
    w.pass(400ms);
    std::size_t puts = 0;
    for (const auto& c : w.stores[1].calls()) {
        if (c.op == operation::acquire && c.metadata == "who")
            ++puts;
    }
    CHECK(puts == 2);
    CHECK(w.stores[1].holder(w.key) == lease->token());
    lease.reset();
    w.pass(100ms);
}

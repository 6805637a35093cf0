// SPDX-License-Identifier: BSL-1.0
// Without this file one server of three that dies, hangs, or loses its data may give a key to two, or stop everybody.
#include "redis/support/lease_client.hpp"
#include "redis/support/redlock_party.hpp"

#include <amux/testing/conformance.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <cstddef>
#include <thread>

using namespace std::chrono_literals;
using support::redlock_client;
using support::redlock_party;
using support::soon;
using support::three_servers;

namespace {

/// Whether leases are granted meanwhile.
bool goes_on(const redlock_party& party)
{
    const int before = party.grants();
    return soon([&] { return party.grants() >= before + 6; });
}

} // namespace

TEST_CASE("redlock: over three servers it keeps the law of backends", "[redis][redlock]")
{
    const three_servers where;
    amux::loop_thread thread;
    amux::redlock store{where.nodes(), thread.loop(), {.node_timeout = 1s}};
    for (const auto& r :
         amux::testing::run_conformance(store, amux::testing::in_real_time("run "))) {
        INFO(r.name << ": " << r.message);
        CHECK(r.ok);
    }
}

TEST_CASE("redlock: with each of three servers stopped in turn, one believes, and it goes on",
          "[redis][redlock][faults]")
{
    three_servers where;
    redlock_party party{where, 3};
    CHECK(goes_on(party));
    for (auto& server : where.servers) {
        server.pause();
        CHECK(goes_on(party));
        server.resume();
        CHECK(goes_on(party));
    }
    CHECK(party.end() == std::vector<std::string>{});
}

TEST_CASE("redlock: with each of three servers killed in turn, one believes, and it goes on",
          "[redis][redlock][faults]")
{
    three_servers where;
    redlock_party party{where, 3};
    CHECK(goes_on(party));
    for (auto& server : where.servers) {
        server.kill9();
        CHECK(goes_on(party));
        // It comes back empty, so not before all that it has known is over.
        std::this_thread::sleep_for(1'100ms);
        server.restart();
        CHECK(goes_on(party));
    }
    CHECK(party.end() == std::vector<std::string>{});
}

TEST_CASE("redlock: with each of three servers slow in turn, one believes, and it goes on",
          "[redis][redlock][faults]")
{
    three_servers where;
    redlock_party party{where, 3};
    CHECK(goes_on(party));
    for (auto& proxy : where.proxies) {
        proxy.delay(150ms); // more than is waited for
        CHECK(goes_on(party));
        proxy.heal();
        proxy.black_hole();
        CHECK(goes_on(party));
        proxy.heal();
    }
    CHECK(party.end() == std::vector<std::string>{});
}

// That one believes is not promised then: who was granted by just two, for a moment, may lose one of them.
TEST_CASE("redlock: with each of three servers wiped in turn it goes on",
          "[redis][redlock][faults]")
{
    three_servers where;
    redlock_party party{where, 3};
    CHECK(goes_on(party));
    for (auto& server : where.servers) {
        server.cli("FLUSHALL");
        CHECK(goes_on(party));
    }
    party.end();
}

TEST_CASE("redlock: a lease outlives one wiped server, but not two", "[redis][redlock][faults]")
{
    three_servers where;
    redlock_client a{where};
    redlock_client b{where};
    auto held = amux::sync_wait(a.locks.acquire("k", {.ttl = 60s}));
    // The third answer may still be on its way.
    REQUIRE(soon([&] {
        return where.servers[0].cli("DBSIZE").number >= 1 &&
               where.servers[1].cli("DBSIZE").number >= 1 &&
               where.servers[2].cli("DBSIZE").number >= 1;
    }));
    where.servers[1].cli("FLUSHALL");
    CHECK_FALSE(amux::sync_wait(b.locks.try_acquire("k", {.ttl = 60s})));
    CHECK(amux::sync_wait(held.verify()));
    CHECK_NOTHROW(amux::sync_wait(held.extend()));
    where.servers[2].cli("FLUSHALL");
    // Nobody could know: the majority that is asked has never heard of the first.
    const auto other = amux::sync_wait(b.locks.try_acquire("k", {.ttl = 60s}));
    CHECK(other);
    CHECK(held.is_held());
    CHECK_THROWS_AS(amux::sync_wait(held.extend()), amux::lock_ended_error);
}

TEST_CASE("redlock: nothing stays in the servers when everybody has gone",
          "[redis][redlock][faults]")
{
    three_servers where;
    {
        redlock_party party{where, 3};
        CHECK(goes_on(party));
        where.proxies[0].lose(support::tcp_proxy::to_client, 5); // so many answers
        CHECK(goes_on(party));
        CHECK(party.end() == std::vector<std::string>{});
    }
    for (auto& server : where.servers)
        CHECK(soon([&] { return server.cli("EXISTS", support::lock_name("k")).number == 0; }));
}

TEST_CASE(
    "redlock: it may go with its loop while its nodes are asked, and they go when they have "
    "answered",
    "[redis][redlock][faults]")
{
    three_servers where;
    {
        amux::loop_thread thread;
        amux::redlock store{where.nodes(), thread.loop(), {.node_timeout = 50ms}};
        amux::distributed_lock locks{store, thread.loop()};
        CHECK(amux::sync_wait(locks.acquire("k")).is_held());
        for (auto& proxy : where.proxies)
            proxy.black_hole();
        CHECK_THROWS_AS(amux::sync_wait(locks.try_acquire("k")), amux::backend_error);
    }
    // The last answer comes on a node's own thread, which could not join itself.
    for (auto& proxy : where.proxies) {
        proxy.heal();
        CHECK(soon([&] { return proxy.connected() == 0; }));
    }
}

// SPDX-License-Identifier: BSL-1.0
// Without this file one server of three that dies, hangs, or loses its data may give a key to two, or stop everybody.
#include "redis/support/lease_client.hpp"
#include "redis/support/law.hpp"
#include "redis/support/redlock_party.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

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

/// All servers have the lease.
bool is_everywhere(three_servers& where, const amux::acquired_lock& lease)
{
    const std::string token{lease.token()};
    return std::all_of(std::begin(where.servers), std::end(where.servers), [&](auto& s) {
        return s.cli("GET", support::lock_name("k")).text.find(token) != std::string::npos;
    });
}

/// Leases are granted while each server in turn is harmed, and when it is healed. Gives what the history finds wrong.
template <class Harm, class Heal>
std::vector<std::string> faults_in_turn(const three_servers& where, Harm harm, Heal heal)
{
    redlock_party party{where, 3};
    CHECK(goes_on(party));
    for (std::size_t n = 0; n != 3; ++n) {
        harm(n);
        CHECK(goes_on(party));
        heal(n);
        CHECK(goes_on(party));
    }
    return party.end();
}

const std::vector<std::string> nothing;

} // namespace

TEST_CASE("redlock: over three servers it keeps the law of backends", "[redis][redlock]")
{
    const three_servers where;
    amux::loop_thread thread;
    amux::redlock store{where.nodes(20s), thread.loop(), {.node_timeout = 10s}};
    support::check_law(store);
}

TEST_CASE("redlock: with each of three servers stopped in turn, one believes, and it goes on",
          "[redis][redlock][faults]")
{
    three_servers where;
    const auto stop = [&](std::size_t n) { where.servers[n].pause(); };
    const auto go_on = [&](std::size_t n) { where.servers[n].resume(); };
    CHECK(faults_in_turn(where, stop, go_on) == nothing);
}

TEST_CASE("redlock: with each of three servers killed in turn, one believes, and it goes on",
          "[redis][redlock][faults]")
{
    three_servers where;
    const auto kill = [&](std::size_t n) { where.servers[n].kill9(); };
    const auto restart = [&](std::size_t n) {
        // It comes back empty, so not before all that it has known is over.
        std::this_thread::sleep_for(1'100ms);
        where.servers[n].restart();
    };
    CHECK(faults_in_turn(where, kill, restart) == nothing);
}

TEST_CASE("redlock: with each of three servers slow in turn, one believes, and it goes on",
          "[redis][redlock][faults]")
{
    three_servers where;
    const bool silent = GENERATE(false, true);
    const auto slow = [&](std::size_t n) {
        if (silent)
            where.proxies[n].black_hole();
        else
            where.proxies[n].delay(150ms); // more than is waited for
    };
    const auto heal = [&](std::size_t n) { where.proxies[n].heal(); };
    CHECK(faults_in_turn(where, slow, heal) == nothing);
}

// That one believes is not promised then: who was granted by just two, for a moment, and is not renewed may lose one of
// them.
TEST_CASE("redlock: with each of three servers wiped in turn it goes on",
          "[redis][redlock][faults]")
{
    three_servers where;
    const auto wipe = [&](std::size_t n) { where.servers[n].cli("FLUSHALL"); };
    faults_in_turn(where, wipe, [](std::size_t) {});
}

TEST_CASE("redlock: a lease that is renewed outlives each of three servers wiped in turn",
          "[redis][redlock][faults]")
{
    const bool killed = GENERATE(false, true);
    three_servers where;
    redlock_client holder{where};
    auto held = amux::sync_wait(
        holder.locks.acquire("k", {.ttl = 9s, .renew = true, .renew_interval = 500ms}));
    redlock_party others{where, 2};
    for (auto& server : where.servers) {
        REQUIRE(soon([&] { return is_everywhere(where, held); }));
        if (killed) {
            server.kill9();
            server.restart(); // at once, and empty
        } else {
            server.cli("FLUSHALL");
        }
    }
    CHECK(soon([&] { return is_everywhere(where, held); }));
    CHECK(held.is_held());
    CHECK(amux::sync_wait(held.verify()));
    CHECK(others.grants() == 0);
    CHECK(amux::sync_wait(held.release()));
    CHECK(goes_on(others));
    CHECK(others.end() == nothing);
}

TEST_CASE("redlock: a lease outlives one wiped server, but not two", "[redis][redlock][faults]")
{
    three_servers where;
    redlock_client a{where, 5s};
    redlock_client b{where, 5s};
    auto held = amux::sync_wait(a.locks.acquire("k", {.ttl = 60s}));
    // The third answer may still be on its way.
    REQUIRE(soon([&] { return is_everywhere(where, held); }));
    where.servers[1].cli("FLUSHALL");
    CHECK_FALSE(amux::sync_wait(b.locks.try_acquire("k", {.ttl = 60s})));
    CHECK(amux::sync_wait(held.verify()));
    CHECK_NOTHROW(amux::sync_wait(held.extend()));
    REQUIRE(soon([&] { return is_everywhere(where, held); })); // it was put back
    where.servers[1].cli("FLUSHALL");
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
        CHECK(party.end() == nothing);
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

// SPDX-License-Identifier: BSL-1.0
// Without this file nobody knows what a lease is worth when a Sentinel puts a replica in the place of its primary.
#include "redis/support/lease_client.hpp"
#include "redis/support/redis_server.hpp"
#include "redis/support/tcp_proxy.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <stdexcept>
#include <string>

using namespace std::chrono_literals;
using amux::sync_wait;
using support::lease_client;
using support::lock_name;
using support::redis_server;
using support::soon;

namespace {

constexpr amux::acquire_options renewed{.ttl = 100s, .renew = true, .renew_interval = 100ms};

/// A primary with its replica, a Sentinel that watches both, and a name that leads to the primary.
struct watched_pair {
    redis_server primary{{"--repl-diskless-sync-delay", "0"}};
    redis_server replica{{"--replicaof", "127.0.0.1", std::to_string(primary.port())}};
    redis_server sentinel{redis_server::sentinel{"sentinel monitor it 127.0.0.1 " +
                                                 std::to_string(primary.port()) +
                                                 " 1\n"
                                                 "sentinel down-after-milliseconds it 60000\n"
                                                 "sentinel failover-timeout it 8000\n"}};
    support::tcp_proxy name{primary.port()};

    watched_pair()
    {
        REQUIRE(soon([&] {
            return says(replica, "replication", "master_link_status:up") &&
                   says(sentinel, "sentinel", "status=ok") &&
                   says(sentinel, "sentinel", "slaves=1");
        }));
    }
    /// Who stands still for a moment is not taken for dead, and nobody put in its place, unless it is.
    void kill_primary()
    {
        primary.kill9();
        REQUIRE(sentinel.cli("SENTINEL", "SET", "it", "down-after-milliseconds", 500).text == "OK");
    }
    /// The replica is the primary; the name does not lead there yet.
    void await_failover()
    {
        const auto has_happened = [&] {
            return says(replica, "replication", "role:master") &&
                   sentinel.cli("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "it").parts.at(1).text ==
                       std::to_string(replica.port());
        };
        REQUIRE(soon(has_happened, 90s)); // the Sentinel may have to begin again
    }

    static bool says(redis_server& server, const char* section, const char* text)
    {
        return answer_of(server, "INFO", section).text.find(text) != std::string::npos;
    }
    static bool becomes_replica(redis_server& server, const redis_server& primary)
    {
        return answer_of(server, "REPLICAOF", "127.0.0.1", primary.port()).text.starts_with("OK");
    }

    /// None when there is none: a Sentinel closes the connections to whom it promotes or makes a replica.
    template <class... Words>
    static support::redis_answer answer_of(redis_server& server, const Words&... words)
    {
        try {
            return server.cli(words...);
        } catch (const std::runtime_error&) {
            return {};
        }
    }
};

} // namespace

TEST_CASE("redis: a lease that the replica has outlives a failover by a Sentinel",
          "[redis][faults]")
{
    watched_pair pair;
    lease_client a{pair.name.url()};
    auto l = a.acquire("k", renewed);
    REQUIRE(soon([&] { return pair.replica.cli("EXISTS", lock_name("k")).number == 1; }));
    SECTION("the primary has died")
    {
        pair.kill_primary();
        pair.await_failover();
    }
    SECTION("the primary is made a replica")
    {
        REQUIRE(soon([&] { return pair.sentinel.cli("SENTINEL", "FAILOVER", "it").text == "OK"; }));
        pair.await_failover();
        // As the Sentinel does it itself, ten seconds later.
        REQUIRE(soon([&] { return pair.becomes_replica(pair.primary, pair.replica); }));
        try { // the name leads to it yet
            const auto other = a.acquire("other");
            FAIL("it was granted");
        } catch (const amux::backend_error& e) {
            CHECK(e.kind() == amux::backend_error_kind::permanent);
        }
    }
    pair.name.lead_to(pair.replica.port());
    CHECK(a.hears("renew", "k", a.heard("renew") + 2));
    CHECK(l.is_held());
    CHECK(a.heard("lost") == 0);
    CHECK(sync_wait(l.release()));
    CHECK(a.acquire("k").fence() > l.fence());
}

TEST_CASE("redis: a lease that the replica had not got yet is lost in a failover, and told",
          "[redis][faults]")
{
    watched_pair pair;
    lease_client a{pair.name.url()};
    REQUIRE(a.acquire("connected").is_held());
    pair.replica.pause();
    REQUIRE(pair.primary.cli("CLIENT", "KILL", "TYPE", "replica").number == 1);
    const auto l = a.acquire("k", renewed);
    pair.kill_primary();
    pair.replica.resume();
    pair.await_failover();
    pair.name.lead_to(pair.replica.port());
    CHECK(a.hears("lost", "k"));
    CHECK_FALSE(l.is_held());
    CHECK(a.acquire("k").fence() > l.fence()); // by the clock
}

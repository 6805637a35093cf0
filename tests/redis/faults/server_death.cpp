// SPDX-License-Identifier: BSL-1.0
// Without this file a server that dies, hangs and comes back may leave two holders, or a lease that nobody has.
#include "redis/support/lease_client.hpp"
#include "redis/support/redis_server.hpp"

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <string>

using namespace std::chrono_literals;
using support::lease_client;
using support::lock_name;
using support::redis_server;
using support::soon;

namespace {

const std::vector<std::string> durable{"--appendonly", "yes", "--appendfsync", "always"};

amux::redis_options impatient(const redis_server& server)
{
    amux::redis_options o;
    o.port = server.port();
    o.command_timeout = 300ms;
    o.connect_timeout = 300ms;
    return o;
}

} // namespace

TEST_CASE("redis: a lease outlives a server that is killed and has its data back",
          "[redis][faults]")
{
    redis_server server{durable};
    lease_client a{server.url()};
    lease_client b{server.url()};
    auto l = a.acquire("k", {.ttl = 20s, .renew = true, .renew_interval = 100ms});
    REQUIRE(a.hears("renew"));
    server.restart();
    const int renewed = a.heard("renew");
    CHECK_FALSE(b.try_acquire("k"));
    CHECK(a.hears("renew", "k", renewed + 2));
    CHECK(l.is_held());
    CHECK(a.heard("lost") == 0);
    CHECK(amux::sync_wait(l.release()));
}

TEST_CASE("redis: a holder is told when the server has lost its data, and the next fence is higher",
          "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    lease_client b{server.url()};
    auto l = a.acquire("k", {.ttl = 20s, .renew = true, .renew_interval = 100ms});
    server.restart();
    const auto next = b.acquire("k");
    CHECK(next.fence() > l.fence());
    CHECK(a.hears("lost", "k"));
    CHECK_FALSE(l.is_held());
    CHECK(next.is_held());
    CHECK(amux::sync_wait(next.verify()));
}

TEST_CASE("redis: while the server is down for longer than the ttl the lease ends by itself",
          "[redis][faults]")
{
    redis_server server{durable};
    lease_client a{impatient(server)};
    lease_client b{impatient(server)};
    auto l = a.acquire("k", {.ttl = 1s, .renew = true});
    server.kill9();
    auto next = std::async(std::launch::async, [&] { return b.acquire("k"); });
    CHECK(a.hears("lost", "k"));
    CHECK_FALSE(l.is_held());
    CHECK(b.hears("error", "127.0.0.1:" + std::to_string(server.port())));
    CHECK(b.hears("error", "'k'"));
    server.restart();
    const auto got = next.get();
    CHECK(got.fence() > l.fence());
    CHECK(got.is_held());
}

TEST_CASE("redis: while the server is down for less than the ttl the lease goes on",
          "[redis][faults]")
{
    redis_server server{durable};
    lease_client a{impatient(server)};
    const auto l = a.acquire("k", {.ttl = 20s, .renew = true, .renew_interval = 100ms});
    server.kill9();
    CHECK(a.hears("error", "k"));
    server.restart();
    const int renewed = a.heard("renew");
    CHECK(a.hears("renew", "k", renewed + 1));
    CHECK(l.is_held());
    CHECK(a.heard("lost") == 0);
}

TEST_CASE("redis: a server that stands still for longer than the ttl revives nothing",
          "[redis][faults]")
{
    redis_server server;
    lease_client a{impatient(server)};
    auto l = a.acquire("k", {.ttl = 1s, .renew = true});
    server.pause();
    CHECK(a.hears("lost", "k"));
    CHECK_FALSE(l.is_held());
    server.resume();
    CHECK(soon([&] { return server.cli("EXISTS", lock_name("k")).number == 0; }));
    CHECK_FALSE(amux::sync_wait(l.release()));
    const auto next = a.acquire("k");
    CHECK(next.fence() > l.fence());
}

TEST_CASE("redis: an acquire whose caller has stopped waiting leaves no lease behind",
          "[redis][faults]")
{
    redis_server server;
    lease_client a{impatient(server)};
    REQUIRE(a.acquire("warm").is_held());
    server.pause();
    CHECK_THROWS_AS(a.acquire("k", {.max_wait = 700ms}), amux::lock_wait_timeout_error);
    server.resume();
    CHECK(amux::sync_wait(a.locks.drain(20s)));
    CHECK(server.cli("EXISTS", lock_name("k")).number == 0);
}

TEST_CASE("redis: kills of the server in the middle of acquires leave one holder and rising fences",
          "[redis][faults]")
{
    redis_server server{durable};
    lease_client a{impatient(server)};
    lease_client b{impatient(server)};
    std::atomic<bool> enough{false};
    std::atomic<int> rounds{0};
    std::atomic<int> inside{0};
    std::atomic<int> together{0};
    const auto work = [&](lease_client& c) {
        for (std::optional<amux::fencing_token> last; !enough; ++rounds) {
            auto l = c.acquire("k", {.ttl = 20s, .poll_interval = 20ms});
            together += inside++ != 0;
            together += last && l.fence() <= last;
            last = l.fence();
            --inside;
            try {
                amux::sync_wait(l.release());
            } catch (const amux::backend_error&) { // tried again in the background
            }
        }
    };
    auto first = std::async(std::launch::async, [&] { work(a); });
    auto second = std::async(std::launch::async, [&] { work(b); });
    for (int kills = 0; kills < 5; ++kills) {
        const int seen = rounds;
        CHECK(soon([&] { return rounds >= seen + 20; }));
        server.restart();
    }
    enough = true;
    first.get();
    second.get();
    CHECK(together == 0);
    CHECK(rounds >= 100);
}

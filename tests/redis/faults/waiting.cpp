// SPDX-License-Identifier: BSL-1.0
// Without this file a release may go unheard, and subscriptions may pile up in the server.
#include "redis/support/lease_client.hpp"
#include "redis/support/redis_server.hpp"
#include "redis/support/tcp_proxy.hpp"
#include "support/scale.hpp"

#include <amux/spawn.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <stop_token>
#include <string>
#include <string_view>

using namespace std::chrono_literals;
using amux::sync_wait;
using support::channel_name;
using support::lease_client;
using support::lock_name;
using support::redis_server;
using support::soon;
using support::tcp_proxy;

namespace {

/// Polls so seldom that whoever gets the lease has not polled.
constexpr amux::acquire_options patient{.ttl = 100s, .max_wait = 300s, .poll_interval = 200s};

long long subscribers(redis_server& server, const std::string& key)
{
    return server.cli("PUBSUB", "NUMSUB", channel_name(key)).parts.at(1).number;
}

std::size_t channels(redis_server& server)
{
    return server.cli("PUBSUB", "CHANNELS").parts.size();
}

/// How many connections are subscribed, or were.
long long subscriber_connections(redis_server& server)
{
    const std::string list = server.cli("CLIENT", "LIST", "TYPE", "pubsub").text;
    return std::count(list.begin(), list.end(), '\n');
}

std::future<amux::acquired_lock> wait_for(lease_client& c, const char* key)
{
    return std::async(std::launch::async, [&c, key] { return c.acquire(key, patient); });
}

} // namespace

TEST_CASE("redis: a release wakes who waits in another process, not a poll", "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    lease_client b{server.url()};
    for (int n = 0; n < 20; ++n) {
        auto l = a.acquire("k", patient);
        auto next = wait_for(b, "k");
        REQUIRE(soon([&] { return subscribers(server, "k") == 1; }));
        CHECK(sync_wait(l.release()));
        REQUIRE(next.wait_for(30s) == std::future_status::ready);
        CHECK(sync_wait(next.get().release()));
    }
    CHECK(soon([&] { return channels(server) == 0; }));
}

TEST_CASE("redis: a release between the refusal and the subscription is not missed",
          "[redis][faults]")
{
    std::atomic<bool> seen{false};
    std::atomic<bool> looked{false}; // an acquire names the counter of fences too
    std::promise<void> released;
    redis_server server;
    tcp_proxy proxy{server.port()};
    lease_client a{server.url()};
    lease_client b{proxy.url() + "?command_timeout=60000&connect_timeout=60000"};
    proxy.decide([&](const tcp_proxy::message& m) {
        tcp_proxy::fate f;
        if (m.bytes.find("SUBSCRIBE") != std::string_view::npos && !seen.exchange(true))
            released.get_future().wait_for(30s); // and the proxy passes nothing on meanwhile
        if (seen && m.bytes.find("EVAL") != std::string_view::npos &&
            m.bytes.find(support::fence_name) == std::string_view::npos)
            looked = true;
        return f;
    });
    auto l = a.acquire("k", patient);
    auto next = wait_for(b, "k");
    REQUIRE(soon([&] { return seen.load(); }));
    CHECK(subscribers(server, "k") == 0);
    CHECK(sync_wait(l.release()));
    released.set_value();
    REQUIRE(next.wait_for(30s) == std::future_status::ready);
    CHECK(next.get().is_held());
    CHECK(looked);
}

TEST_CASE("redis: a wait goes on when the question that follows the subscription fails",
          "[redis][faults]")
{
    std::atomic<bool> subscribed{false};
    std::atomic<bool> cut{false};
    redis_server server;
    tcp_proxy proxy{server.port()};
    lease_client a{server.url()};
    lease_client b{proxy.url()};
    proxy.decide([&](const tcp_proxy::message& m) {
        tcp_proxy::fate f;
        subscribed = subscribed || m.bytes.find("SUBSCRIBE") != std::string_view::npos;
        if (subscribed && m.bytes.find("EVAL") != std::string_view::npos && !cut.exchange(true))
            f.what = tcp_proxy::fate::kind::reset;
        return f;
    });
    auto l = a.acquire("k", patient);
    auto next = wait_for(b, "k");
    REQUIRE(soon([&] { return cut.load(); }));
    REQUIRE(soon([&] { return subscribers(server, "k") == 1; }));
    CHECK(sync_wait(l.release()));
    REQUIRE(next.wait_for(30s) == std::future_status::ready);
    CHECK(next.get().is_held());
}

TEST_CASE("redis: a message that is none of a release grants nothing", "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    lease_client b{server.url()};
    auto l = a.acquire("k", patient);
    auto next = std::async(std::launch::async, [&] {
        return b.acquire("k", {.ttl = 100s, .max_wait = 300s, .poll_interval = 1s});
    });
    for (int n = 0; n < 20; ++n) {
        server.cli("PUBLISH", channel_name("k"), std::string(static_cast<std::size_t>(n), 'x'));
        CHECK(next.wait_for(5ms) == std::future_status::timeout);
    }
    CHECK(sync_wait(l.verify()));
    CHECK(sync_wait(l.release()));
    REQUIRE(next.wait_for(30s) == std::future_status::ready);
    CHECK(next.get().is_held());
}

TEST_CASE("redis: subscriptions are made again at a server that was away", "[redis][faults]")
{
    redis_server server{{"--appendonly", "yes", "--appendfsync", "always"}};
    lease_client a{server.url()};
    lease_client b{server.url()};
    auto l = a.acquire("k", patient);
    auto next = wait_for(b, "k");
    REQUIRE(soon([&] { return subscribers(server, "k") == 1; }));
    server.restart();
    REQUIRE(soon([&] { return subscribers(server, "k") == 1; }));
    CHECK(sync_wait(l.release()));
    REQUIRE(next.wait_for(30s) == std::future_status::ready);
    CHECK(next.get().is_held());
}

TEST_CASE("redis: any number of keys waited for takes one connection, and leaves no channel",
          "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url() + "?command_timeout=60000"}; // however slow the machine
    const int count = std::min(20'000, support::scaled(10'000));
    for (int n = 0; n < count; ++n)
        server.cli("SET", lock_name("key-" + std::to_string(n)), "a stranger");
    std::stop_source enough;
    std::atomic<int> ended{0};
    const auto wait = [](lease_client& c, std::string key, std::stop_token stop,
                         std::atomic<int>& n) -> amux::task<> {
        co_await c.backend.wait_for_release(key, stop);
        ++n;
    };
    for (int n = 0; n < count; ++n)
        amux::spawn(a.thread.loop(),
                    wait(a, "key-" + std::to_string(n), enough.get_token(), ended));
    REQUIRE(soon([&] { return channels(server) == static_cast<std::size_t>(count); }));
    CHECK(subscriber_connections(server) == 1);
    for (int n = 0; n < count / 2; ++n) // half of them by a word, half by a stop
        server.cli("PUBLISH", channel_name("key-" + std::to_string(n)), "");
    REQUIRE(soon([&] { return ended >= count / 2; }));
    enough.request_stop();
    CHECK(soon([&] { return ended == count; }));
    CHECK(soon([&] { return channels(server) == 0; }));
    CHECK(subscriber_connections(server) <= 1);
    CHECK(a.heard("error") == 0);
}

TEST_CASE("redis: waits that end by grant, time-out, stop and destruction leave no channel",
          "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    for (int n = 0; n < 40; ++n) {
        lease_client b{server.url()};
        const std::string key = "k" + std::to_string(n);
        auto l = a.acquire(key, patient);
        std::stop_source stop;
        auto next = std::async(std::launch::async, [&] {
            auto o = patient;
            if (n % 4 == 1)
                o.max_wait = 150ms;
            try {
                return b.acquire(key, o, stop.get_token()).is_held();
            } catch (const amux::lock_error&) {
                return false;
            }
        });
        if (n % 4 != 1)
            REQUIRE(soon([&] { return subscribers(server, key) == 1; }));
        if (n % 4 == 0)
            sync_wait(l.release());
        if (n % 4 == 2)
            stop.request_stop();
        if (n % 4 == 3)
            CHECK(sync_wait(b.locks.drain(20s)));
        CHECK(next.get() == (n % 4 == 0));
    }
    CHECK(soon([&] { return channels(server) == 0; }));
    CHECK(soon([&] { return subscriber_connections(server) == 0; }));
}

TEST_CASE("redis: a wait whose coroutine is destroyed is forgotten", "[redis][faults]")
{
    redis_server server;
    amux::redis_backend b{server.url()};
    server.cli("SET", lock_name("k"), "a stranger");
    for (int n = 0; n < 50; ++n) {
        amux::event_loop loop;
        const auto wait = [](amux::redis_backend& in) -> amux::task<> {
            co_await in.wait_for_release("k", {});
        };
        amux::spawn(loop, wait(b));
        loop.run_ready();
        if (n % 2 == 0)
            REQUIRE(soon([&] { return subscribers(server, "k") == 1; }));
    }
    CHECK(soon([&] { return channels(server) == 0; }));
}

TEST_CASE("redis: a waiter asks no more often than it polls, whatever the holder does",
          "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    lease_client b{server.url()};
    const auto l = a.acquire("k", {.ttl = 100s});
    server.cli("CONFIG", "RESETSTAT");
    CHECK_THROWS_AS(b.acquire("k", {.max_wait = 2s, .poll_interval = 400ms}),
                    amux::lock_wait_timeout_error);
    // At most every 300 ms an acquire, and a look with each subscription.
    const std::string stats = server.cli("INFO", "commandstats").text;
    const auto at = stats.find("cmdstat_evalsha:calls=");
    REQUIRE(at != std::string::npos);
    CHECK(std::stoi(stats.substr(at + std::string_view{"cmdstat_evalsha:calls="}.size())) <= 20);
}

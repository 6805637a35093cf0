// SPDX-License-Identifier: BSL-1.0
// Without this file what strangers, and odd names, do to the keys in the store may be taken for a lease.
#include "redis/support/lease_client.hpp"
#include "redis/support/redis_server.hpp"
#include "support/scale.hpp"

#include <amux/when_all.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using amux::backend_error_kind;
using amux::sync_wait;
using support::fence_name;
using support::lease_client;
using support::lock_name;
using support::redis_server;
using support::soon;

TEST_CASE("redis: a holder whose key was deleted is told, and the next fence is higher",
          "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    auto l = a.acquire("k", {.ttl = 20s, .renew = true, .renew_interval = 100ms});
    REQUIRE(server.cli("DEL", lock_name("k")).number == 1);
    CHECK(a.hears("lost", "k"));
    CHECK_FALSE(l.is_held());
    CHECK_THROWS_AS(sync_wait(l.extend()), amux::lock_ended_error);
    CHECK(a.acquire("k").fence() > l.fence());
}

TEST_CASE("redis: an extend does not touch the lease of a stranger", "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    for (const std::string value : {"a stranger", "", "amux1:7:strange:5:"}) {
        auto l = a.acquire("k");
        REQUIRE(server.cli("SET", lock_name("k"), value, "PX", 100'000).text == "OK");
        CHECK_THROWS_AS(sync_wait(l.extend(200'000ms)), amux::lock_ended_error);
        CHECK_FALSE(l.is_held());
        CHECK(server.cli("PTTL", lock_name("k")).number <= 100'000);
        CHECK_FALSE(sync_wait(l.release()));
        CHECK(server.cli("GET", lock_name("k")).text == value);
        server.cli("DEL", lock_name("k"));
    }
}

TEST_CASE("redis: a key that a stranger set without a ttl is waited for with a cap",
          "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    REQUIRE(server.cli("SET", lock_name("k"), "a stranger").text == "OK");
    SECTION("a time-out names the key")
    {
        try {
            const auto l = a.acquire("k", {.max_wait = 300ms});
            FAIL("it was granted");
        } catch (const amux::lock_wait_timeout_error& e) {
            CHECK(e.key() == "k");
            CHECK(std::string{e.what()}.find("'k'") != std::string::npos);
        }
    }
    SECTION("deleted without a word it is noticed long before the poll")
    {
        auto next = std::async(std::launch::async, [&] {
            return a.acquire("k", {.max_wait = 300s, .poll_interval = 200s});
        });
        REQUIRE(soon([&] {
            return server.cli("PUBSUB", "NUMSUB", support::channel_name("k")).parts.at(1).number >
                   0;
        }));
        REQUIRE(server.cli("DEL", lock_name("k")).number == 1);
        REQUIRE(next.wait_for(60s) == std::future_status::ready);
        CHECK(next.get().is_held());
    }
}

TEST_CASE("redis: any bytes are a key, and no two of them meet in the store", "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    using namespace std::string_literals;
    const std::array keys{"%s%n%d%b"s,
                          "a b"s,
                          "a\r\nb"s,
                          "a\0b"s,
                          "a\0"s,
                          "a"s,
                          "{a}"s,
                          "}{"s,
                          "*2\r\n$1\r\nx"s,
                          "a:lock"s,
                          ":a"s,
                          "\xff\xfe"s,
                          "lock:a"s,
                          "free:a"s,
                          "fence"s,
                          " "s,
                          "'"s,
                          "a:"s,
                          "{amux}:lock:a"s,
                          std::string(65'536, 'x'),
                          std::string(65'535, 'x')};
    std::vector<amux::acquired_lock> held;
    for (const auto& key : keys) {
        held.push_back(a.acquire(key, {.ttl = 100s, .metadata = key}));
        CHECK(server.cli("EXISTS", lock_name(key)).number == 1);
    }
    CHECK(server.cli("DBSIZE").number == static_cast<long long>(keys.size()) + 1);
    for (auto& l : held) {
        CHECK(sync_wait(l.verify()));
        const auto info = sync_wait(a.locks.inspect(l.key()));
        REQUIRE(info);
        CHECK(info->token == l.token());
        CHECK(info->fence == l.fence());
        CHECK(info->metadata == l.key());
        CHECK_NOTHROW(sync_wait(l.extend()));
        CHECK(sync_wait(l.release()));
    }
    CHECK(server.cli("DBSIZE").number == 1);
    CHECK(a.heard("error") == 0);
}

TEST_CASE("redis: tokens of any bytes own their own leases only", "[redis][faults]")
{
    redis_server server;
    amux::redis_backend b{server.url()};
    using namespace std::string_literals;
    const std::array tokens{"1:x"s, "x"s, "amux1:1:x:5:"s, "amux1:"s, "\0"s, "a\r\n"s, "%s"s, ":"s};
    for (const auto& token : tokens) {
        const auto first = sync_wait(b.acquire("k", token, 100s, "1:2:3"));
        REQUIRE(first.acquired);
        CHECK(sync_wait(b.get("k")) == token);
        CHECK(sync_wait(b.acquire("k", token, 100s)).fence == first.fence);
        for (const auto& other : tokens) {
            if (other == token)
                continue;
            CHECK_FALSE(sync_wait(b.acquire("k", other, 100s)).acquired);
            CHECK_FALSE(sync_wait(b.extend("k", other, 100s)));
            CHECK_FALSE(sync_wait(b.release("k", other)));
        }
        CHECK(sync_wait(b.release("k", token)));
    }
}

TEST_CASE("redis: a counter of fences that was overwritten grants nothing", "[redis][faults]")
{
    redis_server server;
    amux::redis_backend b{server.url()};
    for (const char* value : {"no number", "9223372036854775807", "1.5"}) {
        REQUIRE(server.cli("SET", fence_name, value).text == "OK");
        try {
            sync_wait(b.acquire("k", "token", 100s));
            FAIL("it was granted");
        } catch (const amux::backend_error& e) {
            CHECK(e.kind() == backend_error_kind::permanent);
        }
        CHECK(server.cli("EXISTS", lock_name("k")).number == 0);
    }
    REQUIRE(server.cli("DEL", fence_name).number == 1);
    CHECK(sync_wait(b.acquire("k", "token", 100s)).acquired);
}

TEST_CASE("redis: fences rise by one beyond what a double can tell apart", "[redis][faults]")
{
    redis_server server;
    amux::redis_backend b{server.url()};
    REQUIRE(server.cli("SET", fence_name, "9007199254740993").text == "OK"); // 2^53 + 1
    const auto first = sync_wait(b.acquire("a", "token", 100s));
    const auto second = sync_wait(b.acquire("b", "token", 100s));
    CHECK(first.fence == 9007199254740994u);
    CHECK(second.fence == 9007199254740995u);
    CHECK(sync_wait(b.acquire("a", "token", 100s)).fence == first.fence);
}

TEST_CASE("redis: fences rise also over the loss of all data", "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    lease_client b{server.url()};
    const auto before = a.acquire("k");
    SECTION("flushed")
    {
        REQUIRE(server.cli("FLUSHALL").text == "OK");
    }
    SECTION("evicted")
    {
        REQUIRE(server.cli("DEL", fence_name).number == 1);
        REQUIRE(server.cli("DEL", lock_name("k")).number == 1);
    }
    SECTION("an empty server in its place")
    {
        server.restart();
    }
    const auto after = b.acquire("k");
    CHECK(after.fence() > before.fence());
}

TEST_CASE("redis: leases on many keys, one after the other, leave one counter behind",
          "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url() + "?command_timeout=60000"}; // however slow the machine
    const int each = std::min(10'000, support::scaled(1'000));
    const auto work = [](lease_client& c, int from, int until) -> amux::task<> {
        amux::fencing_token last = 0;
        for (int n = from; n < until; ++n) {
            auto l = co_await c.locks.acquire("key-" + std::to_string(n));
            if (l.fence() <= last)
                throw std::logic_error("a fence does not rise");
            last = *l.fence();
            co_await l.release();
        }
    };
    std::vector<amux::task<>> all;
    for (int n = 0; n < 32; ++n)
        all.push_back(work(a, n * each, (n + 1) * each));
    sync_wait(amux::when_all(std::move(all)));
    CHECK(server.cli("DBSIZE").number == 1);
    CHECK(server.cli("GET", fence_name).text.size() >= 16);
    INFO(a.everything("error"));
    CHECK(a.heard("error") == 0);
}

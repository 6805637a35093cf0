// SPDX-License-Identifier: BSL-1.0
// Without this file a server that is full, locked or the wrong one is met for the first time in production.
#include "redis/support/lease_client.hpp"
#include "redis/support/redis_server.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <hiredis/hiredis.h>

using namespace std::chrono_literals;
using amux::backend_error_kind;
using amux::sync_wait;
using support::lease_client;
using support::lock_name;
using support::redis_server;
using support::soon;

namespace {

/// What an attempt to acquire runs into.
amux::backend_error trouble_with(amux::redis_backend& b)
{
    try {
        sync_wait(b.acquire("wanted", "token", 10s));
    } catch (const amux::backend_error& e) {
        return e;
    }
    throw std::logic_error("it was granted");
}

bool says(const std::exception& e, const std::string& text)
{
    return std::string{e.what()}.find(text) != std::string::npos;
}

amux::redis_options options_of(const redis_server& server)
{
    amux::redis_options o;
    o.port = server.port();
    return o;
}

} // namespace

TEST_CASE("redis: a full server grants nothing new, and keeps what is held", "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    auto l = a.acquire("k", {.ttl = 20s, .renew = true, .renew_interval = 100ms});
    REQUIRE(server.cli("CONFIG", "SET", "maxmemory", 1).text == "OK");
    const auto trouble = trouble_with(a.backend);
    CHECK(trouble.kind() == backend_error_kind::not_applied);
    CHECK(says(trouble, "OOM"));
    CHECK(a.hears("renew", "k", a.heard("renew") + 2));
    CHECK_NOTHROW(sync_wait(l.extend()));
    CHECK_NOTHROW(sync_wait(l.verify()));
    auto wanted = std::async(std::launch::async, [&] { return a.acquire("other"); });
    CHECK(a.hears("error", "OOM"));
    REQUIRE(server.cli("CONFIG", "SET", "maxmemory", 0).text == "OK");
    CHECK(wanted.get().is_held());
    CHECK(sync_wait(l.release()));
    CHECK(a.heard("lost") == 0);
}

TEST_CASE("redis: a full server still lets a lease go", "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    auto l = a.acquire("k");
    REQUIRE(server.cli("CONFIG", "SET", "maxmemory", 1).text == "OK");
    CHECK(sync_wait(l.release()));
    CHECK(server.cli("EXISTS", lock_name("k")).number == 0);
}

TEST_CASE("redis: a server that would evict leases is refused, and the message says what to do",
          "[redis][faults]")
{
    for (const std::string policy : {"allkeys-lru", "volatile-ttl", "allkeys-random"}) {
        redis_server server{{"--maxmemory", "100mb", "--maxmemory-policy", policy}};
        amux::redis_backend b{server.url()};
        const auto trouble = trouble_with(b);
        CHECK(trouble.kind() == backend_error_kind::permanent);
        CHECK(says(trouble, policy));
        CHECK(says(trouble, "noeviction"));
    }
}

TEST_CASE("redis: a replica is refused by name, and one that was a primary is left",
          "[redis][faults]")
{
    redis_server primary;
    redis_server server;
    SECTION("from the beginning")
    {
        REQUIRE(server.cli("REPLICAOF", "127.0.0.1", primary.port()).text == "OK");
        amux::redis_backend b{server.url()};
        const auto trouble = trouble_with(b);
        CHECK(trouble.kind() == backend_error_kind::permanent);
        CHECK(says(trouble, "replica"));
        CHECK(says(trouble, "127.0.0.1:" + std::to_string(primary.port())));
    }
    SECTION("while a lease is held")
    {
        lease_client a{server.url()};
        const auto l = a.acquire("k", {.ttl = 4s, .renew = true, .renew_interval = 100ms});
        REQUIRE(server.cli("REPLICAOF", "127.0.0.1", primary.port()).text == "OK");
        CHECK(a.hears("error", "k"));
        CHECK(a.hears("lost", "k"));
        REQUIRE(server.cli("REPLICAOF", "NO", "ONE").text == "OK");
        CHECK(soon([&] {
            try {
                return a.acquire("k").is_held();
            } catch (const amux::backend_error&) {
                return false;
            }
        }));
    }
}

TEST_CASE("redis: a password is asked for, refused and taken, and never printed", "[redis][faults]")
{
    redis_server server{{"--requirepass", "correct horse"}};
    amux::redis_options o = options_of(server);
    std::string user = "default";
    SECTION("none")
    {
        amux::redis_backend b{o};
        const auto trouble = trouble_with(b);
        CHECK(trouble.kind() == backend_error_kind::permanent);
        CHECK(says(trouble, "NOAUTH"));
        CHECK(says(trouble, std::to_string(server.port())));
    }
    SECTION("a wrong one")
    {
        o.password = "battery staple";
        o.username = GENERATE("", "default", "nobody");
        amux::redis_backend b{o};
        const auto trouble = trouble_with(b);
        CHECK(trouble.kind() == backend_error_kind::permanent);
        CHECK(says(trouble, "WRONGPASS"));
        CHECK_FALSE(says(trouble, "battery"));
    }
    SECTION("the right one")
    {
        o.password = "correct horse";
        amux::redis_backend b{o};
        CHECK(sync_wait(b.acquire("k", "token", 10s)).acquired);
        amux::redis_backend by_url{"redis://:correct%20horse@127.0.0.1:" +
                                   std::to_string(server.port())};
        CHECK(sync_wait(by_url.get("k")) == "token");
    }
}

TEST_CASE("redis: a password that is changed ends no lease before its time, and is named",
          "[redis][faults]")
{
    redis_server server{{"--requirepass", "old"}};
    amux::redis_options o = options_of(server);
    o.password = "old";
    lease_client a{o};
    const bool set_back = GENERATE(true, false);
    const auto l =
        a.acquire("k", {.ttl = set_back ? 60s : 4s, .renew = true, .renew_interval = 100ms});
    REQUIRE(server.cli("CONFIG", "SET", "requirepass", "new").text == "OK");
    REQUIRE(server.cli("CLIENT", "KILL", "TYPE", "normal").number >= 1);
    CHECK(a.hears("error", "WRONGPASS"));
    CHECK(a.heard("lost") == 0);
    if (set_back) {
        REQUIRE(server.cli("CONFIG", "SET", "requirepass", "old").text == "OK");
        CHECK(a.hears("renew", "k", a.heard("renew") + 1));
        CHECK(l.is_held());
    } else {
        CHECK(a.hears("lost", "k"));
        CHECK_FALSE(l.is_held());
    }
}

TEST_CASE("redis: a server without room for another client is named, and asked again",
          "[redis][faults]")
{
    redis_server server;
    REQUIRE(server.cli("CONFIG", "SET", "maxclients", 2).text == "OK");
    using connection = std::unique_ptr<redisContext, void (*)(redisContext*)>;
    std::vector<connection> others;
    others.emplace_back(redisConnect("127.0.0.1", server.port()), &redisFree);
    REQUIRE(soon([&] {
        return server.cli("CLIENT", "LIST").text.find("id=4") != std::string::npos ||
               server.cli("INFO", "clients").text.find("connected_clients:2") != std::string::npos;
    }));
    lease_client a{server.url()};
    auto wanted = std::async(std::launch::async, [&] { return a.acquire("k"); });
    CHECK(a.hears("error", "max number of clients"));
    REQUIRE(server.cli("CONFIG", "SET", "maxclients", 100).text == "OK");
    CHECK(wanted.get().is_held());
}

TEST_CASE("redis: who may not subscribe polls, and is told once", "[redis][faults]")
{
    redis_server server;
    REQUIRE(
        server.cli("ACL", "SETUSER", "app", "on", ">secret", "~*", "resetchannels", "+@all").text ==
        "OK");
    amux::redis_options o = options_of(server);
    o.username = "app";
    o.password = "secret";
    lease_client a{server.url()};
    lease_client b{o};
    for (int n = 0; n < 3; ++n) {
        auto l = a.acquire("k", {.ttl = 100s});
        auto next = std::async(std::launch::async, [&] {
            return b.acquire("k", {.max_wait = 60s, .poll_interval = 50ms});
        });
        CHECK(next.wait_for(300ms) == std::future_status::timeout);
        CHECK(sync_wait(l.release()));
        CHECK(sync_wait(next.get().release()));
    }
    CHECK(b.heard("error") == 1);
    CHECK(b.heard("error", "NOPERM") == 1);
}

TEST_CASE("redis: a key, or a time, that is too long is refused before the server is asked",
          "[redis][faults]")
{
    redis_server server;
    amux::redis_backend b{server.url()};
    const std::string longest(512 * 1024, 'k');
    CHECK(sync_wait(b.acquire(longest, "t", 60s)).acquired);
    CHECK(sync_wait(b.get(longest)) == "t");
    CHECK(sync_wait(b.release(longest, "t")));
    sync_wait(b.wait_for_release(longest));
    const std::string too_long = longest + "k";
    CHECK_THROWS_AS(sync_wait(b.acquire(too_long, "t", 60s)), amux::backend_error);
    CHECK_THROWS_AS(sync_wait(b.wait_for_release(too_long)), amux::backend_error);
    CHECK_THROWS_AS(sync_wait(b.acquire("k", "t", std::chrono::milliseconds::max())),
                    amux::backend_error);
    CHECK(server.cli("EXISTS", "{amux}:lock:k").number == 0);
}

TEST_CASE("redis: who waits for what a stranger has set does not fetch it", "[redis][faults]")
{
    redis_server server;
    amux::redis_backend b{server.url()};
    server.cli("SET", "{amux}:lock:k", std::string(3 << 20, 'v'), "PX", 50);
    sync_wait(b.wait_for_release(
        "k")); // the connection stands, though the value is longer than an answer may be
    CHECK(sync_wait(b.get("k")) == std::nullopt);
    CHECK(server.cli("INFO", "stats").text.find("total_connections_received:3\r") !=
          std::string::npos);
}

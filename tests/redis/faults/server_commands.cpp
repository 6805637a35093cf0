// SPDX-License-Identifier: BSL-1.0
// Without this file what an operator does to a living server may cost a lease.
#include "redis/support/lease_client.hpp"
#include "redis/support/redis_server.hpp"

#include <amux/when_all.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include <hiredis/hiredis.h>

using namespace std::chrono_literals;
using support::lease_client;
using support::lock_name;
using support::redis_server;
using support::soon;

namespace {

constexpr amux::acquire_options renewed_often{.ttl = 20s, .renew = true, .renew_interval = 100ms};

} // namespace

TEST_CASE("redis: renewals stand a pause of all writes that is longer than a command may take",
          "[redis][faults]")
{
    redis_server server;
    amux::redis_options o;
    o.port = server.port();
    o.command_timeout = 200ms;
    lease_client a{o};
    const auto l = a.acquire("k", renewed_often);
    REQUIRE(server.cli("CLIENT", "PAUSE", 20'000, "WRITE").text == "OK");
    CHECK(a.hears("error", "k"));
    REQUIRE(server.cli("CLIENT", "UNPAUSE").text == "OK");
    const int renewed_before = a.heard("renew");
    CHECK(a.hears("renew", "k", renewed_before + 2));
    CHECK(l.is_held());
    CHECK(a.heard("lost") == 0);
}

TEST_CASE(
    "redis: connections that the server kills are made again, and the first trouble ends no lease",
    "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    auto l = a.acquire("k", renewed_often);
    for (int n = 0; n < 5; ++n) {
        REQUIRE(a.hears("renew", "k", a.heard("renew") + 1));
        CHECK(server.cli("CLIENT", "KILL", "TYPE", "normal").number >= 1);
        const auto other = a.acquire("other" + std::to_string(n));
        CHECK(amux::sync_wait(other.verify()));
    }
    CHECK(l.is_held());
    CHECK(a.heard("lost") == 0);
    CHECK(amux::sync_wait(l.release()));
}

TEST_CASE("redis: a server that forgets all scripts is sent them again, unnoticed",
          "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    for (int n = 0; n < 3; ++n) {
        REQUIRE(server.cli("SCRIPT", "FLUSH").text == "OK");
        auto l = a.acquire("k");
        REQUIRE(server.cli("SCRIPT", "FLUSH").text == "OK");
        CHECK_NOTHROW(amux::sync_wait(l.extend()));
        CHECK(amux::sync_wait(l.verify()));
        REQUIRE(server.cli("SCRIPT", "FLUSH").text == "OK");
        CHECK(amux::sync_wait(l.release()));
        CHECK(server.cli("EXISTS", lock_name("k")).number == 0);
    }
    CHECK(a.heard("error") == 0);
}

TEST_CASE("redis: scripts forgotten in the middle of a pipeline cost no command", "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url() + "?command_timeout=60000"}; // however slow the machine
    std::vector<amux::task<amux::acquired_lock>> wanted;
    for (int n = 0; n < 200; ++n)
        wanted.push_back(a.locks.acquire("k" + std::to_string(n), renewed_often));
    auto flusher = std::async(std::launch::async, [&] {
        for (int n = 0; n < 50; ++n)
            server.cli("SCRIPT", "FLUSH");
    });
    const auto held = amux::sync_wait(amux::when_all(std::move(wanted)));
    flusher.get();
    CHECK(a.hears("renew", {}, 400));
    CHECK(a.heard("error") == 0);
    CHECK(a.heard("lost") == 0);
    for (const auto& l : held)
        CHECK(l.is_held());
}

TEST_CASE("redis: a server that is busy with a script has not carried out a request",
          "[redis][faults]")
{
    redis_server server{{"--busy-reply-threshold", "50"}};
    lease_client a{server.url()};
    const auto l = a.acquire("k", renewed_often);
    auto busy = std::async(std::launch::async, [&] {
        redisContext* const c = redisConnect("127.0.0.1", server.port());
        freeReplyObject(redisCommand(c, "EVAL %s 0", "while true do end"));
        redisFree(c);
    });
    REQUIRE(soon([&] { return server.cli("PING").text.starts_with("BUSY"); }));
    try {
        amux::sync_wait(a.backend.acquire("other", "token", 10s));
        FAIL("it was granted");
    } catch (const amux::backend_error& e) {
        CHECK(e.kind() == amux::backend_error_kind::not_applied);
        CHECK(std::string{e.what()}.find("BUSY") != std::string::npos);
        CHECK(std::string{e.what()}.find("other") != std::string::npos);
    }
    CHECK(a.hears("error", "BUSY"));
    CHECK(l.is_held());
    REQUIRE(server.cli("SCRIPT", "KILL").text == "OK");
    busy.get();
    CHECK(a.hears("renew", "k", a.heard("renew") + 1));
    CHECK(l.is_held());
    CHECK(server.cli("EXISTS", lock_name("other")).number == 0);
}

TEST_CASE("redis: a server that sleeps under a hundred leases loses none", "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    std::vector<amux::task<amux::acquired_lock>> wanted;
    for (int n = 0; n < 100; ++n)
        wanted.push_back(a.locks.acquire("k" + std::to_string(n),
                                         {.ttl = 20s, .renew = true, .renew_interval = 300ms}));
    const auto held = amux::sync_wait(amux::when_all(std::move(wanted)));
    REQUIRE(server.cli("DEBUG", "SLEEP", "1.5").text == "OK");
    CHECK(soon([&] {
        for (int n = 0; n < 100; ++n) {
            if (server.cli("PTTL", lock_name("k" + std::to_string(n))).number < 19'000)
                return false;
        }
        return true;
    }));
    CHECK(a.heard("lost") == 0);
    for (const auto& l : held)
        CHECK(l.is_held());
}

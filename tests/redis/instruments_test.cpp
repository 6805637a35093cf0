// SPDX-License-Identifier: BSL-1.0
// Without this file a broken instrument would look like a broken library.
#include "redis/support/redis_server.hpp"

#include <catch2/catch_test_macros.hpp>

using support::redis_server;

TEST_CASE("redis_server: it keeps over a kill what it put on the disk", "[redis][instruments]")
{
    redis_server server{{"--appendonly", "yes", "--appendfsync", "always"}};
    REQUIRE(server.cli("SET", "a", 1).text == "OK");
    const int port = server.port();
    server.restart();
    CHECK(server.port() == port);
    CHECK(server.cli("GET", "a").text == "1");
}

TEST_CASE("redis_server: it forgets over a kill what it did not put on the disk",
          "[redis][instruments]")
{
    redis_server server;
    REQUIRE(server.cli("SET", "a", 1).text == "OK");
    server.restart();
    CHECK(server.cli("GET", "a").is_nil());
}

TEST_CASE("redis_server: a password in its arguments is the one that cli uses",
          "[redis][instruments]")
{
    redis_server server{{"--requirepass", "secret"}};
    CHECK(server.cli("PING").text == "PONG");
}

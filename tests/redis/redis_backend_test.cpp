// SPDX-License-Identifier: BSL-1.0
// Without this file the Redis backend could break the law of backends, and locks over it, on a server that is well.
#include <amux/redis_backend.hpp>

#include <redis/support/asked_here.hpp>
#include <redis/support/every_operation.hpp>
#include <redis/support/law.hpp>
#include <redis/support/redis_server.hpp>

#include <catch2/catch_test_macros.hpp>

static_assert(amux::fencing_backend<amux::redis_backend>);
static_assert(amux::metadata_backend<amux::redis_backend>);
static_assert(amux::notifying_backend<amux::redis_backend>);
static_assert(amux::inspecting_backend<amux::redis_backend>);

TEST_CASE("redis_backend: it keeps the law of backends", "[redis]")
{
    support::redis_server server;
    amux::redis_backend backend{support::at(server)};
    support::check_law(backend);
}

TEST_CASE("redis_backend: every operation goes over a Unix socket, given as a URL", "[redis]")
{
    support::redis_server server;
    amux::redis_backend backend{"unix://" + server.path() + "?database=3&prefix=other"};
    support::check_every_operation(backend);
    server.cli("SELECT", 3);
    CHECK(server.cli("EXISTS", "{other}:fence").number == 1);
}

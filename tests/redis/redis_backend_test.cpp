// SPDX-License-Identifier: BSL-1.0
// Without this file the Redis backend could break the law of backends, and locks over it, on a server that is well.
#include <amux/redis_backend.hpp>

#include <amux/event_loop.hpp>
#include <amux/task.hpp>
#include <amux/testing/conformance.hpp>
#include <amux/when_all.hpp>

#include <redis/support/redis_server.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <string>
#include <vector>

using namespace std::chrono_literals;

static_assert(amux::fencing_backend<amux::redis_backend>);
static_assert(amux::metadata_backend<amux::redis_backend>);
static_assert(amux::notifying_backend<amux::redis_backend>);
static_assert(amux::inspecting_backend<amux::redis_backend>);

TEST_CASE("redis_backend: it keeps the law of backends", "[redis]")
{
    support::redis_server server;
    amux::redis_backend backend{amux::redis_options{.port = server.port()}};
    for (const auto& r :
         amux::testing::run_conformance(backend, amux::testing::in_real_time("run "))) {
        INFO(r.name << ": " << r.message);
        CHECK(r.ok);
    }
}

TEST_CASE("redis_backend: it keeps the law over a Unix socket, given as a URL", "[redis]")
{
    support::redis_server server;
    amux::redis_backend backend{"unix://" + server.path() + "?database=3&prefix=other"};
    for (const auto& r :
         amux::testing::run_conformance(backend, amux::testing::in_real_time("run "))) {
        INFO(r.name << ": " << r.message);
        CHECK(r.ok);
    }
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a caller that goes while its lease is asked for on another loop may leave that loop with its frame.
#include <amux/distributed_lock.hpp>

#include <amux/event_loop.hpp>
#include <amux/loop_thread.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/memory_backend.hpp>
#include <amux/spawn.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>

#include "support/scale.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <memory>
#include <optional>

using namespace std::chrono_literals;
using locks_on_memory = amux::distributed_lock<amux::memory_backend&>;

namespace {

amux::task<> hold(locks_on_memory& locks, std::optional<amux::acquired_lock>& held)
{
    held.emplace(co_await locks.acquire("k", {.max_wait = amux::forever}));
}

amux::task<> want_for_a_moment(locks_on_memory& locks)
{
    const auto held = co_await locks.acquire("k", {.max_wait = amux::forever});
}

} // namespace

TEST_CASE("distributed_lock: a caller that is destroyed leaves the line", "[lease][lifetime]")
{
    amux::manual_event_loop loop;
    amux::memory_backend store{loop};
    locks_on_memory locks{store, loop};
    std::optional<amux::acquired_lock> first;
    std::optional<amux::acquired_lock> third;
    amux::spawn(loop, hold(locks, first));
    loop.run_ready();
    auto callers = std::make_unique<amux::manual_event_loop>();
    amux::spawn(*callers, want_for_a_moment(locks));
    callers->run_ready();
    loop.run_ready();
    amux::spawn(loop, hold(locks, third));
    loop.run_ready();
    callers.reset();
    first.reset();
    loop.run_ready();
    REQUIRE(third);
    CHECK(third->fence() == 2);
}

TEST_CASE("distributed_lock: a grant for a caller that is gone is given back", "[lease][lifetime]")
{
    amux::manual_event_loop loop;
    amux::memory_backend store{loop};
    locks_on_memory locks{store, loop};
    auto callers = std::make_unique<amux::manual_event_loop>();
    amux::spawn(*callers, want_for_a_moment(locks));
    callers->run_ready();
    SECTION("gone before it was asked for")
    {
        callers.reset();
        loop.run_ready();
        CHECK(store.size() == 0);
    }
    SECTION("gone with the answer on its way")
    {
        loop.run_ready();
        CHECK(store.size() == 1);
        callers.reset();
        CHECK(store.size() == 0);
        loop.run_ready();
    }
}

TEST_CASE("distributed_lock: it may be destroyed when its callers are gone, whatever its loop does",
          "[lease][lifetime]")
{
    amux::manual_event_loop loop;
    {
        amux::memory_backend store{loop};
        locks_on_memory locks{store, loop};
        amux::manual_event_loop callers;
        amux::spawn(callers, want_for_a_moment(locks));
        callers.run_ready();
    }
    loop.run_ready();
    loop.advance(1h);
    CHECK(loop.run_ready() == 0);
}

TEST_CASE("distributed_lock: callers go while its loop runs on another thread",
          "[lease][lifetime][stress]")
{
    for (int round = 0; round < support::scaled(300); ++round) {
        const auto brief = std::chrono::microseconds{round % 100};
        amux::loop_thread io;
        amux::memory_backend store;
        locks_on_memory locks{store, io.loop(), {.poll_interval = 1ms}};
        std::optional<amux::acquired_lock> held;
        if (round % 2 != 0)
            amux::sync_wait(hold(locks, held));
        {
            amux::event_loop callers;
            for (int i = 0; i < 5; ++i)
                amux::spawn(callers, want_for_a_moment(locks));
            callers.run_for(brief);
        }
        held.reset();
        if (round % 3 == 0)
            amux::sync_wait(want_for_a_moment(locks));
    }
    SUCCEED();
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a loop on a thread of its own may not run, not end, or end too late for its tasks.
#include <amux/loop_thread.hpp>

#include <amux/sync_wait.hpp>
#include <amux/task.hpp>

#include "support/death.hpp"
#include "support/node_recorder.hpp"
#include "support/probe.hpp"
#include "support/signals.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include <unistd.h>

using amux::loop_thread;
using amux::task;
using namespace std::chrono_literals;

TEST_CASE("loop_thread: what is sent to its loop runs on one thread, another one", "[loop_thread]")
{
    loop_thread thread;
    const auto visit = [&]() -> task<std::pair<std::thread::id, std::thread::id>> {
        co_await thread.loop().schedule();
        const auto first = std::this_thread::get_id();
        co_await thread.loop().sleep_for(1ms);
        co_return std::pair{first, std::this_thread::get_id()};
    };
    const auto [first, second] = amux::sync_wait(visit());
    CHECK(first == second);
    CHECK(first != std::this_thread::get_id());
}

TEST_CASE("loop_thread: its thread takes no signals, the one that made it all as before",
          "[loop_thread]")
{
    loop_thread thread;
    const auto ask = [&]() -> task<bool> {
        co_await thread.loop().schedule();
        co_return support::takes_no_signals();
    };
    CHECK(amux::sync_wait(ask()));
    CHECK_FALSE(support::takes_no_signals());
}

TEST_CASE("loop_thread: at its end what it was to run is destroyed, not run", "[loop_thread]")
{
    bool gone = false;
    bool ran_on = false;
    {
        loop_thread thread;
        const auto wait = [&](support::flag_on_destruction) -> task<> {
            co_await thread.loop().sleep_for(1h);
            ran_on = true;
        };
        thread.loop().spawn(wait(support::flag_on_destruction{gone}));
    }
    CHECK(gone);
    CHECK_FALSE(ran_on);
}

TEST_CASE("loop_thread: destroyed on its own thread it ends the program with a message",
          "[loop_thread][death]")
{
    const std::string said = support::death_of([] {
        auto* const thread = new loop_thread;
        support::calling destroying{[&] { delete thread; }};
        thread->loop().post(destroying);
        for (;;)
            pause();
    });
    CHECK(said.starts_with("amux: a loop_thread is destroyed on its own thread\n"));
}

TEST_CASE("loop_thread: a stop of its loop ends the thread; it may be destroyed all the same",
          "[loop_thread]")
{
    loop_thread thread;
    thread.loop().stop();
    SUCCEED();
}

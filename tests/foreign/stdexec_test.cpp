// SPDX-License-Identifier: BSL-1.0
// Without this file nobody knows whether a lock is a sender, and whether the task of stdexec keeps its scheduler.
#include "foreign/cases.hpp"

#include <amux/amux.hpp>

#include <catch2/catch_test_macros.hpp>
#include <exec/single_thread_context.hpp>
#include <exec/start_detached.hpp>
#include <exec/task.hpp>
#include <stdexec/execution.hpp>

#include <string>
#include <thread>
#include <tuple>
#include <utility>

using foreign::mux_type;
using task = exec::task<std::string>;

namespace {

void begin(task t, std::string& log)
{
    exec::start_detached(stdexec::starts_on(
        stdexec::inline_scheduler{},
        std::move(t) | stdexec::then([&log](const std::string& what) { log += what; })));
}

// [task]
exec::task<void> count_up(amux::asyncmux<>& mux, int& counter, int& elsewhere)
{
    const auto here = std::this_thread::get_id();
    for (int i = 0; i != 2'000; ++i) {
        const auto guard = co_await mux.lock("counter"); // goes on where the task runs
        ++counter;
        elsewhere += std::this_thread::get_id() == here ? 0 : 1;
    }
}
// [/task]

} // namespace

TEST_CASE("stdexec: a task waits for a lock, is handed it, and hands it on", "[foreign]")
{
    foreign::waits_and_is_handed_it<task>(begin);
}

TEST_CASE("stdexec: a task is stopped while it waits, and told so", "[foreign]")
{
    foreign::is_stopped_while_it_waits<task>(begin);
}

TEST_CASE("stdexec: tasks of three threads that share a lock count right, each on its own",
          "[foreign]")
{
    mux_type mux;
    exec::single_thread_context a;
    exec::single_thread_context b;
    exec::single_thread_context c;
    int counter = 0;
    int elsewhere = 0;
    const auto on = [&](auto& where) {
        return stdexec::starts_on(where.get_scheduler(), count_up(mux, counter, elsewhere));
    };
    stdexec::sync_wait(stdexec::when_all(on(a), on(b), on(c)));
    CHECK(counter == 6'000);
    CHECK(elsewhere == 0);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("stdexec: a lock is a sender", "[foreign]")
{
    mux_type mux;
    {
        const auto both =
            stdexec::sync_wait(stdexec::when_all(mux.lock("a"), mux.lock_shared("b")));
        REQUIRE(both);
        CHECK(mux.tracked_keys() == 2);
    }
    const auto asks = [](const mux_type::guard& g) { return g.owns_lock(); };
    const auto owned = stdexec::sync_wait(mux.lock("k") | stdexec::then(asks));
    REQUIRE(owned);
    CHECK(std::get<0>(*owned));
    mux.close();
    CHECK_THROWS_AS(stdexec::sync_wait(mux.lock("k")), amux::lock_closed_error);
}

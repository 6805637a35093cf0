// SPDX-License-Identifier: BSL-1.0
// Without this file nobody knows whether the locks work in the tasks and on the pool of libcoro.
#include "foreign/cases.hpp"
#include "support/foreign_coroutine.hpp"

#include <amux/amux.hpp>

#include <catch2/catch_test_macros.hpp>
#include <coro/coro.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

using foreign::mux_type;
using task = coro::task<std::string>;

namespace {

support::fire_and_forget begin(task t, std::string& log)
{
    log += co_await std::move(t);
}

// [pool]
coro::task<void> count_up(amux::asyncmux<>& mux, coro::thread_pool& pool, int& counter)
{
    co_await pool.schedule();
    const auto guard = co_await mux.lock("counter"); // goes on inside the unlock of another
    co_await pool.schedule(); // from here on in a thread's own turn, and with the lock
    ++counter;
}
// [/pool]

} // namespace

TEST_CASE("libcoro: a task waits for a lock, is handed it, and hands it on", "[foreign]")
{
    foreign::waits_and_is_handed_it<task>(begin);
}

TEST_CASE("libcoro: a task is stopped while it waits, and told so", "[foreign]")
{
    foreign::is_stopped_while_it_waits<task>(begin);
}

TEST_CASE("libcoro: tasks of a pool that share a lock count right", "[foreign]")
{
    mux_type mux;
    const auto pool = coro::thread_pool::make_unique({.thread_count = 3});
    int counter = 0;
    std::vector<coro::task<void>> tasks;
    for (int i = 0; i != 5'000; ++i)
        tasks.push_back(count_up(mux, *pool, counter));
    coro::sync_wait(coro::when_all(std::move(tasks)));
    CHECK(counter == 5'000);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("libcoro: its tasks and those of amux await each other", "[foreign]")
{
    mux_type mux;
    const auto ours = [](mux_type& m) -> amux::task<std::string> {
        co_return co_await foreign::lock_in<task>(m, {});
    };
    const auto theirs = [&](mux_type& m) -> task { co_return co_await ours(m); };
    CHECK(coro::sync_wait(theirs(mux)) == "k");
    CHECK(amux::sync_wait(theirs(mux)) == "k");
}

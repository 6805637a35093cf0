// SPDX-License-Identifier: BSL-1.0
// Without this file nobody knows whether the locks work in the tasks and on the pool of cppcoro.
#include "foreign/cases.hpp"
#include "support/foreign_coroutine.hpp"

#include <amux/amux.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cppcoro/static_thread_pool.hpp>
#include <cppcoro/sync_wait.hpp>
#include <cppcoro/task.hpp>
#include <cppcoro/when_all.hpp>

#include <string>
#include <utility>
#include <vector>

using foreign::mux_type;
using task = cppcoro::task<std::string>;

namespace {

support::fire_and_forget begin(task t, std::string& log)
{
    log += co_await std::move(t);
}

cppcoro::task<> count_up(mux_type& mux, cppcoro::static_thread_pool& pool, int& counter)
{
    co_await pool.schedule();
    const auto guard = co_await mux.lock("counter");
    co_await pool.schedule();
    ++counter;
}

} // namespace

TEST_CASE("cppcoro: a task waits for a lock, is handed it, and hands it on", "[foreign]")
{
    foreign::waits_and_is_handed_it<task>(begin);
}

TEST_CASE("cppcoro: a task is stopped while it waits, and told so", "[foreign]")
{
    foreign::is_stopped_while_it_waits<task>(begin);
}

TEST_CASE("cppcoro: tasks of a pool that share a lock count right", "[foreign]")
{
    mux_type mux;
    cppcoro::static_thread_pool pool{3};
    int counter = 0;
    std::vector<cppcoro::task<>> tasks;
    for (int i = 0; i != 5'000; ++i)
        tasks.push_back(count_up(mux, pool, counter));
    cppcoro::sync_wait(cppcoro::when_all(std::move(tasks)));
    CHECK(counter == 5'000);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("cppcoro: its tasks and those of amux await each other", "[foreign]")
{
    mux_type mux;
    const auto ours = [](mux_type& m) -> amux::task<std::string> {
        co_return co_await foreign::lock_in<task>(m, {});
    };
    const auto theirs = [&](mux_type& m) -> task { co_return co_await ours(m); };
    CHECK(cppcoro::sync_wait(theirs(mux)) == "k");
    CHECK(amux::sync_wait(theirs(mux)) == "k");
}

TEST_CASE("cppcoro: a lock and a task of amux are awaitables where these are asked for",
          "[foreign]")
{
    mux_type mux;
    {
        const auto [a, n] = cppcoro::sync_wait(
            cppcoro::when_all(mux.lock("a"), mux.with_lock("b", [] { return 2; })));
        CHECK(a.owns_lock());
        CHECK(n == 2);
    }
    CHECK(cppcoro::sync_wait(mux.lock("k")).owns_lock());
    CHECK(mux.tracked_keys() == 0);
}

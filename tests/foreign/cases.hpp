// SPDX-License-Identifier: BSL-1.0
// Without this file each library's task would be tested for something else.
#pragma once

#include <amux/amux.hpp>

#include <catch2/catch_test_macros.hpp>

#include <stop_token>
#include <string>
#include <utility>

namespace foreign {

using mux_type = amux::asyncmux<>;

/// Gives the key of its lock, or `!` when it was stopped.
template <class Task>
Task lock_in(mux_type& mux, std::stop_token stop)
{
    try {
        const auto guard = co_await mux.lock("k", std::move(stop));
        co_return *guard.key();
    } catch (const amux::lock_cancelled_error&) {
        co_return std::string{'!'};
    }
}

/// `begin(task, log)` starts a task, which ends by writing down what it gives, on this thread.
template <class Task, class Begin>
void waits_and_is_handed_it(Begin begin)
{
    mux_type mux;
    std::string log;
    begin(lock_in<Task>(mux, {}), log);
    CHECK(log == "k"); // nobody was in the way
    auto guard = mux.try_lock("k");
    begin(lock_in<Task>(mux, {}), log);
    begin(lock_in<Task>(mux, {}), log);
    CHECK(log == "k");
    guard.unlock(); // they go on inside
    CHECK(log == "kkk");
    CHECK(mux.tracked_keys() == 0);
}

template <class Task, class Begin>
void is_stopped_while_it_waits(Begin begin)
{
    mux_type mux;
    std::string log;
    std::stop_source stop;
    auto guard = mux.try_lock("k");
    begin(lock_in<Task>(mux, stop.get_token()), log);
    begin(lock_in<Task>(mux, {}), log);
    stop.request_stop();
    CHECK(log == "!");
    guard.unlock();
    CHECK(log == "!k");
    begin(lock_in<Task>(mux, stop.get_token()), log); // stopped beforehand
    CHECK(log == "!k!");
}

} // namespace foreign

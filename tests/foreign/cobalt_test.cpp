// SPDX-License-Identifier: BSL-1.0
// Without this file nobody knows whether the locks work in Boost.Cobalt: directly, and as operations of Asio.
#include "foreign/cases.hpp"

#include <amux/asio.hpp>

#include <boost/asio/steady_timer.hpp>
#include <boost/cobalt.hpp>
#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using foreign::mux_type;
namespace cobalt = boost::cobalt;
using task = cobalt::task<std::string>;

namespace {

// [use_op]
cobalt::task<void> add_item(amux::asyncmux<>& carts, std::string user, int& items)
{
    const auto guard = co_await carts.lock(user)(cobalt::use_op); // goes on on its executor
    const int before = items;
    boost::asio::steady_timer database{co_await cobalt::this_coro::executor, 1ms};
    co_await database.async_wait(cobalt::use_op);
    items = before + 1;
}

cobalt::task<bool> add_soon(amux::asyncmux<>& carts, std::string user, int& items)
{
    boost::asio::steady_timer deadline{co_await cobalt::this_coro::executor, 5ms};
    const auto first = co_await cobalt::race(amux::async_lock(carts, user, cobalt::use_op),
                                             deadline.async_wait(cobalt::use_op));
    if (first.index() == 0)
        ++items; // the guard is in it
    co_return first.index() == 0;
}
// [/use_op]

} // namespace

TEST_CASE("cobalt: tasks that share a lock take turns, and hold it across waits", "[foreign]")
{
    mux_type mux;
    int items = 0;
    const auto ten = [&]() -> cobalt::task<void> {
        std::vector<cobalt::task<void>> tasks;
        for (int i = 0; i != 10; ++i)
            tasks.push_back(add_item(mux, "ada", items));
        co_await cobalt::join(std::move(tasks));
    };
    cobalt::run(ten());
    CHECK(items == 10);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("cobalt: a lock or a timer, whichever comes first; the lock is never lost", "[foreign]")
{
    mux_type mux;
    int items = 0;
    {
        const auto guard = mux.try_lock("ada");
        CHECK_FALSE(cobalt::run(add_soon(mux, "ada", items)));
    }
    CHECK(mux.tracked_keys() == 0);
    CHECK(cobalt::run(add_soon(mux, "ada", items)));
    CHECK(items == 1);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("cobalt: it goes on on its own thread, whoever releases", "[foreign]")
{
    mux_type mux;
    auto guard = mux.try_lock("k");
    const auto where = [](mux_type& m) -> cobalt::task<std::thread::id> {
        const auto g = co_await amux::async_lock(m, "k", cobalt::use_op);
        co_return std::this_thread::get_id();
    };
    std::jthread other{[&] {
        while (mux.snapshot().keys.front().waiters == 0)
            std::this_thread::yield();
        guard.unlock();
    }};
    CHECK(cobalt::run(where(mux)) == std::this_thread::get_id());
}

TEST_CASE("cobalt: an error of amux is thrown where the lock is awaited", "[foreign]")
{
    mux_type mux;
    mux.close();
    int items = 0;
    CHECK_THROWS_AS(cobalt::run(add_item(mux, "ada", items)), amux::lock_closed_error);
}

TEST_CASE("cobalt: a task may await a lock directly", "[foreign]")
{
    mux_type mux;
    CHECK(cobalt::run(foreign::lock_in<task>(mux, {})) == "k");
}

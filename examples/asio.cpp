// SPDX-License-Identifier: BSL-1.0
// Locks, leases and tasks in a program that lives on Boost.Asio: awaited, with a time-out, with a callback, by a thread.
#include "check.hpp"

#include <amux/asio.hpp>
#include <amux/memory_backend.hpp>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>

namespace {

using namespace std::chrono_literals;
namespace asio = boost::asio;
using mux_type = amux::asyncmux<>;

// [await]
asio::awaitable<void> add_item(mux_type& carts, const std::string& user, int& items)
{
    const auto guard = co_await carts.lock(user); // waits without a thread, goes on on its executor
    const int before = items;
    asio::steady_timer database{co_await asio::this_coro::executor, 1ms};
    co_await database.async_wait(asio::use_awaitable); // held across awaits
    items = before + 1;
}
// [/await]

// [timeout]
asio::awaitable<bool> add_soon(mux_type& carts, const std::string& user, int& items)
{
    const auto guard = co_await carts.try_lock_for(user, 5ms);
    if (guard)
        ++items;
    co_return guard.owns_lock();
}

asio::awaitable<bool> add_before(mux_type& carts, const std::string& user, int& items,
                                 asio::steady_timer& deadline)
{
    using namespace asio::experimental::awaitable_operators;
    const auto first = co_await (amux::async_lock(carts, user, asio::use_awaitable) ||
                                 deadline.async_wait(asio::use_awaitable));
    if (first.index() == 0)
        ++items; // the guard is in it, and holds the lock
    co_return first.index() == 0;
}
// [/timeout]

// [callback]
class save {
public:
    save(asio::io_context& io, mux_type& carts) : io_{io}, carts_{carts} {}

    void start(std::string user)
    {
        const auto done = [this](const std::exception_ptr& error, const mux_type::guard& guard) {
            outcome = error ? "cancelled" : guard.owns_lock() ? "saved" : "?";
        };
        amux::async_lock(
            carts_, std::move(user),
            asio::bind_cancellation_slot(cancel_.slot(), asio::bind_executor(io_, done)));
    }
    void cancel() { cancel_.emit(asio::cancellation_type::terminal); }

    std::string outcome;

private:
    asio::io_context& io_;
    mux_type& carts_;
    asio::cancellation_signal cancel_;
};
// [/callback]

// [future]
void in_a_thread_that_may_block(mux_type& carts, int& items)
{
    auto future = amux::async_lock(carts, "ada", asio::use_future);
    const auto guard = future.get();
    ++items;
}
// [/future]

// [lease]
asio::awaitable<void> work_alone(amux::distributed_lock<amux::memory_backend&>& locks, int& done)
{
    auto lease = co_await locks.acquire("queue:leader", {.ttl = 10s, .renew = true});
    ++done;
    co_await lease.release();
}

int two_workers()
{
    amux::memory_backend store;
    asio::io_context io;
    amux::asio_scheduler loop{io.get_executor()}; // renewals and time-outs run on io, too
    amux::distributed_lock locks{store, loop};
    int done = 0;
    asio::co_spawn(io, work_alone(locks, done), asio::detached);
    asio::co_spawn(io, work_alone(locks, done), asio::detached);
    io.run();
    return done;
}
// [/lease]

// [task]
amux::task<int> count(mux_type& carts, const int& items)
{
    const auto guard = co_await carts.lock_shared();
    co_return items;
}

asio::awaitable<void> report(mux_type& carts, const int& items)
{
    std::printf("%d items\n", co_await count(carts, items)); // a task, awaited by an awaitable
}
// [/task]

} // namespace

int main()
{
    mux_type carts; // outlives the io_context, with which go those who still wait
    asio::io_context io;
    int items = 0;
    for (int i = 0; i != 10; ++i)
        asio::co_spawn(io, add_item(carts, "ada", items), asio::detached);
    io.run();
    check(items == 10, "nobody overwrites what another one has added");

    bool soon = true;
    bool before = true;
    save one{io, carts};
    {
        const auto held = carts.try_lock("ada");
        asio::steady_timer deadline{io, 5ms};
        asio::co_spawn(io, add_soon(carts, "ada", items),
                       [&](const std::exception_ptr&, bool added) { soon = added; });
        asio::co_spawn(io, add_before(carts, "ada", items, deadline),
                       [&](const std::exception_ptr&, bool added) { before = added; });
        one.start("ada");
        one.cancel();
        io.restart();
        io.run();
    }
    check(!soon && !before, "the time was up");
    check(one.outcome == "cancelled", "the handler is told");
    check(carts.tracked_keys() == 0, "and nothing is left behind");

    one.start("ada");
    std::thread other{in_a_thread_that_may_block, std::ref(carts), std::ref(items)};
    io.restart();
    io.run();
    other.join();
    check(one.outcome == "saved" && items == 11, "both had the lock, one after the other");

    check(two_workers() == 2, "one after the other");
    asio::co_spawn(io, report(carts, items), asio::detached);
    io.restart();
    io.run();
}

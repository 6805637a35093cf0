// SPDX-License-Identifier: BSL-1.0
// Without this file amux would be compared with nothing where most of C++'s servers run: coroutines of Boost.Asio.
//
// Asio has no mutex for coroutines; what its users take is a channel for one message, which is there while the lock is
// held. Beside both stand tasks of amux, on their own loop and on an io_context.
#include "rows.hpp"

#include <amux/asio.hpp>
#include <amux/event_loop.hpp>
#include <amux/spawn.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/channel.hpp>
#include <boost/asio/experimental/concurrent_channel.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace bench {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using mux = amux::asyncmux<std::int64_t>;
using channel = asio::experimental::channel<void(error_code)>;
using concurrent_channel = asio::experimental::concurrent_channel<void(error_code)>;
constexpr std::size_t operations = 10'000;

/// Gives a channel back that is taken.
template <class Channel>
class channel_guard {
public:
    explicit channel_guard(Channel& c) noexcept : channel_{c} {}
    channel_guard(const channel_guard&) = delete;
    channel_guard& operator=(const channel_guard&) = delete;
    ~channel_guard()
    {
        channel_.try_receive([](error_code) {});
    }

private:
    Channel& channel_;
};

auto taken(mux& m)
{
    return m.try_lock(1);
}
template <class Channel>
channel_guard<Channel> taken(Channel& c)
{
    c.try_send(error_code{});
    return channel_guard<Channel>{c};
}

asio::awaitable<void> lock_often(mux& m, std::size_t times)
{
    for (std::size_t n = 0; n != times; ++n) {
        const auto guard = co_await m.lock(1);
        keep(guard);
    }
}
template <class Channel>
asio::awaitable<void> lock_often(Channel& c, std::size_t times)
{
    for (std::size_t n = 0; n != times; ++n) {
        co_await c.async_send({}, asio::deferred);
        const channel_guard guard{c};
        keep(guard);
    }
}

amux::task<> lock_often_in_task(mux& m, std::size_t times, std::size_t& ended)
{
    for (std::size_t n = 0; n != times; ++n) {
        const auto guard = co_await m.lock(1);
        keep(guard);
    }
    ++ended;
}

/// So many coroutines lock as often as they can. All wait before the first goes on: who is one of several asks again behind
/// the others, so that the lock is always handed over.
template <class Lock>
double by_awaitables(asio::io_context& loop, Lock& lock, std::size_t coroutines)
{
    const stopwatch watch;
    {
        const auto first = taken(lock);
        for (std::size_t i = 0; i != coroutines; ++i)
            asio::co_spawn(loop, lock_often(lock, operations / coroutines), asio::detached);
        loop.restart();
        loop.poll();
    }
    loop.restart();
    loop.run();
    return watch.each(operations);
}

double by_tasks(mux& m, std::size_t coroutines)
{
    amux::event_loop loop;
    std::size_t ended = 0;
    const stopwatch watch;
    {
        const auto first = taken(m);
        for (std::size_t i = 0; i != coroutines; ++i)
            loop.spawn(lock_often_in_task(m, operations / coroutines, ended));
        loop.run_ready();
    }
    while (ended != coroutines)
        loop.run_ready();
    return watch.each(operations);
}

double by_tasks_on_asio(mux& m, std::size_t coroutines)
{
    asio::io_context
        context; // its own: from its first timer on an io_context asks the system in each turn
    amux::asio_scheduler loop{context.get_executor()};
    std::size_t ended = 0;
    const stopwatch watch;
    {
        const auto first = taken(m);
        for (std::size_t i = 0; i != coroutines; ++i)
            amux::spawn(loop, lock_often_in_task(m, operations / coroutines, ended));
        context.restart();
        context.poll();
    }
    context.restart();
    context.run();
    return watch.each(operations);
}

/// Holds the lock while the loop goes on to others.
asio::awaitable<void> hold_over_a_turn(mux& m)
{
    const auto guard = co_await m.lock(1);
    co_await asio::post(asio::use_awaitable);
}
asio::awaitable<void> hold_over_a_turn(channel& c)
{
    co_await c.async_send({}, asio::deferred);
    const channel_guard guard{c};
    co_await asio::post(asio::use_awaitable);
}
asio::awaitable<void> a_turn()
{
    co_await asio::post(asio::use_awaitable);
}

template <class Make>
double run_thousand(asio::io_context& loop, Make make)
{
    const stopwatch watch;
    for (std::size_t i = 0; i != 1'000; ++i)
        asio::co_spawn(loop, make(), asio::detached);
    loop.restart();
    loop.run();
    return watch.each(1'000);
}

} // namespace

void add_asio(table& t)
{
    static mux m;
    static asio::io_context loop;
    static channel c{loop, 1};
    static concurrent_channel cc{loop, 1};
    const auto contenders = [](row& r, std::size_t n) {
        r.add("asyncmux", [n] { return by_awaitables(loop, m, n); });
        r.add("a channel for one message", [n] { return by_awaitables(loop, c, n); });
        r.add("a concurrent_channel", [n] { return by_awaitables(loop, cc, n); });
        r.add("asyncmux, task on event_loop", [n] { return by_tasks(m, n); });
        r.add("asyncmux, task on asio_scheduler", [n] { return by_tasks_on_asio(m, n); });
    };
    t.add("asio, uncontended", [contenders](row& r) { contenders(r, 1); });
    t.add("asio, handed to the next of eight", [contenders](row& r) { contenders(r, 8); });
    t.add("asio, a thousand that hold over a turn of the loop", [](row& r) {
        r.add("asyncmux", [] { return run_thousand(loop, [] { return hold_over_a_turn(m); }); });
        r.add("a channel for one message",
              [] { return run_thousand(loop, [] { return hold_over_a_turn(c); }); });
        r.add("without a lock", [] { return run_thousand(loop, a_turn); });
    });
}

} // namespace bench

// SPDX-License-Identifier: BSL-1.0
// Without this file amux would be compared with nothing where most of C++'s servers run: coroutines of Boost.Asio.
//
// Asio has no mutex for coroutines; what its users take is a channel for one message, which is there while the lock is
// held.
#include "rows.hpp"

#include <amux/asio.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/channel.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace bench {

namespace {

namespace asio = boost::asio;
using mux = amux::asyncmux<std::int64_t>;
using channel = asio::experimental::channel<void(boost::system::error_code)>;
constexpr std::size_t operations = 10'000;

class channel_guard {
public:
    explicit channel_guard(channel& c) noexcept : channel_{c} {}
    channel_guard(const channel_guard&) = delete;
    channel_guard& operator=(const channel_guard&) = delete;
    ~channel_guard()
    {
        channel_.try_receive([](boost::system::error_code) {});
    }

private:
    channel& channel_;
};

asio::awaitable<void> lock_often(mux& m)
{
    for (std::size_t n = 0; n != operations; ++n) {
        auto guard = co_await m.lock(1);
        keep(guard);
    }
}

asio::awaitable<void> lock_often(channel& c)
{
    for (std::size_t n = 0; n != operations; ++n) {
        co_await c.async_send({}, asio::use_awaitable);
        const channel_guard guard{c};
        keep(guard);
    }
}

/// Holds the lock while the loop goes on to others.
asio::awaitable<void> hold_over_a_turn(mux& m)
{
    auto guard = co_await m.lock(1);
    co_await asio::post(asio::use_awaitable);
}

asio::awaitable<void> hold_over_a_turn(channel& c)
{
    co_await c.async_send({}, asio::use_awaitable);
    const channel_guard guard{c};
    co_await asio::post(asio::use_awaitable);
}

asio::awaitable<void> a_turn()
{
    co_await asio::post(asio::use_awaitable);
}

/// Runs what `make()` makes, `n` at a time, each of which does `times` things.
template <class Make>
double run_all(std::size_t n, std::size_t times, asio::io_context& loop, Make make)
{
    const stopwatch watch;
    for (std::size_t i = 0; i != n; ++i)
        asio::co_spawn(loop, make(), asio::detached);
    loop.restart();
    loop.run();
    return watch.each(n * times);
}

} // namespace

void add_asio(table& t)
{
    static mux m;
    static asio::io_context loop;
    static channel c{loop, 1};
    t.add("asio, uncontended", [](row& r) {
        r.add("asyncmux",
              [] { return run_all(1, operations, loop, [] { return lock_often(m); }); });
        r.add("a channel for one message",
              [] { return run_all(1, operations, loop, [] { return lock_often(c); }); });
    });
    t.add("asio, a thousand that hold over a turn of the loop", [](row& r) {
        r.add("asyncmux",
              [] { return run_all(1'000, 1, loop, [] { return hold_over_a_turn(m); }); });
        r.add("a channel for one message",
              [] { return run_all(1'000, 1, loop, [] { return hold_over_a_turn(c); }); });
        r.add("without a lock", [] { return run_all(1'000, 1, loop, a_turn); });
    });
}

} // namespace bench

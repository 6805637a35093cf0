// SPDX-License-Identifier: BSL-1.0
// What a lock costs in an asio::awaitable, beside what people use there as a mutex, a channel with room for one message,
// and beside a task of amux on its own loop and on an io_context. Nobody in the way: `alone`. Always handed over to the next
// of eight, who ask again at once and so wait behind the others: `in_turns`. Everything on one thread, in a process that has
// a second one.

#include <amux/asio.hpp>
#include <amux/event_loop.hpp>
#include <amux/spawn.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/channel.hpp>
#include <boost/asio/experimental/concurrent_channel.hpp>
#include <boost/asio/io_context.hpp>

#include <benchmark/benchmark.h>

#include <atomic>
#include <thread>

namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using mux_type = amux::asyncmux<int>;

/// A process with a second, parked thread: the C library's mutexes are cheaper in one that has one thread only.
class second_thread {
public:
    ~second_thread()
    {
        done_ = true;
        done_.notify_one();
    }

private:
    std::atomic<bool> done_{false};
    std::jthread thread_{[this] { done_.wait(false); }};
};

template <class Channel>
class channel_mutex {
public:
    explicit channel_mutex(asio::io_context& io) : channel_{io, 1} {}

    void lock_first() { channel_.try_send(error_code{}); }
    void unlock_first()
    {
        channel_.try_receive([](error_code) {});
    }

    asio::awaitable<void> work(benchmark::State& state, bool& over)
    {
        while (!over && state.KeepRunning()) {
            co_await channel_.async_send(error_code{}, asio::deferred);
            channel_.try_receive([](error_code) {});
        }
        over = true;
    }

private:
    Channel channel_;
};

class amux_mutex {
public:
    explicit amux_mutex(asio::io_context& /*io*/) {}

    void lock_first() { first_ = mux_.try_lock(0); }
    void unlock_first() { first_.unlock(); }

    asio::awaitable<void> work(benchmark::State& state, bool& over)
    {
        while (!over && state.KeepRunning()) {
            const auto guard = co_await mux_.lock(0);
        }
        over = true;
    }

private:
    mux_type mux_;
    mux_type::guard first_;
};

template <class Mutex, int Coroutines>
void awaitables(benchmark::State& state)
{
    const second_thread parked;
    asio::io_context io;
    Mutex mutex{io};
    bool over = false;
    mutex.lock_first();
    for (int i = 0; i != Coroutines; ++i)
        asio::co_spawn(io, mutex.work(state, over), asio::detached);
    io.poll(); // all wait
    mutex.unlock_first();
    io.restart();
    io.run();
}

amux::task<> work(benchmark::State& state, mux_type& mux, bool& over)
{
    while (!over && state.KeepRunning()) {
        const auto guard = co_await mux.lock(0);
    }
    over = true;
}

template <int Coroutines>
void tasks_on_their_loop(benchmark::State& state)
{
    const second_thread parked;
    amux::event_loop loop;
    mux_type mux;
    bool over = false;
    for (int i = 0; i != Coroutines; ++i)
        loop.spawn(work(state, mux, over));
    auto first = mux.try_lock(0);
    loop.run_ready(); // all wait
    first.unlock();
    loop.run_ready();
}

template <int Coroutines>
void tasks_on_an_io_context(benchmark::State& state)
{
    const second_thread parked;
    asio::io_context io;
    amux::asio_scheduler loop{io.get_executor()};
    mux_type mux;
    bool over = false;
    for (int i = 0; i != Coroutines; ++i)
        amux::spawn(loop, work(state, mux, over));
    auto first = mux.try_lock(0);
    io.poll(); // all wait
    first.unlock();
    io.restart();
    io.run();
}

using channel = channel_mutex<asio::experimental::channel<void(error_code)>>;
using concurrent_channel = channel_mutex<asio::experimental::concurrent_channel<void(error_code)>>;

BENCHMARK(awaitables<amux_mutex, 1>)->Name("alone/awaitable, asyncmux");
BENCHMARK(awaitables<channel, 1>)->Name("alone/awaitable, channel");
BENCHMARK(awaitables<concurrent_channel, 1>)->Name("alone/awaitable, concurrent_channel");
BENCHMARK(tasks_on_their_loop<1>)->Name("alone/task, asyncmux");
BENCHMARK(awaitables<amux_mutex, 8>)->Name("in_turns/awaitable, asyncmux");
BENCHMARK(awaitables<channel, 8>)->Name("in_turns/awaitable, channel");
BENCHMARK(awaitables<concurrent_channel, 8>)->Name("in_turns/awaitable, concurrent_channel");
BENCHMARK(tasks_on_their_loop<8>)->Name("in_turns/task, asyncmux");
BENCHMARK(tasks_on_an_io_context<8>)->Name("in_turns/task on an io_context, asyncmux");

} // namespace

BENCHMARK_MAIN();

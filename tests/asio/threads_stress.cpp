// SPDX-License-Identifier: BSL-1.0
// Without this file a lock may be lost only where a grant, a cancellation and the end of a context meet on several threads.
#include "asio/support/library.hpp"
#include "support/scale.hpp"

#include <amux/amux.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <stop_token>
#include <thread>
#include <utility>

using namespace std::chrono_literals;
using mux_type = amux::asyncmux<int>;
using guard_type = mux_type::guard;

namespace {

/// Counts up by what is not atomic, so that two in the lock lose counts, and are a race for the thread sanitizer.
asio::awaitable<void> count_up(mux_type& mux, int& counter, int rounds)
{
    for (int i = 0; i != rounds; ++i) {
        const auto guard = co_await mux.lock(0);
        const int seen = counter;
        if (i % 16 == 0)
            co_await asio::post(asio::use_awaitable);
        counter = seen + 1;
    }
}

/// Asks again and again, on a strand, and is cancelled there, by way of another thread, while others release.
class cancelled_at_random {
public:
    cancelled_at_random(asio::thread_pool& pool, mux_type& mux, int& counter, int rounds)
        : pool_{pool}, strand_{asio::make_strand(pool)}, mux_{mux}, counter_{counter}, left_{rounds}
    {}

    void begin()
    {
        asio::post(strand_, [this] { ask(); });
    }

    int got = 0;
    int cancelled = 0;
    int others = 0;

private:
    void ask()
    {
        if (left_-- == 0)
            return;
        const auto emit = [this] { signal_.emit(asio::cancellation_type::terminal); };
        asio::post(pool_, [this, emit] { asio::post(strand_, emit); });
        const auto told = [this](std::exception_ptr e, guard_type g) { take(e, std::move(g)); };
        mux_.lock(0)(
            asio::bind_cancellation_slot(signal_.slot(), asio::bind_executor(strand_, told)));
    }

    void take(const std::exception_ptr& e, guard_type g)
    {
        ++(g && !e ? got : !g && e ? cancelled : others);
        if (g)
            ++counter_;
        ask(); // the guard is released afterwards
    }

    asio::thread_pool& pool_;
    asio::strand<asio::thread_pool::executor_type> strand_;
    asio::cancellation_signal signal_;
    mux_type& mux_;
    int& counter_;
    int left_;
};

} // namespace

TEST_CASE("asio threads: coroutines of a pool that share a lock count right", "[asio][stress]")
{
    asio::thread_pool pool{3};
    mux_type mux;
    int counter = 0;
    const int rounds = support::scaled(3'000);
    for (int i = 0; i != 8; ++i) {
        if (i % 2 == 0)
            asio::co_spawn(pool, count_up(mux, counter, rounds), asio::detached);
        else
            asio::co_spawn(asio::make_strand(pool), count_up(mux, counter, rounds), asio::detached);
    }
    pool.join();
    CHECK(counter == 8 * rounds);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio threads: on a pool, each request is granted or cancelled, and none is lost",
          "[asio][stress]")
{
    asio::thread_pool pool{3};
    mux_type mux;
    int counter = 0;
    const int rounds = support::scaled(5'000);
    std::deque<cancelled_at_random> workers;
    for (int i = 0; i != 4; ++i)
        workers.emplace_back(pool, mux, counter, rounds).begin();
    pool.join();
    int got = 0;
    int cancelled = 0;
    for (const cancelled_at_random& w : workers) {
        got += w.got;
        cancelled += w.cancelled;
        CHECK(w.others == 0);
    }
    CHECK(got == counter);
    CHECK(got + cancelled == 4 * rounds);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio threads: a stop from another thread and the grant: one of them wins, once",
          "[asio][stress]")
{
    mux_type mux;
    asio::io_context io;
    const auto timed = GENERATE(false, true);
    const int rounds = support::scaled(timed ? 5'000 : 10'000);
    std::atomic<int> round{0};
    std::atomic<int> done{0};
    std::stop_source stop;
    std::jthread stopper{[&] {
        for (int i = 1; i <= rounds; ++i) {
            while (round.load() < i)
                std::this_thread::yield();
            stop.request_stop();
            done = i;
        }
    }};
    int granted = 0;
    int calls = 0;
    for (int i = 1; i <= rounds; ++i) {
        stop = {};
        auto guard = mux.try_lock(0);
        const auto handler = [&](std::exception_ptr, guard_type g) {
            ++calls;
            granted += g ? 1 : 0;
        };
        auto there = asio::bind_executor(io, handler);
        if (timed)
            mux.try_lock_for(0, 10min, stop.get_token())(there);
        else
            mux.lock(0, stop.get_token())(there);
        round = i;
        if (i % 2 == 0)
            std::this_thread::yield();
        guard.unlock();
        support::run(io);
        while (done.load() < i)
            std::this_thread::yield();
        if (calls != i || mux.tracked_keys() != 0)
            break;
    }
    round = rounds;
    CHECK(calls == rounds);
    CHECK(granted <= rounds);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio threads: the context of waiters ends while another thread releases",
          "[asio][stress][lifetime]")
{
    mux_type mux;
    const int rounds = support::scaled(3'000);
    std::atomic<int> round{0};
    std::atomic<int> done{0};
    guard_type held;
    std::stop_source stop;
    std::jthread releaser{[&] {
        for (int i = 1; i <= rounds; ++i) {
            while (round.load() < i)
                std::this_thread::yield();
            if (i % 3 == 0)
                stop.request_stop();
            held = {};
            done = i;
        }
    }};
    int calls = 0;
    for (int i = 1; i <= rounds; ++i) {
        stop = {};
        held = mux.try_lock(0);
        {
            asio::io_context io;
            const auto handler = [&](std::exception_ptr, guard_type) { ++calls; };
            auto there = asio::bind_executor(io, handler);
            mux.lock(0, stop.get_token())(there);
            mux.try_lock_for(0, 10min, stop.get_token())(there);
            mux.lock(0)(asio::bind_executor(asio::make_strand(io), handler));
            mux.lock(0)(there);
            round = i;
            if (i % 2 == 0)
                std::this_thread::yield();
        }
        while (done.load() < i)
            std::this_thread::yield();
        if (mux.tracked_keys() != 0)
            break;
    }
    round = rounds;
    CHECK(calls == 0);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio threads: leases are taken in turns by coroutines of a pool",
          "[asio][stress][lease]")
{
    asio::thread_pool pool{2};
    amux::asio_scheduler loop{pool.get_executor()};
    amux::memory_backend store;
    amux::distributed_lock locks{store, loop};
    int counter = 0;
    const int rounds = support::scaled(200);
    const auto work = [&]() -> asio::awaitable<void> {
        for (int i = 0; i != rounds; ++i) {
            auto lease = co_await locks.acquire("k", {.ttl = 1min, .max_wait = 5min});
            ++counter;
            co_await lease.release();
        }
    };
    for (int i = 0; i != 4; ++i)
        asio::co_spawn(pool, work(), asio::detached);
    pool.join();
    CHECK(counter == 4 * rounds);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a slow-down of a few instructions hides in the noise of every timing.
//
// Run by tests/checks/instructions.py under callgrind, which is told here what belongs to which path. It is compiled twice:
// with more muxes in one file the compiler puts less of each into its callers.
#include "coroutines.hpp"
#include "harness.hpp"
#include "muxes.hpp"

#ifdef OBSERVED
#include <amux/counting.hpp>
#include <amux/tracing.hpp>
#endif

#include <stop_token>

#include <valgrind/callgrind.h>

namespace bench {

namespace {

constexpr std::size_t operations = 1'000;

/// What `work` takes once everything is warm.
template <class Work>
void count(const char* path, Work work)
{
    work();
    CALLGRIND_ZERO_STATS;
    work();
    CALLGRIND_DUMP_STATS_AT(path);
}

template <class Lock>
detached await_often(Lock lock)
{
    for (std::size_t n = 0; n != operations; ++n) {
        auto guard = co_await lock(n);
        keep(guard);
    }
}

template <class Lock>
void count_lock(const char* path, Lock lock)
{
    count(path, [&] { await_often(lock); });
}

template <class Lock>
prepared wait_once(Lock lock)
{
    auto guard = co_await lock();
    keep(guard);
}

template <class Lock>
prepared hold(Lock lock)
{
    auto guard = co_await lock();
    co_await std::suspend_always{};
}

/// One holds, as many as `operations` get in line, and are handed the lock.
template <class Mux>
void count_line(const char* queueing, const char* hand_over, Mux& mux)
{
    const auto lock = [&mux] { return mux.lock(1); };
    for (int round = 0; round != 2; ++round) { // the first gets warm
        const prepared holder = hold(lock);
        holder.start();
        const auto waiters = prepare(operations, [&](std::size_t) { return wait_once(lock); });
        CALLGRIND_ZERO_STATS;
        for (const prepared& w : waiters)
            w.start();
        CALLGRIND_DUMP_STATS_AT(round == 0 ? "warm" : queueing);
        holder.start();
        CALLGRIND_DUMP_STATS_AT(round == 0 ? "warm" : hand_over);
    }
}

#ifndef OBSERVED
template <class Mux>
prepared wait_until_stopped(Mux& mux, std::stop_token stop, plain_loop& loop)
{
    auto guard =
        co_await mux.try_lock_until(1, amux::clock::time_point::max(), stop).resume_on(loop);
    keep(guard);
}

template <class Mux>
void count_stops(const char* path, Mux& mux)
{
    const auto holder = mux.try_lock(1);
    plain_loop loop;
    std::vector<std::stop_source> stops(operations);
    const auto waiters = prepare(operations, [&](std::size_t i) {
        return wait_until_stopped(mux, stops[i].get_token(), loop);
    });
    for (const prepared& w : waiters)
        w.start();
    CALLGRIND_ZERO_STATS;
    for (std::stop_source& s : stops) {
        s.request_stop();
        loop.run_ready();
    }
    CALLGRIND_DUMP_STATS_AT(path);
}

#endif

#ifdef OBSERVED
void count_all()
{
    const auto ints = make_keys<std::int64_t>(operations);
    amux::asyncmux<std::int64_t, amux::counting<>> counting;
    amux::asyncmux<std::int64_t, amux::tracing<std::int64_t>> tracing;
    count_lock("int, counting", [&](std::size_t n) { return counting.lock(ints[n]); });
    count_line("queueing, counting", "hand-over, counting", counting);
    count_lock("int, tracing not started", [&](std::size_t n) { return tracing.lock(ints[n]); });
    tracing.observer().start(4 * operations);
    count_lock("int, tracing", [&](std::size_t n) { return tracing.lock(ints[n]); });
}
#else
void count_all()
{
    const auto ints = make_keys<std::int64_t>(operations);
    const auto strings = make_keys<std::string>(operations);
    const std::vector<std::int64_t> pair{1, 2};
    amux::asyncmux<std::int64_t> mux;
    amux::unsynchronized_asyncmux<std::int64_t> single;
    grown_asyncmux<std::int64_t> grown;
    amux::asyncmux<> of_strings;
    amux::unsynchronized_asyncmux<> single_of_strings;

    count_lock("int", [&](std::size_t n) { return mux.lock(ints[n]); });
    count_lock("int, unsynchronized", [&](std::size_t n) { return single.lock(ints[n]); });
    count_lock("int, 16 shards", [&](std::size_t n) { return grown.get().lock(ints[n]); });
    count_lock("int, shared", [&](std::size_t n) { return mux.lock_shared(ints[n]); });
    count_lock("string", [&](std::size_t n) { return of_strings.lock(strings[n]); });
    count_lock("string, unsynchronized",
               [&](std::size_t n) { return single_of_strings.lock(strings[n]); });
    count("try_lock", [&] {
        for (const std::int64_t k : ints)
            static_cast<void>(mux.try_lock(k).owns_lock());
    });
    count_lock("whole mux", [&](std::size_t) { return mux.lock(); });
    count_lock("whole mux, 16 shards", [&](std::size_t) { return grown.get().lock(); });
    count_lock("lock_all of 2", [&](std::size_t) { return mux.lock_all(pair); });
    count_line("queueing", "hand-over", mux);
    count_line("queueing, unsynchronized", "hand-over, unsynchronized", single);
    count_stops("stopped", mux);
}
#endif

} // namespace

} // namespace bench

int main()
{
    bench::count_all();
}

// SPDX-License-Identifier: BSL-1.0
// Without this file it would not be known what a wait costs: to get in line, and to be handed the lock.
#include "rows.hpp"

#include "coroutines.hpp"
#include "floors.hpp"
#include "foreign.hpp"
#include "muxes.hpp"
#include "peers.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace bench {

namespace {

enum class phase { queueing, hand_over };

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

template <class Map>
prepared wait_in_map(Map& map)
{
    const typename Map::user user{map, 1};
    auto guard = co_await (*user).lock();
    keep(guard);
}

template <class Map>
prepared hold_in_map(Map& map)
{
    const typename Map::user user{map, 1};
    auto guard = co_await (*user).lock();
    co_await std::suspend_always{};
}

/// `n` wait behind one that holds, and then get the lock, one after the other or all at once.
double pass_through(phase timed, const prepared& holder, const std::vector<prepared>& waiters)
{
    holder.start();
    const stopwatch queueing;
    for (const prepared& w : waiters)
        w.start();
    const double queued = queueing.each(waiters.size());
    const stopwatch handing_over;
    holder.start();
    const double handed_over = handing_over.each(waiters.size());
    return timed == phase::queueing ? queued : handed_over;
}

template <class Lock>
row::sample line(phase timed, std::size_t n, Lock lock)
{
    return [=] {
        const prepared holder = hold(lock);
        return pass_through(timed, holder,
                            prepare(n, [&](std::size_t) { return wait_once(lock); }));
    };
}

/// Where each unlock resumes the next inside of itself, the stack ends the line.
constexpr std::size_t deepest = 100'000;

void add_nested(row& r, phase timed, std::size_t n)
{
    if (n > deepest)
        return;
    static coroutine_mutex unkeyed;
    static unsynchronized_coroutine_mutex single;
    static map_of<std::int64_t, coroutine_mutex> map;
    r.add("coroutine mutex, unkeyed", line(timed, n, [] { return unkeyed.lock(); }));
    r.add("coroutine mutex, unsynchronized", line(timed, n, [] { return single.lock(); }));
    r.add("map of coroutine mutexes", [=] {
        const prepared holder = hold_in_map(map);
        return pass_through(timed, holder,
                            prepare(n, [](std::size_t) { return wait_in_map(map); }));
    });
    for_each_foreign([&]<class Mutex>(const char* name) {
        static Mutex m;
        r.add(name, line(timed, n, [] { return m.lock(); }));
    });
}

void hand_over(row& r, phase timed, std::size_t n)
{
    static amux::asyncmux<std::int64_t> mux;
    static grown_asyncmux<std::int64_t> grown;
    static amux::unsynchronized_asyncmux<std::int64_t> single;
    static flat_mutex flat;
    r.rounds(n > 100'000 ? 5 : 15);
    r.add("asyncmux", line(timed, n, [] { return mux.lock(1); }));
    r.add("asyncmux, 16 shards", line(timed, n, [] { return grown.get().lock(1); }));
    r.add("unsynchronized_asyncmux", line(timed, n, [] { return single.lock(1); }));
    r.add("floor", line(timed, n, [] { return flat.lock(); }));
    add_nested(r, timed, n);
    r.at_most(timed == phase::queueing ? 2 : 1.4, "asyncmux", "floor");
    if (timed == phase::hand_over && n <= deepest)
        r.at_most(n < deepest ? 1.2 : 1, "unsynchronized_asyncmux", "coroutine mutex, unkeyed");
}

void shared_batch(row& r)
{
    static amux::asyncmux<std::int64_t> mux;
    static amux::unsynchronized_asyncmux<std::int64_t> single;
    static coroutine_shared_mutex by_hand;
    r.rounds(15);
    const auto batch = [&r](const std::string& name, auto& m, std::size_t n, auto... key) {
        r.add(name + ", " + short_number(n), [&m, n, key...] {
            const prepared holder = hold([&m, key...] { return m.lock(key...); });
            return pass_through(
                phase::hand_over, holder, prepare(n, [&](std::size_t) {
                    return wait_once([&m, key...] { return m.lock_shared(key...); });
                }));
        });
    };
    for (const std::size_t n : {1'000UL, 100'000UL}) {
        batch("asyncmux", mux, n, 1);
        batch("unsynchronized_asyncmux", single, n, 1);
        batch("coroutine shared mutex, unkeyed", by_hand, n);
    }
    r.at_most(1.5, "asyncmux, 100k", "asyncmux, 1k");
}

/// Remembers how long it was held at the longest.
class timed_lock : public amux::detail::spin_lock {
    using clock = std::chrono::steady_clock;

public:
    static inline clock::duration longest{};

    void lock() noexcept
    {
        spin_lock::lock();
        since_ = clock::now();
    }
    bool try_lock() noexcept
    {
        const bool locked = spin_lock::try_lock();
        if (locked)
            since_ = clock::now();
        return locked;
    }
    void unlock() noexcept
    {
        longest = std::max(longest, clock::now() - since_);
        spin_lock::unlock();
    }

private:
    clock::time_point since_{};
};
struct timed_threading : amux::multi_threaded {
    using mutex = timed_lock;
};

/// A whole mux is released over waiters for as many keys, all of which are granted in that one step.
template <class Mux>
double longest_hold(Mux& mux, std::size_t n)
{
    const prepared holder = hold([&mux] { return mux.lock(); });
    holder.start();
    const auto waiters = prepare(n, [&](std::size_t i) {
        return wait_once([&mux, i] { return mux.lock(static_cast<std::int64_t>(i)); });
    });
    for (const prepared& w : waiters)
        w.start();
    timed_lock::longest = {};
    holder.start();
    return std::chrono::duration<double, std::micro>(timed_lock::longest).count();
}

void whole_release(row& r)
{
    r.rounds(9);
    for (const std::size_t n : {1'000UL, 100'000UL}) {
        static amux::asyncmux<std::int64_t, timed_threading> mux;
        static grown_asyncmux<std::int64_t, timed_threading> grown;
        r.add("asyncmux, " + short_number(n), [n] { return longest_hold(mux, n); }, "us");
        r.add(
            "asyncmux, 16 shards, " + short_number(n), [n] { return longest_hold(grown.get(), n); },
            "us");
    }
}

} // namespace

void add_queues(table& t)
{
    for (const std::size_t n : {1'000UL, 100'000UL, 1'000'000UL}) {
        t.add("queueing, " + short_number(n), [n](row& r) { hand_over(r, phase::queueing, n); });
        t.add("hand-over, " + short_number(n), [n](row& r) { hand_over(r, phase::hand_over, n); });
    }
    t.add("shared batch", shared_batch);
    t.add("whole mux released, longest hold of a shard", whole_release);
}

} // namespace bench

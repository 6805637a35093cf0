// SPDX-License-Identifier: BSL-1.0
// Without this file nobody would know what a lock takes of the heap: how often, and how much.
//
// A program of its own: counting allocations makes them slower. Bytes are those that the C library's heap has given out,
// with its own headers.
#include "harness.hpp"

#include "coroutines.hpp"
#include "muxes.hpp"
#include "peers.hpp"

#include "support/allocation_counter.hpp"

#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>

#include <malloc.h>

namespace bench {

namespace {

using key = std::int64_t;
constexpr std::size_t many = 100'000;

double heap()
{
    const auto info = mallinfo2();
    return static_cast<double>(info.uordblks + info.hblkhd);
}

template <class Lock>
prepared hold_once(Lock lock)
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

template <class Work>
double allocations_of(Work work)
{
    work();
    work();
    const std::size_t before = support::allocations();
    work();
    return static_cast<double>(support::allocations() - before);
}

/// What the third time allocates, when frames are made before.
template <class Mux, class Lock>
double allocations_of_lock(Mux& mux, Lock lock)
{
    const auto all = prepare(3, [&](std::size_t) { return hold_once([&] { return lock(mux); }); });
    std::size_t next = 0;
    return allocations_of([&] { all[next++].start(); });
}

/// Two wait behind a holder, and are granted one after the other.
template <class Mux>
double allocations_of_a_wait(Mux& mux)
{
    const auto lock = [&mux] { return mux.lock(key{1}); };
    const auto holders = prepare(3, [&](std::size_t) { return hold(lock); });
    const auto waiters = prepare(6, [&](std::size_t) { return hold_once(lock); });
    std::size_t next = 0;
    return allocations_of([&] {
        holders[next].start();
        waiters[2 * next].start();
        waiters[2 * next + 1].start();
        holders[next++].start();
    });
}

prepared wait_until_stopped(amux::asyncmux<key>& mux, std::stop_token stop, plain_loop& loop)
{
    auto guard =
        co_await mux.try_lock_until(key{1}, amux::clock::time_point::max(), stop).resume_on(loop);
    keep(guard);
}

double allocations_of_a_stop(amux::asyncmux<key>& mux)
{
    plain_loop loop;
    const auto holder = mux.try_lock(1);
    std::vector<std::stop_source> stops(3);
    const auto all = prepare(
        3, [&](std::size_t i) { return wait_until_stopped(mux, stops[i].get_token(), loop); });
    std::size_t next = 0;
    return allocations_of([&] {
        all[next].start();
        stops[next++].request_stop();
        loop.run_ready();
    });
}

void allocations(row& r)
{
    amux::asyncmux<key> mux;
    grown_asyncmux<key> grown;
    amux::asyncmux<> strings;
    map_of<std::string, std::mutex> map;
    const std::string name = "a name that is too long to lie inside of a string";
    const std::vector<key> eight{1, 2, 3, 4, 5, 6, 7, 8};
    const auto count = [&r](const char* what, double n) { r.count(what, "allocations", n); };
    count("one key", allocations_of_lock(mux, [](auto& m) { return m.lock(1); }));
    count("one long string", allocations_of_lock(strings, [&](auto& m) { return m.lock(name); }));
    count("one key, shared", allocations_of_lock(mux, [](auto& m) { return m.lock_shared(1); }));
    count("the whole mux, 16 shards",
          allocations_of_lock(grown.get(), [](auto& m) { return m.lock(); }));
    count("lock_all of 8",
          allocations_of_lock(grown.get(), [&](auto& m) { return m.lock_all(eight); }));
    count("two waits", allocations_of_a_wait(mux));
    count("a wait that is stopped", allocations_of_a_stop(mux));
    count("map of std::mutex, one long string", allocations_of([&] {
              const map_of<std::string, std::mutex>::user user{map, name};
              const std::lock_guard g{*user};
          }));
}

/// Heap bytes of each of many coroutines that wait, frame included.
template <class Lock>
double bytes_of_a_waiter(Lock lock, plain_loop& loop)
{
    const prepared holder = hold(lock);
    holder.start();
    std::vector<prepared> all;
    all.reserve(many);
    const double before = heap();
    for (std::size_t i = 0; i != many; ++i) {
        all.push_back(hold_once(lock));
        all.back().start();
    }
    const double each = (heap() - before) / static_cast<double>(many);
    holder.start();
    loop.run_ready();
    return each;
}

void waiters(row& r)
{
    amux::asyncmux<key> mux;
    amux::unsynchronized_asyncmux<key> single;
    coroutine_mutex unkeyed;
    plain_loop loop;
    const auto count = [&](const char* name, auto lock) {
        r.count(name, "bytes", bytes_of_a_waiter(lock, loop));
    };
    count("asyncmux, lock", [&] { return mux.lock(1); });
    count("asyncmux, try_lock_until",
          [&] { return mux.try_lock_until(1, amux::clock::time_point::max()).resume_on(loop); });
    count("unsynchronized_asyncmux, lock", [&] { return single.lock(1); });
    count("coroutine mutex, unkeyed", [&] { return unkeyed.lock(); });
}

/// Heap bytes of each of many keys that are held; the guards lie in a vector that is not counted.
template <class Mux, class Key>
double bytes_of_a_key(Mux& mux, const std::vector<Key>& keys)
{
    std::vector<typename Mux::guard> guards;
    guards.reserve(keys.size());
    const double before = heap();
    for (const Key& k : keys)
        guards.push_back(mux.try_lock(k));
    return (heap() - before) / static_cast<double>(keys.size());
}

template <class Key>
void held_keys(row& r)
{
    const auto keys = make_keys<Key>(many);
    amux::asyncmux<Key> mux;
    grown_asyncmux<Key> grown;
    map_of<Key, std::mutex> map;
    r.count("asyncmux", "bytes", bytes_of_a_key(mux, keys));
    r.count("asyncmux, 16 shards", "bytes", bytes_of_a_key(grown.get(), keys));
    std::vector<std::optional<typename map_of<Key, std::mutex>::user>> users(many);
    const double before = heap();
    for (std::size_t i = 0; i != many; ++i)
        users[i].emplace(map, keys[i]);
    r.count("map of std::mutex", "bytes", (heap() - before) / static_cast<double>(many));
    r.count("a guard of asyncmux", "bytes", sizeof(typename amux::asyncmux<Key>::guard));
}

/// Bytes of each of many muxes that were used once, the object and what it keeps.
template <class Mux, class Use>
double bytes_of_a_mux(Use use)
{
    const double before = heap();
    const auto all = std::make_unique<Mux[]>(many);
    for (std::size_t i = 0; i != many; ++i)
        use(all[i]);
    return (heap() - before) / static_cast<double>(many);
}

void idle_muxes(row& r)
{
    const auto use = [](auto& mux) { static_cast<void>(mux.try_lock(1).owns_lock()); };
    const auto nothing = [](auto&) {};
    using mux = amux::asyncmux<key>;
    r.count("asyncmux", "bytes", bytes_of_a_mux<mux>(nothing));
    r.count("asyncmux, used once", "bytes", bytes_of_a_mux<mux>(use));
    r.count("asyncmux, 16 shards", "bytes", bytes_of_a_mux<grown_asyncmux<key>>(nothing));
    r.count("unsynchronized_asyncmux, used once", "bytes",
            bytes_of_a_mux<amux::unsynchronized_asyncmux<key>>(use));
    r.count("asyncmux of strings, used once", "bytes",
            bytes_of_a_mux<amux::asyncmux<>>([](auto& m) { //
                static_cast<void>(m.try_lock("user:123456").owns_lock());
            }));
    r.count("map of std::mutex, used once", "bytes",
            bytes_of_a_mux<map_of<key, std::mutex>>(
                [](auto& m) { const typename map_of<key, std::mutex>::user user{m, 1}; }));
    r.count("goal", "bytes", 256);
    r.at_most(1, "asyncmux, used once", "goal");
}

} // namespace

} // namespace bench

int main(int argc, char** argv)
{
    bench::table t;
    t.add("allocations, the third time", bench::allocations);
    t.add("heap bytes of a waiter", bench::waiters);
    t.add("heap bytes of a held key, int", bench::held_keys<std::int64_t>);
    t.add("heap bytes of a held key, string", bench::held_keys<std::string>);
    t.add("bytes of a mux", bench::idle_muxes);
    return t.main(argc, argv);
}

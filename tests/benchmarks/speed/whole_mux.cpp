// SPDX-License-Identifier: BSL-1.0
// Without this file it would not be known what a lock on everything costs, nor that keyed locks do not pay for it.
#include "rows.hpp"

#include "coroutines.hpp"
#include "muxes.hpp"
#include "peers.hpp"

#include <mutex>
#include <shared_mutex>

namespace bench {

namespace {

using key = std::int64_t;
constexpr std::size_t operations = 20'000;

template <class Lock>
detached await_often(Lock lock, double& each)
{
    const stopwatch watch;
    for (std::size_t n = 0; n != operations; ++n) {
        auto guard = co_await lock();
        keep(guard);
    }
    each = watch.each(operations);
}

template <class Lock>
row::sample often(Lock lock)
{
    return [lock] {
        double each = 0;
        await_often(lock, each);
        return each;
    };
}

/// Readers of the keys from 0 to `n` - 1.
template <class Mux>
std::vector<typename Mux::guard> readers(Mux& mux, std::size_t n)
{
    std::vector<typename Mux::guard> all;
    all.reserve(n);
    for (std::size_t i = 0; i != n; ++i)
        all.push_back(mux.try_lock_shared(static_cast<key>(i)));
    return all;
}

void add_unit(row& r)
{
    static coroutine_mutex unkeyed;
    r.add("coroutine mutex, unkeyed", often([] { return unkeyed.lock(); }));
    r.at_most(40, "asyncmux", "coroutine mutex, unkeyed");
    r.at_most(20, "asyncmux, 16 shards", "coroutine mutex, unkeyed");
}

void idle(row& r, std::size_t tracked)
{
    static amux::asyncmux<key> mux;
    static grown_asyncmux<key> grown;
    static amux::unsynchronized_asyncmux<key> single;
    readers(mux, tracked).clear();
    readers(grown.get(), tracked).clear();
    readers(single, tracked).clear();
    r.add("asyncmux", often([] { return mux.lock(); }));
    r.add("asyncmux, 16 shards", often([] { return grown.get().lock(); }));
    r.add("unsynchronized_asyncmux", often([] { return single.lock(); }));
    add_unit(r);
}

void read(row& r, std::size_t held)
{
    static amux::asyncmux<key> mux;
    static grown_asyncmux<key> grown;
    static amux::unsynchronized_asyncmux<key> single;
    static auto of_mux = readers(mux, held);
    static auto of_grown = readers(grown.get(), held);
    static auto of_single = readers(single, held);
    r.add("asyncmux", often([] { return mux.lock_shared(); }));
    r.add("asyncmux, 16 shards", often([] { return grown.get().lock_shared(); }));
    r.add("unsynchronized_asyncmux", often([] { return single.lock_shared(); }));
    add_unit(r);
}

/// One lock on everything for each `every` locks on a key.
constexpr std::size_t every = 1'000;

template <class Mux>
detached await_stream(Mux& mux, bool whole, double& each)
{
    const stopwatch watch;
    for (std::size_t n = 0; n != operations; ++n) {
        if (whole && n % every == 0) {
            auto guard = co_await mux.lock();
            keep(guard);
        } else {
            auto guard = co_await mux.lock(static_cast<key>(n));
            keep(guard);
        }
    }
    each = watch.each(operations);
}

template <class Mux>
row::sample stream_of(Mux& mux, bool whole)
{
    return [&mux, whole] {
        double each = 0;
        await_stream(mux, whole, each);
        return each;
    };
}

void stream(row& r)
{
    static amux::asyncmux<key> mux;
    static grown_asyncmux<key> grown;
    static amux::unsynchronized_asyncmux<key> single;
    static map_of<key, std::mutex> map;
    static std::shared_mutex gate;
    r.add("asyncmux", stream_of(mux, true));
    r.add("asyncmux, no whole-mux lock", stream_of(mux, false));
    r.add("asyncmux, 16 shards", stream_of(grown.get(), true));
    r.add("unsynchronized_asyncmux", stream_of(single, true));
    r.add("map of std::mutex, behind a std::shared_mutex", [] {
        const stopwatch watch;
        for (std::size_t n = 0; n != operations; ++n) {
            if (n % every == 0) {
                const std::unique_lock whole{gate};
                keep(whole);
            } else {
                const std::shared_lock passing{gate};
                const map_of<key, std::mutex>::user user{map, static_cast<key>(n)};
                const std::lock_guard g{*user};
                keep(g);
            }
        }
        return watch.each(operations);
    });
    r.at_most(1.1, "asyncmux", "asyncmux, no whole-mux lock");
}

} // namespace

void add_whole_mux(table& t)
{
    for (const std::size_t n : {0UL, 1'000UL, 100'000UL})
        t.add("whole mux, " + short_number(n) + " keys tracked", [n](row& r) { idle(r, n); });
    for (const std::size_t n : {1'000UL, 100'000UL})
        t.add("whole mux shared, " + short_number(n) + " keys held", [n](row& r) { read(r, n); });
    t.add("stream, one in 1k on the whole mux", stream);
}

} // namespace bench

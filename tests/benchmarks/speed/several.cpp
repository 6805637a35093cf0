// SPDX-License-Identifier: BSL-1.0
// Without this file nobody would know what the other forms of a lock cost: several keys, a time limit, detection.
#include "rows.hpp"

#include "coroutines.hpp"
#include "floors.hpp"
#include "muxes.hpp"
#include "peers.hpp"

#include <amux/asyncmux.hpp>
#include <amux/deadlock_detector.hpp>
#include <amux/event_loop.hpp>
#include <amux/manual_event_loop.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <optional>

namespace bench {

namespace {

using key = std::int64_t;
using group = std::vector<key>;
using std::chrono_literals::operator""h;
constexpr std::size_t operations = 50'000;
constexpr std::size_t most_keys = 64;

/// Groups that share no key.
std::vector<group> make_groups(std::size_t size)
{
    std::vector<group> groups(100);
    for (std::size_t g = 0; g != groups.size(); ++g) {
        for (std::size_t i = 0; i != size; ++i)
            groups[g].push_back(make_key<key>(g * size + i));
    }
    return groups;
}

template <class Mux>
detached await_groups(Mux& mux, const std::vector<group>& groups, std::size_t times, double& each)
{
    const stopwatch watch;
    for (std::size_t n = 0; n != times; ++n) {
        auto guard = co_await mux.lock_all(groups[n % groups.size()]);
        keep(guard);
    }
    each = watch.each(times);
}

/// One after the other, in the order of the keys, which is known here.
template <class Guard, class Map>
double guards_in_order(Map& map, const std::vector<group>& groups, std::size_t times)
{
    const stopwatch watch;
    for (std::size_t n = 0; n != times; ++n) {
        const group& keys = groups[n % groups.size()];
        std::array<std::optional<Guard>, most_keys> guards;
        for (std::size_t i = 0; i != keys.size(); ++i)
            guards[i].emplace(map, keys[i]);
        keep(guards);
    }
    return watch.each(times);
}

struct map_guard {
    using map = map_of<key, std::mutex>;
    map_guard(map& m, const key& k) : user{m, k}, lock{*user} {}
    map::user user;
    std::unique_lock<std::mutex> lock;
};

void lock_all(row& r, std::size_t size)
{
    static amux::asyncmux<key> mux;
    static grown_asyncmux<key> grown;
    static amux::unsynchronized_asyncmux<key> single;
    static map_guard::map map;
    static keyed_floor<key> floor;
    static const auto groups = make_groups(size);
    const std::size_t times = operations / size;
    const auto add = [&](const char* name, auto& m) {
        r.add(name, [&m, times] {
            double each = 0;
            await_groups(m, groups, times, each);
            return each;
        });
    };
    add("asyncmux", mux);
    add("asyncmux, 16 shards", grown.get());
    add("unsynchronized_asyncmux", single);
    r.add("floor, for each key",
          [times] { return guards_in_order<keyed_floor<key>::guard>(floor, groups, times); });
    r.add("map of std::mutex", [times] { return guards_in_order<map_guard>(map, groups, times); });
}

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

void limited(row& r)
{
    static amux::asyncmux<key> mux;
    static amux::manual_event_loop manual;
    static amux::event_loop real;
    r.add("lock", often([] { return mux.lock(1); }));
    r.add("try_lock_for, where time costs nothing",
          often([] { return mux.try_lock_for(1, 1h).resume_on(manual); }));
    r.add("try_lock_for, on event_loop",
          often([] { return mux.try_lock_for(1, 1h).resume_on(real); }));
    r.add("event_loop::now()", [] {
        const stopwatch watch;
        for (std::size_t n = 0; n != operations; ++n)
            keep(real.now());
        return watch.each(operations);
    });
}

prepared wait_for(amux::asyncmux<key>& mux, amux::clock::duration d, amux::manual_event_loop& loop)
{
    auto guard = co_await mux.try_lock_for(key{1}, d).resume_on(loop);
    keep(guard);
}

prepared sleep_for(amux::clock::duration d, amux::manual_event_loop& loop)
{
    keep(co_await loop.sleep_for(d));
}

/// `n` waits end, each at a time of its own. `make(duration)` makes one.
template <class Make>
double time_out(std::size_t n, amux::manual_event_loop& loop, Make make)
{
    const auto waiters =
        prepare(n, [&](std::size_t i) { return make(std::chrono::nanoseconds{1 + i * 7919 % n}); });
    for (const prepared& w : waiters)
        w.start();
    loop.advance(1h);
    const stopwatch watch;
    loop.run_ready();
    return watch.each(n);
}

void timed_out(row& r, std::size_t n)
{
    static amux::asyncmux<key> mux;
    static auto holder = mux.try_lock(1);
    static amux::manual_event_loop loop;
    r.rounds(11);
    r.add("asyncmux, try_lock_for",
          [n] { return time_out(n, loop, [](auto d) { return wait_for(mux, d, loop); }); });
    r.add("a sleep alone",
          [n] { return time_out(n, loop, [](auto d) { return sleep_for(d, loop); }); });
}

hooked await_with_context(amux::scheduler*, amux::asyncmux<key>& mux, double& each)
{
    const stopwatch watch;
    for (std::size_t n = 0; n != operations; ++n) {
        auto guard = co_await mux.lock(static_cast<key>(n));
        keep(guard);
    }
    each = watch.each(operations);
}

void options(row& r)
{
    static amux::asyncmux<key> plain;
    static amux::asyncmux<key> detecting{{.prevent_reentrancy = true}};
    static amux::asyncmux<key> recording{{.record_requests = true}};
    static amux::deadlock_detector detector;
    static amux::asyncmux<key> searching{{.deadlocks = &detector}};
    const auto add = [&r](const char* name, amux::asyncmux<key>& mux) {
        r.add(name, [&mux] {
            double each = 0;
            await_with_context(nullptr, mux, each);
            return each;
        });
    };
    add("without", plain);
    add("prevent_reentrancy", detecting);
    add("record_requests", recording);
    add("deadlocks", searching);
}

} // namespace

void add_several(table& t)
{
    for (const std::size_t n : {2UL, 8UL, most_keys})
        t.add("lock_all of " + short_number(n), [n](row& r) { lock_all(r, n); });
    t.add("a time limit, uncontended", limited);
    for (const std::size_t n : {1'000UL, 100'000UL})
        t.add("timed out, " + short_number(n), [n](row& r) { timed_out(r, n); });
    t.add("an option", options);
}

} // namespace bench

// SPDX-License-Identifier: BSL-1.0
// Without this file it would not be known what it costs to count locks and to trace them.
#include "rows.hpp"

#include "coroutines.hpp"
#include "muxes.hpp"

#include <amux/counting.hpp>
#include <amux/tracing.hpp>

namespace bench {

namespace {

constexpr std::size_t operations = 100'000;

template <class Threading>
using mux_with = amux::asyncmux<std::int64_t, Threading>;
using counting = mux_with<amux::counting<>>;
using tracing = mux_with<amux::tracing<std::int64_t>>;

template <class Mux>
detached await_in_turn(Mux& mux, double& each)
{
    const stopwatch watch;
    for (std::size_t n = 0; n != operations; ++n) {
        auto guard = co_await mux.lock(static_cast<std::int64_t>(n % 1'000));
        keep(guard);
    }
    each = watch.each(operations);
}

template <class Mux>
prepared wait_once(Mux& mux)
{
    auto guard = co_await mux.lock(1);
    keep(guard);
}

template <class Mux>
prepared hold(Mux& mux)
{
    auto guard = co_await mux.lock(1);
    co_await std::suspend_always{};
}

/// A thousand wait behind one that holds, and are handed the lock. Returns: nanoseconds for each, from its arrival on.
template <class Mux>
double pass_through(Mux& mux)
{
    const prepared holder = hold(mux);
    holder.start();
    const auto waiters = prepare(1'000, [&mux](std::size_t) { return wait_once(mux); });
    const stopwatch watch;
    for (const prepared& w : waiters)
        w.start();
    holder.start();
    return watch.each(waiters.size());
}

template <class Mux>
void add(row& r, bool waits, const char* name, Mux& mux, std::size_t events = 0)
{
    r.add(name, [waits, &mux, events] {
        if constexpr (requires { mux.observer().start(events); }) {
            if (events != 0)
                mux.observer().start(events);
        }
        double each = 0;
        if (waits)
            return pass_through(mux);
        await_in_turn(mux, each);
        return each;
    });
}

void observed(row& r, bool waits)
{
    static mux_with<amux::multi_threaded> plain;
    static counting counted;
    static tracing off;
    static tracing traced;
    static amux::unsynchronized_asyncmux<std::int64_t> single;
    static mux_with<amux::counting<amux::single_threaded>> single_counted;
    add(r, waits, "asyncmux", plain);
    add(r, waits, "counting", counted);
    add(r, waits, "tracing, not started", off);
    add(r, waits, "tracing", traced, 2 * operations);
    add(r, waits, "unsynchronized_asyncmux", single);
    add(r, waits, "counting, single_threaded", single_counted);
}

} // namespace

void add_observers(table& t)
{
    t.add("observed, a lock and its release", [](row& r) { observed(r, false); });
    t.add("observed, a wait and its end", [](row& r) { observed(r, true); });
}

} // namespace bench

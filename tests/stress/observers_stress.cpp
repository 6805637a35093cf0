// SPDX-License-Identifier: BSL-1.0
// Without this file observers are read only when nobody locks, which no exporter waits for.
#include "support/scale.hpp"

#include <amux/asyncmux.hpp>
#include <amux/counting.hpp>
#include <amux/lease_counters.hpp>
#include <amux/lock_hooks.hpp>
#include <amux/loop_thread.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>
#include <amux/task_group.hpp>
#include <amux/tracing.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

namespace {

using mux_type = amux::asyncmux<int, amux::tracing<int, amux::counting<>>>;

amux::task<> lock_often(mux_type& mux, int rounds)
{
    for (int i = 0; i != rounds; ++i) {
        auto guard = co_await mux.lock(i % 3);
        guard.downgrade();
    }
}

amux::task<> join(amux::task_group& group)
{
    co_await group.join();
}

} // namespace

TEST_CASE("observers: are read while threads lock, and lose no count", "[stress][observers]")
{
    const int rounds = support::scaled(5'000);
    mux_type mux;
    amux::loop_thread a;
    amux::loop_thread b;
    amux::task_group on_a{a.loop()};
    amux::task_group on_b{b.loop()};
    for (int i = 0; i != 4; ++i) {
        on_a.spawn(lock_often(mux, rounds));
        on_b.spawn(lock_often(mux, rounds));
    }
    mux.observer().start(static_cast<std::size_t>(rounds) * 8);
    std::uint64_t seen = 0;
    bool falls = false;
    std::size_t most_dropped = 0;
    std::string document;
    for (int i = 0; i != 20; ++i) {
        const amux::mux_counts c = mux.observer().counts();
        falls = falls || c.grants_after_wait + c.grants_at_once < seen;
        seen = (std::max)(seen, c.grants_after_wait + c.grants_at_once);
        most_dropped = (std::max)(most_dropped, mux.observer().dropped());
        document = mux.observer().chrome_trace();
    }
    amux::sync_wait(join(on_a));
    amux::sync_wait(join(on_b));
    CHECK_FALSE(falls);
    CHECK(document.ends_with("]}\n"));
    const amux::mux_counts c = mux.observer().counts();
    const auto locks = static_cast<std::uint64_t>(rounds) * 8;
    CHECK(c.grants_at_once + c.grants_after_wait == locks);
    CHECK(c.releases == locks);
    CHECK(c.waits == c.grants_after_wait);
    CHECK(c.held() + c.waiting() == 0);
    CHECK(c.longest_wait <= c.total_wait);
    CHECK(most_dropped <= 4 * locks); // a wait, a grant, a downgrade and a release of each
}

TEST_CASE("observers: leases of several loops are counted while somebody reads",
          "[stress][observers]")
{
    const auto rounds = static_cast<std::uint64_t>(support::scaled(20'000));
    const amux::manual_event_loop time;
    amux::lease_counters counters{time};
    const amux::lock_hooks hooks = counters.hooks();
    const auto work = [&](const char* token) {
        amux::lock_event e;
        e.token = token;
        for (std::uint64_t i = 0; i != rounds; ++i) {
            hooks.on_acquire(e);
            hooks.on_release(e);
        }
    };
    std::thread one{work, "one"};
    std::thread two{work, "two"};
    bool halves = false;
    for (int i = 0; i != 100; ++i)
        halves = halves || counters.counts().held() > 2;
    one.join();
    two.join();
    CHECK_FALSE(halves);
    CHECK(counters.counts().acquired == 2 * rounds);
    CHECK(counters.counts().held() == 0);
}

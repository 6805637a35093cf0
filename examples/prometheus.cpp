// SPDX-License-Identifier: BSL-1.0
// Metrics: what two muxes and the leases of a process have done, in the text format of Prometheus.
#include "check.hpp"
#include "prometheus/text.hpp"

#include <amux/amux.hpp>

#include <chrono>
#include <cstdio>
#include <stop_token>
#include <string>

namespace {

using namespace std::chrono_literals;

/// The muxes of a real program need none: theirs is `amux::clock`.
struct loop_clock {
    static amux::clock::time_point now() noexcept { return loop->now(); }
    static inline const amux::manual_event_loop* loop = nullptr;
};

// [policy]
using counted = amux::counting<amux::multi_threaded, loop_clock>; // in yours: amux::counting<>
using counted_mux = amux::asyncmux<std::string, counted>;
// [/policy]

amux::task<> transfer(counted_mux& accounts, amux::manual_event_loop& loop)
{
    auto guard = co_await accounts.lock_all("ann", "bob");
    co_await loop.sleep_for(30ms);
}

amux::task<> impatient(counted_mux& accounts)
{
    static_cast<void>(co_await accounts.try_lock_for("ann", 10ms));
}

template <class Locks>
amux::task<> nightly(Locks& locks, amux::manual_event_loop& loop)
{
    auto lease = co_await locks.acquire("nightly", {.ttl = 6s, .renew = true});
    co_await loop.sleep_for(10s);
}

} // namespace

int main()
{
    amux::manual_event_loop loop;
    loop_clock::loop = &loop;
    counted_mux accounts;
    counted_mux reports;
    // [leases]
    amux::memory_backend store{loop};
    amux::lease_counters leases{loop};
    amux::distributed_lock locks{store, loop, {}, leases.hooks()}; // hooks of yours: hooks(yours)
    // [/leases]

    for (int i = 0; i != 3; ++i)
        loop.spawn(transfer(accounts, loop));
    loop.spawn(impatient(accounts));
    loop.spawn(nightly(locks, loop));
    for (int i = 0; i != 2'000; ++i) {
        loop.run_ready();
        loop.advance(10ms);
    }

    // [page]
    std::string page = prometheus::text_of<amux::mux_counts>(
        "mux",
        {{"accounts", accounts.observer().counts()}, {"reports", reports.observer().counts()}});
    page += prometheus::text_of<amux::lease_counts>("locks", {{"jobs", leases.counts()}});
    // [/page]
    std::fputs(page.c_str(), stdout);

    const amux::mux_counts c = accounts.observer().counts();
    check(c.grants_at_once == 1 && c.grants_after_wait == 2 && c.waits_given_up == 1,
          "one at once, two after a wait, one was too impatient");
    check(c.total_wait == 100ms && c.longest_wait == 60ms, "they waited for 30, 60 and 10 ms");
    check(leases.counts().late_renewals == 0 && leases.counts().renewals >= 4,
          "the lease was renewed in time");
}

// SPDX-License-Identifier: BSL-1.0
// Leader election: of all processes that want to, one does the work; when it stops, or is cut off, another takes over.
// Here two "processes" share a store and a clock that we move.
#include "check.hpp"

#include <amux/amux.hpp>

#include <chrono>
#include <cstdio>
#include <stop_token>
#include <string>

namespace {

using namespace std::chrono_literals;

struct process {
    process(const char* n, amux::memory_backend& store, amux::manual_event_loop& l)
        : name{n}, loop{l}, locks{store, l}
    {}

    const char* name;
    amux::manual_event_loop& loop;
    amux::distributed_lock<amux::memory_backend&> locks;
    std::stop_source shutdown;
    bool leads = false;
    bool home = false;
    int ticks = 0;
};

// [leader]
/// Runs while this process leads. It must end soon after `lost_token` stops: somebody else may lead by then. After a
/// pause the token may be a little late, `is_held()` never is.
amux::task<> lead(process& p, amux::acquired_lock& lease)
{
    p.leads = true;
    const std::stop_token lost = lease.lost_token();
    while (co_await p.loop.sleep_for(1s, lost) && lease.is_held())
        ++p.ticks; // the work of the leader
    p.leads = false;
}

amux::task<> campaign(process& p)
{
    const auto fn = [&p](amux::acquired_lock& lease) { return lead(p, lease); };
    co_await p.locks.run_as_leader("scheduler", fn, {.ttl = 5s}, p.shutdown.get_token());
    p.home = true; // only after a stop, or when `lead` has ended by itself
}
// [/leader]

void pass(amux::manual_event_loop& loop, int seconds)
{
    for (int i = 0; i != seconds * 10; ++i) {
        loop.advance(100ms);
        loop.run_ready();
    }
}

} // namespace

int main()
{
    amux::manual_event_loop loop;
    amux::memory_backend store{loop};
    process a{"a", store, loop};
    process b{"b", store, loop};
    loop.spawn(campaign(a));
    loop.spawn(campaign(b));

    pass(loop, 20); // four times the ttl: it is renewed
    std::printf("a has led for %d s\n", a.ticks);
    check(a.leads && !b.leads && a.ticks >= 19, "one leads, the other waits");

    a.shutdown.request_stop(); // a ends in good order: its lease is released
    pass(loop, 1);
    check(a.home && !a.leads && b.leads, "b takes over at once, not after the ttl");

    const int before = b.ticks;
    loop.advance(10s); // b is suspended for longer than its lease lasts
    loop.run_ready();
    check(b.ticks == before, "b does nothing that the lease does not cover");
    check(b.leads && !b.home, "it has ended, and was elected anew, as nobody else wanted");
    pass(loop, 5);

    b.shutdown.request_stop();
    pass(loop, 1);
    std::printf("b has led for %d s\n", b.ticks);
    check(b.home && store.size() == 0, "nobody leads, no lease is left");
}

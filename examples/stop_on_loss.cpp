// SPDX-License-Identifier: BSL-1.0
// Work that stops when its lease is lost: lost_token goes wherever a stop token goes. Here an operator frees the key.
#include "check.hpp"

#include <amux/amux.hpp>

#include <chrono>
#include <cstdio>
#include <stop_token>
#include <string>

namespace {

using namespace std::chrono_literals;

using lease_locks = amux::distributed_lock<amux::memory_backend&>;

struct outcome {
    int steps = 0;
    bool told_by_extend = false;
    bool told_by_with_lock = false;
};

// [work]
/// Stops at the next step, not in the middle of one.
amux::task<> migrate(amux::manual_event_loop& loop, amux::acquired_lock& lease, outcome& o)
{
    const std::stop_token lost = lease.lost_token();
    while (co_await loop.sleep_for(1s, lost))
        ++o.steps;
    try {
        co_await lease.extend(); // a lease that is over cannot be revived
    } catch (const amux::lock_ended_error& e) {
        o.told_by_extend = e.reason() == amux::end_reason::expired;
    }
}

amux::task<> migrate_alone(lease_locks& locks, amux::manual_event_loop& loop, outcome& o)
{
    const auto fn = [&](amux::acquired_lock& lease) { return migrate(loop, lease, o); };
    try {
        // lost_token stops 2 s before the lease would run out: time to leave in good order.
        co_await locks.with_lock("schema", fn, {.ttl = 10s, .renew = true, .stop_margin = 2s});
    } catch (const amux::lock_ended_error& e) { // migrate came back, but not under the lease
        std::printf("%s\n", e.what());
        o.told_by_with_lock = true;
    }
}
// [/work]

// [operator]
amux::task<bool> free_by_force(lease_locks& locks, std::string key)
{
    const auto lease = co_await locks.inspect(key);
    if (!lease)
        co_return false;
    co_return co_await locks.release(key, lease->token); // whoever holds it
}
// [/operator]

amux::task<> operate(lease_locks& locks, bool& freed)
{
    const bool done = co_await free_by_force(locks, "schema");
    freed = done;
}

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
    amux::distributed_lock locks{store, loop};
    amux::distributed_lock desk{store, loop}; // of another process
    outcome o;
    loop.spawn(migrate_alone(locks, loop, o));
    pass(loop, 20);
    check(o.steps >= 19 && !o.told_by_extend, "at work");

    bool freed = false;
    loop.spawn(operate(desk, freed));
    pass(loop, 10); // the next renewal is refused: that is when the holder learns of it
    check(freed && o.told_by_extend && o.told_by_with_lock, "it has stopped, and knows why");
    check(o.steps < 25, "soon: within a third of the ttl, and a step");
    std::printf("stopped after %d steps\n", o.steps);
}

// SPDX-License-Identifier: BSL-1.0
// A job that takes longer than its ttl. A short ttl lets others take over soon when the process dies; renewal keeps the
// lease while it lives; max_hold is the brake for a job that hangs.
#include "check.hpp"

#include <amux/amux.hpp>

#include <chrono>
#include <cstdio>

namespace {

using namespace std::chrono_literals;

using lease_locks = amux::distributed_lock<amux::memory_backend&>;

// [job]
amux::task<> rebuild_index(lease_locks& locks, amux::manual_event_loop& loop, int& pages)
{
    auto lease = co_await locks.acquire("index", {.ttl = 6s, .renew = true});
    while (pages != 60 && lease.is_held()) { // is_held() costs no I/O: ask as often as you like
        co_await loop.sleep_for(1s);
        ++pages;
    }
    co_await lease.release(); // ends the renewal too
}
// [/job]

// [max_hold]
amux::task<amux::end_reason> hang(lease_locks& locks, amux::clock::duration& held,
                                  amux::manual_event_loop& loop)
{
    const auto start = loop.now();
    auto lease = co_await locks.acquire("index", {.ttl = 6s, .renew = true, .max_hold = 20s});
    const amux::lock_end end = co_await lease.ended(); // this job never ends by itself
    held = loop.now() - start;
    co_return end.reason;
}
// [/max_hold]

amux::task<> watch_it_hang(lease_locks& locks, amux::clock::duration& held,
                           amux::manual_event_loop& loop, bool& expired)
{
    const amux::end_reason why = co_await hang(locks, held, loop);
    expired = why == amux::end_reason::expired;
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
    int renewals = 0;
    const auto count = [&renewals](const amux::lock_event&) { ++renewals; };
    amux::distributed_lock locks{store, loop, {}, {.on_renew = count}};

    int pages = 0;
    loop.spawn(rebuild_index(locks, loop, pages));
    pass(loop, 50);
    check(store.size() == 1, "held for many times its ttl");
    pass(loop, 20);
    check(pages == 60 && store.size() == 0, "done, and released");
    std::printf("60 s of work under a ttl of 6 s: %d renewals\n", renewals);
    check(renewals >= 20 && renewals <= 60, "one for each third of the ttl, or a little more");

    amux::clock::duration held{};
    bool expired = false;
    loop.spawn(watch_it_hang(locks, held, loop, expired));
    pass(loop, 40);
    std::printf("a job that hangs: lost after %.1f s\n",
                std::chrono::duration<double>{held}.count());
    // The last renewal comes before max_hold is over, and gives one more ttl; time goes in steps of 100 ms here.
    check(expired && held > 20s && held <= 26s + 100ms, "max_hold, and then at most one ttl");
    check(store.size() == 0, "others can go on");
}

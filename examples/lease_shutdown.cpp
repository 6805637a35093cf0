// SPDX-License-Identifier: BSL-1.0
// Shutdown with leases: stop the work, wait for it, drain the lock. Then nothing is left in the store, and what is
// declared below what it needs is destroyed before it.
#include "check.hpp"

#include <amux/amux.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <stop_token>
#include <string>
#include <thread>

namespace {

using namespace std::chrono_literals;

using lease_locks = amux::distributed_lock<amux::memory_backend&>;

struct counts {
    std::atomic<int> jobs{0};
    std::atomic<int> home{0};
};

// [worker]
amux::task<> worker(lease_locks& locks, amux::event_loop& loop, std::stop_token stop, counts& c)
{
    try {
        for (;;) {
            auto lease = co_await locks.acquire("queue", {.renew = true}, stop);
            co_await loop.sleep_for(1ms, lease.lost_token()); // `stop` ends the lease too
            ++c.jobs;
        }
    } catch (const amux::lock_cancelled_error&) { // stopped while it waited
        ++c.home;
    }
}
// [/worker]

// [shutdown]
amux::task<bool> shut_down(amux::task_group& workers, lease_locks& locks)
{
    co_await workers.join(); // no call and no handle is left
    co_return co_await locks.drain(5s); // their releases are answered; false: some were not
}

bool serve_for_a_while(amux::memory_backend& store, counts& c)
{
    amux::loop_thread thread; // renews and waits, whatever the threads of the work do
    lease_locks locks{store, thread.loop()}; // after the loop: the loop outlives it
    amux::task_group workers{thread.loop()};
    std::stop_source stop;
    for (int i = 0; i != 10; ++i)
        workers.spawn(worker(locks, thread.loop(), stop.get_token(), c));
    while (c.jobs < 20)
        std::this_thread::sleep_for(1ms);

    stop.request_stop();
    return amux::sync_wait(shut_down(workers, locks));
}
// [/shutdown]

} // namespace

int main()
{
    amux::memory_backend store;
    counts c;
    const bool clean = serve_for_a_while(store, c);
    std::printf("%d jobs done, %d workers home\n", c.jobs.load(), c.home.load());
    check(clean && c.home == 10, "all are home, all answers are there");
    check(store.size() == 0, "no lease is left");
}

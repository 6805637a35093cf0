// SPDX-License-Identifier: BSL-1.0
// A lease: a lock that processes share through a store, and that ends by itself when its holder dies.
#include "check.hpp"

#include <amux/amux.hpp>

#include <chrono>
#include <cstdio>

namespace {

using namespace std::chrono_literals;

using lease_locks = amux::distributed_lock<amux::memory_backend&>;

// [work]
amux::task<bool> send_invoices(lease_locks& locks, int& sent)
{
    amux::acquired_lock lease = co_await locks.acquire("invoices", {.ttl = 10s});
    ++sent; // whoever shares the store waits, or finds the key taken
    // False: it was lost before its end, so somebody else may have sent them too.
    co_return co_await lease.release();
}
// [/work]

// [try]
amux::task<bool> send_unless_busy(lease_locks& locks, int& sent)
{
    auto lease = co_await locks.try_acquire("invoices"); // one question, no waiting
    if (!lease)
        co_return false;
    ++sent;
    co_return true;
} // released here too: the request is sent, nobody waits for its answer
// [/try]

amux::task<bool> another_is_refused(lease_locks& here, lease_locks& there, int& sent)
{
    auto lease = co_await here.acquire("invoices");
    const bool got_it = co_await send_unless_busy(there, sent);
    co_return !got_it;
}

} // namespace

int main()
{
    int sent = 0;
    // [main]
    amux::memory_backend store; // one that processes share goes here
    amux::event_loop loop;
    amux::distributed_lock locks{store, loop}; // after both: they outlive it
    const bool ours = loop.block_on(send_invoices(locks, sent));
    // [/main]
    check(ours && sent == 1, "it was ours from the grant to the release");

    amux::distributed_lock others{store, loop}; // as another process would have
    check(loop.block_on(another_is_refused(locks, others, sent)), "one at a time");
    check(loop.block_on(send_unless_busy(others, sent)) && sent == 2, "then it is free again");
    check(store.size() == 0, "no lease is left");
    std::printf("invoices sent %d times, one after another\n", sent);
}

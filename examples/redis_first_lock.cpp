// SPDX-License-Identifier: BSL-1.0
#include <amux/amux.hpp>
#include <amux/redis_backend.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>

using redis_locks = amux::distributed_lock<amux::redis_backend>;

amux::task<> import_orders(redis_locks& locks, int& imported)
{
    auto lease = co_await locks.acquire("orders", {.renew = true});
    ++imported; // the only one of all processes
    co_await lease.release();
}

int main()
{
    const char* const url = std::getenv("AMUX_REDIS_URL");
    try {
        amux::loop_thread thread; // renews and waits, whatever the other threads do
        redis_locks locks = amux::make_redis_lock(url ? url : "redis://127.0.0.1", thread.loop());
        int imported = 0;
        amux::sync_wait(
            amux::when_all(import_orders(locks, imported), import_orders(locks, imported)));
        std::printf("%d imports\n", imported);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}

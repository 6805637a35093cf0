// SPDX-License-Identifier: BSL-1.0
// Leases in a Redis server: one call to begin, counters, and work that stops when its lease is lost. The server
// is the one in AMUX_REDIS_URL.
#include "check.hpp"

#include <amux/amux.hpp>
#include <amux/redis_backend.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

namespace {

using namespace std::chrono_literals;

// [work]
using redis_locks = amux::distributed_lock<amux::redis_backend>;

amux::task<> import_orders(redis_locks& locks, int& imported)
{
    auto lease = co_await locks.acquire("orders", {.ttl = 10s, .renew = true});
    ++imported; // the only one of all processes
    co_await lease.release();
}
// [/work]

// [lost]
/// Ends soon after its lease is lost.
amux::task<> copy_pages(amux::event_loop& loop, amux::acquired_lock& lease, std::atomic<int>& pages)
{
    const std::stop_token lost = lease.lost_token();
    // After a wait ask is_held(): it costs no request, and it is never late.
    while (co_await loop.sleep_for(20ms, lost) && lease.is_held())
        ++pages; // written with lease.fence(), so that a page too late is refused
}

/// Begins anew when the lease is lost, until `stop`.
amux::task<> mirror(redis_locks& locks, amux::event_loop& loop, std::atomic<int>& pages,
                    std::stop_token stop)
{
    const auto fn = [&](amux::acquired_lock& lease) { return copy_pages(loop, lease, pages); };
    // 0.3 s before the lease would run out lost_token stops: time to leave in good order.
    co_await locks.run_as_leader("mirror", fn, {.ttl = 1s, .stop_margin = 300ms}, stop);
}
// [/lost]

// [by_force]
/// What an operator does about a holder that hangs. It learns of the loss by its next renewal.
amux::task<bool> free_by_force(redis_locks& locks, std::string key)
{
    const auto lease = co_await locks.inspect(key);
    if (!lease)
        co_return false;
    co_return co_await locks.release(key, lease->token);
}
// [/by_force]

std::string server()
{
    const char* url = std::getenv("AMUX_REDIS_URL");
    return url ? url : "redis://127.0.0.1:6379";
}

template <class Condition>
void wait_until(Condition condition)
{
    const auto limit = amux::clock::now() + 20s;
    while (!condition() && amux::clock::now() < limit)
        std::this_thread::sleep_for(5ms);
    check(condition(), "it happens in the end");
}

void begin(const std::string& url)
{
    int imported = 0;
    // [begin]
    amux::loop_thread thread; // renews and waits, whatever the other threads do
    redis_locks locks = amux::make_redis_lock(url, thread.loop(), {.default_ttl = 10s});
    amux::sync_wait(import_orders(locks, imported));
    // [/begin]
    check(imported == 1, "done once");
}

// [options]
redis_locks connect(int port, amux::scheduler& loop, amux::lease_counters& counters)
{
    const amux::redis_options where{.host = "127.0.0.1",
                                    .port = port,
                                    .key_prefix = "shop", // one for each program
                                    .command_timeout = 3s, // well below the ttl
                                    .client_name = "mirror"};
    return amux::make_redis_lock(where, loop, {.default_ttl = 10s}, counters.hooks());
}
// [/options]

void lose_one(int port)
{
    std::atomic<int> pages = 0;
    amux::loop_thread thread;
    amux::lease_counters counters{thread.loop()};
    redis_locks locks = connect(port, thread.loop(), counters);
    amux::lease_counters of_the_desk{thread.loop()};
    redis_locks desk = connect(port, thread.loop(), of_the_desk); // of another process
    std::stop_source stop;
    amux::task_group work{thread.loop()};
    work.spawn(mirror(locks, thread.loop(), pages, stop.get_token()));
    wait_until([&] { return counters.counts().renewals >= 2 && pages >= 2; });

    bool freed = false; // none is there for a moment where a slow machine has lost it
    wait_until([&] { return freed = freed || amux::sync_wait(free_by_force(desk, "mirror")); });
    wait_until([&] { return counters.counts().acquired >= 2; });
    const int before = pages;
    wait_until([&] { return pages > before; });

    stop.request_stop();
    amux::sync_wait(work.join());
    check(amux::sync_wait(locks.drain(5s)), "the server has answered");
    // [metrics]
    const amux::lease_counts c = counters.counts();
    for (const amux::metric& m : c.metrics())
        std::printf("%s %g\n", m.name, m.value);
    // [/metrics]
    std::printf("%d pages\n", pages.load());
    check(c.expired >= 1 && c.held() == 0, "it was lost, and had again");
}

} // namespace

int main()
{
    try {
        const std::string url = server();
        begin(url);
        lose_one(std::stoi(url.substr(url.rfind(':') + 1)));
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}

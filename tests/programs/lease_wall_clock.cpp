// SPDX-License-Identifier: BSL-1.0
// Without this program nobody sees when a lease listens to the wall clock, which may step by an hour.
//
// It puts its own `clock_gettime` before that of the C library, and moves the wall clock while a lease is held.
#include <amux/distributed_lock.hpp>
#include <amux/event_loop.hpp>
#include <amux/memory_backend.hpp>

#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__has_feature)
#define HAS_FEATURE(x) __has_feature(x)
#else
#define HAS_FEATURE(x) 0
#endif

using namespace std::chrono_literals;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || HAS_FEATURE(thread_sanitizer)

// A sanitizer has a `clock_gettime` of its own.
int main()
{
    return 77;
}

#else

namespace {

long seconds_off = 0;

int failures = 0;

void check(bool good, const char* what)
{
    if (good)
        return;
    ++failures;
    std::fprintf(stderr, "not so: %s\n", what);
}

amux::task<> hold_through_steps(amux::event_loop& loop)
{
    amux::memory_backend store;
    int lost = 0;
    int renewed = 0;
    amux::lock_hooks hooks;
    hooks.on_lost = [&](const amux::lock_event&) { ++lost; };
    hooks.on_renew = [&](const amux::lock_event&) { ++renewed; };
    amux::distributed_lock locks{store, loop, {}, hooks};
    {
        amux::acquired_lock kept =
            co_await locks.acquire("kept", {.ttl = 60s, .renew = true, .renew_interval = 10ms});
        amux::acquired_lock runs_out = co_await locks.acquire("runs out", {.ttl = 4s});
        const auto until = runs_out.valid_until();
        for (const long step : {3600L, -3600L, -7200L, 86400L}) {
            seconds_off = step;
            co_await loop.sleep_for(20ms);
            check(kept.is_held() && runs_out.is_held(), "a step of the wall clock ends no lease");
            check(runs_out.valid_until() == until, "nor does it move the end");
            const auto away = runs_out.expires_at() - std::chrono::system_clock::now();
            check(away < 5s && away > -30s, "the end is told by the clock that people see");
            // The same is true of one who waits.
            std::optional<amux::acquired_lock> other = co_await locks.try_acquire("kept");
            check(!other, "and it lets nobody else in");
        }
        while (runs_out.is_held())
            co_await loop.sleep_for(5ms);
        check(loop.now() >= until, "a lease lasts as long as it was granted for");
        const int before = renewed;
        for (int n = 0; n < 1'000 && renewed == before; ++n)
            co_await loop.sleep_for(10ms);
        check(kept.is_held() && renewed > before, "renewals go on");
        check(lost == 1, "one lease was lost: the one that ran out");
    }
    co_await locks.drain(5s);
}

} // namespace

extern "C" int clock_gettime(clockid_t which, timespec* t) noexcept
{
    const long code = syscall(SYS_clock_gettime, which, t);
    if (code == 0 && which == CLOCK_REALTIME)
        t->tv_sec += seconds_off;
    return static_cast<int>(code);
}

int main()
{
    const auto before = std::chrono::system_clock::now();
    seconds_off = 3600;
    const bool moves = std::chrono::system_clock::now() - before > 30min;
    seconds_off = 0;
    if (!moves)
        return 77; // this C++ library does not ask the C library
    amux::event_loop loop;
    loop.block_on(hold_through_steps(loop));
    return failures == 0 ? 0 : 1;
}

#endif

// SPDX-License-Identifier: BSL-1.0
// Without this file the mutexes of `event_loop` and `memory_backend`, and what `std::stop_callback` waits for, would
// stop the one thread on which all fibres run.
//
// These functions stand before those of the C library of the same name, in this executable: on a fibre they act on
// fibres, elsewhere they pass the call on.
#include "schedules/explorer.hpp"

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <ctime>
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>

namespace {

namespace s = schedules;

template <class F>
F* next(F*, const char* name)
{
    return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

constexpr int mutex_locked = 1;

void lock(pthread_mutex_t* m)
{
    int& state = m->__data.__lock;
    while (state == mutex_locked)
        s::block(m, "waits for a std::mutex");
    s::require(state == 0, "a std::mutex is locked that is gone");
    state = mutex_locked;
}

void unlock(pthread_mutex_t* m)
{
    int& state = m->__data.__lock;
    s::require(state == mutex_locked, "a std::mutex is unlocked that is gone, or not locked");
    state = 0;
    s::wake_all(m);
}

std::int64_t nanoseconds(const timespec* t)
{
    return std::int64_t{t->tv_sec} * 1'000'000'000 + t->tv_nsec;
}

int wait_until(pthread_cond_t* c, pthread_mutex_t* m, const timespec* due)
{
    unlock(m);
    const bool woken = s::block_until(c, nanoseconds(due), "sleeps until a time");
    lock(m);
    return woken ? 0 : ETIMEDOUT;
}

} // namespace

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* m) noexcept
{
    if (!s::on_fibre()) {
        static const auto real = next(&pthread_mutex_lock, "pthread_mutex_lock");
        return real(m);
    }
    s::point("before a std::mutex is locked");
    lock(m);
    return 0;
}

int pthread_mutex_trylock(pthread_mutex_t* m) noexcept
{
    if (!s::on_fibre()) {
        static const auto real = next(&pthread_mutex_trylock, "pthread_mutex_trylock");
        return real(m);
    }
    s::point("before a std::mutex is tried");
    if (m->__data.__lock == mutex_locked)
        return EBUSY;
    lock(m);
    return 0;
}

int pthread_mutex_unlock(pthread_mutex_t* m) noexcept
{
    if (!s::on_fibre()) {
        static const auto real = next(&pthread_mutex_unlock, "pthread_mutex_unlock");
        return real(m);
    }
    unlock(m);
    s::point("after a std::mutex was unlocked");
    return 0;
}

int pthread_cond_wait(pthread_cond_t* c, pthread_mutex_t* m)
{
    if (!s::on_fibre()) {
        static const auto real = next(&pthread_cond_wait, "pthread_cond_wait");
        return real(c, m);
    }
    unlock(m);
    s::block(c, "sleeps");
    lock(m);
    return 0;
}

int pthread_cond_timedwait(pthread_cond_t* c, pthread_mutex_t* m, const timespec* due)
{
    if (!s::on_fibre()) {
        static const auto real = next(&pthread_cond_timedwait, "pthread_cond_timedwait");
        return real(c, m, due);
    }
    return wait_until(c, m, due);
}

int pthread_cond_clockwait(pthread_cond_t* c, pthread_mutex_t* m, clockid_t clock,
                           const timespec* due)
{
    if (!s::on_fibre()) {
        static const auto real = next(&pthread_cond_clockwait, "pthread_cond_clockwait");
        return real(c, m, clock, due);
    }
    return wait_until(c, m, due);
}

int pthread_cond_signal(pthread_cond_t* c) noexcept
{
    if (!s::on_fibre()) {
        static const auto real = next(&pthread_cond_signal, "pthread_cond_signal");
        return real(c);
    }
    s::point("before a condition is told");
    s::wake_one(c);
    return 0;
}

int pthread_cond_broadcast(pthread_cond_t* c) noexcept
{
    if (!s::on_fibre()) {
        static const auto real = next(&pthread_cond_broadcast, "pthread_cond_broadcast");
        return real(c);
    }
    s::point("before a condition is told");
    s::wake_all(c);
    return 0;
}

// To a compiler this is a constant; rightly, because a function is run by one fibre until it returns.
pthread_t pthread_self() noexcept
{
    if (!s::on_fibre()) {
        static const auto real = next(&pthread_self, "pthread_self");
        return real();
    }
    return static_cast<pthread_t>(s::thread() + 1);
}

int sched_yield() noexcept
{
    if (!s::on_fibre()) {
        static const auto real = next(&sched_yield, "sched_yield");
        return real();
    }
    s::yield();
    return 0;
}

int clock_gettime(clockid_t clock, timespec* t) noexcept
{
    if (!s::exploring()) {
        static const auto real = next(&clock_gettime, "clock_gettime");
        return real(clock, t);
    }
    t->tv_sec = static_cast<time_t>(s::now() / 1'000'000'000);
    t->tv_nsec = static_cast<long>(s::now() % 1'000'000'000);
    return 0;
}

// libstdc++ waits on an atomic with SYS_futex.
long syscall(long number, ...) noexcept
{
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (long& each : a)
        each = va_arg(arguments, long);
    va_end(arguments);
    if (number != SYS_futex || !s::on_fibre()) {
        static const auto real = next(&syscall, "syscall");
        return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    const auto* const address = reinterpret_cast<const int*>(a[0]);
    switch (a[1] & FUTEX_CMD_MASK) {
        case FUTEX_WAIT:
        case FUTEX_WAIT_BITSET:
            if (*address == static_cast<int>(a[2]))
                s::block(address, "waits on an atomic");
            return 0;
        case FUTEX_WAKE:
        case FUTEX_WAKE_BITSET:
            s::wake_all(address);
            return 0;
        default:
            s::fail("a futex operation that is not known");
    }
}

} // extern "C"

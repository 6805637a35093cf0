// SPDX-License-Identifier: BSL-1.0
// Without this file a long queue that is released at once may overflow the stack of the thread that releases.
//
// A million coroutines wait for one key; then its holder lets go. They are resumed on a thread with a small stack, in
// each way in which a waiter can be resumed. A hand-over that nests, by as little as a return address per waiter, does
// not fit there.
#include <amux/asyncmux.hpp>
#include <amux/event_loop.hpp>
#include <amux/task.hpp>

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stop_token>
#include <utility>

#if defined(__has_feature)
#define HAS_FEATURE(x) __has_feature(x)
#else
#define HAS_FEATURE(x) 0
#endif

namespace {

#if defined(__SANITIZE_THREAD__) || HAS_FEATURE(thread_sanitizer)
constexpr int waiters = 100000; // the sanitizer's own memory
#else
constexpr int waiters = 1000000;
#endif
// What the frames of a few calls need, sanitized and without optimization, with room to spare: a byte a waiter.
constexpr std::size_t stack_size = std::size_t{1024} * 1024;

using mux_type = amux::asyncmux<int>;

struct detached {
    struct promise_type {
        detached get_return_object() const noexcept { return {}; }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }
    };
};

struct counters {
    int served = 0;
    int stopped = 0;
    int closed = 0;
};

detached waits(mux_type& mux, amux::lock_mode mode, amux::scheduler* where, std::stop_token stop,
               counters& count)
{
    try {
        auto asked = mode == amux::lock_mode::shared ? mux.lock_shared(int{1}, std::move(stop))
                                                     : mux.lock(int{1}, std::move(stop));
        auto g = co_await std::move(asked).resume_on(where);
        ++count.served;
    } catch (const amux::lock_cancelled_error&) {
        ++count.stopped;
    } catch (const amux::lock_closed_error&) {
        ++count.closed;
    }
}

amux::task<> waits_in_task(mux_type& mux, counters& count)
{
    auto g = co_await mux.lock(1);
    ++count.served;
}

enum class place { releasing_thread, loop, task };

bool is(const char* what, int found, int expected)
{
    if (found != expected)
        std::printf("%s: %d instead of %d\n", what, found, expected);
    return found == expected;
}

bool release(const char* what, amux::lock_mode mode, place where)
{
    mux_type mux;
    amux::event_loop loop;
    counters count;
    auto holder = mux.try_lock(1);
    for (int i = 0; i != waiters; ++i) {
        if (where == place::task)
            loop.spawn(waits_in_task(mux, count));
        else
            waits(mux, mode, where == place::loop ? &loop : nullptr, {}, count);
    }
    loop.run_ready();
    holder.unlock();
    loop.run_ready();
    return is(what, count.served, waiters) && is(what, static_cast<int>(mux.tracked_keys()), 0);
}

/// One call tells them all. An exception each is slow, so they are fewer.
bool stop_and_close()
{
    constexpr int some = waiters / 10;
    mux_type mux;
    counters count;
    std::stop_source stop;
    auto holder = mux.try_lock(1);
    for (int i = 0; i != some; ++i)
        waits(mux, amux::lock_mode::exclusive, nullptr, stop.get_token(), count);
    stop.request_stop();
    for (int i = 0; i != some; ++i)
        waits(mux, amux::lock_mode::exclusive, nullptr, {}, count);
    mux.close();
    return is("stopped", count.stopped, some) && is("closed", count.closed, some);
}

void* run(void* result)
{
    using amux::lock_mode;
    bool& good = *static_cast<bool*>(result);
    good =
        release("writers, on the releasing thread", lock_mode::exclusive,
                place::releasing_thread) &&
        release("readers, on the releasing thread", lock_mode::shared, place::releasing_thread) &&
        release("writers, on a loop", lock_mode::exclusive, place::loop) &&
        release("readers, on a loop", lock_mode::shared, place::loop) &&
        release("tasks", lock_mode::exclusive, place::task) && stop_and_close();
    return nullptr;
}

} // namespace

int main()
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, stack_size) != 0) {
        std::puts("no thread with a small stack");
        return 1;
    }
    bool good = false;
    pthread_t thread;
    if (pthread_create(&thread, &attributes, &run, &good) != 0) {
        std::puts("no thread");
        return 1;
    }
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
    return good ? 0 : 1;
}

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>

#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#else
#include <thread>
#endif

namespace amux::detail {

/// A mutex for sections of a few dozen instructions: spins briefly, then yields the processor until it is free.
///
/// It must yield: the holder may have been taken off the only processor. After `unlock` has stored, it touches nothing,
/// so the next holder may destroy it.
class spin_lock {
public:
    bool try_lock() noexcept { return !locked_.exchange(true, std::memory_order_acquire); }

    void lock() noexcept
    {
        if (!try_lock()) [[unlikely]]
            wait_and_lock();
    }

    void unlock() noexcept { locked_.store(false, std::memory_order_release); }

    /// Lets another thread run.
    static void yield() noexcept
    {
#if defined(__unix__) || defined(__APPLE__)
        sched_yield();
#else
        std::this_thread::yield();
#endif
    }

private:
    [[gnu::noinline]] void wait_and_lock() noexcept
    {
        for (int spins = 0; locked_.load(std::memory_order_relaxed) || !try_lock(); ++spins) {
            if (spins < 64)
                pause();
            else
                yield();
        }
    }

    static void pause() noexcept
    {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    std::atomic<bool> locked_{false};
};

/// Holds a mutex to the end of its scope. (That of the standard library would cost every user its header.)
template <class Mutex>
class [[nodiscard]] lock_scope {
public:
    explicit lock_scope(Mutex& m) noexcept : mutex_{m} { mutex_.lock(); }
    lock_scope(const lock_scope&) = delete;
    lock_scope& operator=(const lock_scope&) = delete;
    ~lock_scope() { mutex_.unlock(); }

private:
    Mutex& mutex_;
};

} // namespace amux::detail

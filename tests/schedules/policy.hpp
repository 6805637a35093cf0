// SPDX-License-Identifier: BSL-1.0
// Without this file a mux has no place where another thread may come in between.
#pragma once

#include "schedules/explorer.hpp"

#include <amux/threading.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace schedules {

/// Is told what happens in a mux, in the order in which it happens. One at a time.
class mux_watcher {
public:
    virtual ~mux_watcher() = default;
    virtual void on_wait(const amux::lock_observation&) = 0;
    virtual void on_leave(const amux::lock_observation&) = 0;
    virtual void on_grant(const amux::lock_observation&) = 0;
    virtual void on_release(const amux::lock_observation&) = 0;
    /// The mux is closed.
    virtual void on_close() = 0;
    /// The last internal lock that this thread held is about to be dropped, and no other thread holds one.
    virtual void on_quiet() = 0;

    static inline mux_watcher* now = nullptr;
};

/// What knows whether it still exists.
class alive {
public:
    alive() noexcept = default;
    alive(const alive&) = delete;
    alive& operator=(const alive&) = delete;
    ~alive() { *const_cast<volatile std::uint32_t*>(&magic_) = 0xDEADDEAD; }
    void require_alive(const char* otherwise) const noexcept { require(magic_ == good, otherwise); }

private:
    static constexpr std::uint32_t good = 0x600D600D;
    std::uint32_t magic_ = good;
};

/// Who holds how many of the internal locks.
struct internal_locks {
    static inline int made = 0; // ever
    static inline int held = 0;
    static inline int by_thread[4] = {}; // the last is the thread that explores
    static inline int unlocks[4] = {}; // ever

    static int& of_this_thread() noexcept { return by_thread[thread() < 0 ? 3 : thread()]; }
    static int& unlocks_of_this_thread() noexcept { return unlocks[thread() < 0 ? 3 : thread()]; }
};

/// Another thread may come before it is locked and after it was unlocked.
class mutex : alive {
public:
    mutex() noexcept { ++internal_locks::made; }
    ~mutex() { require(!locked_, "an internal lock is destroyed while it is held"); }

    void lock() noexcept
    {
        point("before an internal lock");
        take();
    }

    bool try_lock() noexcept
    {
        point("before an internal lock");
        require_alive("an internal lock is tried that is gone");
        if (locked_)
            return false;
        take();
        return true;
    }

    void unlock() noexcept
    {
        require_alive("an internal lock is dropped that is gone");
        require(locked_ && internal_locks::of_this_thread() > 0,
                "an internal lock is dropped that is not held");
        if (internal_locks::held == 1 && mux_watcher::now)
            mux_watcher::now->on_quiet();
        --internal_locks::held;
        --internal_locks::of_this_thread();
        ++internal_locks::unlocks_of_this_thread();
        locked_ = false;
        wake_all(this);
        point("after an internal lock");
    }

private:
    void take() noexcept
    {
        require_alive("an internal lock is taken that is gone");
        while (locked_) {
            block(this, "waits for an internal lock");
            require_alive("an internal lock is gone that somebody waited for");
        }
        locked_ = true;
        ++internal_locks::held;
        ++internal_locks::of_this_thread();
    }

    bool locked_ = false;
};

/// Another thread may come before each operation. (Counters are looked at by others only while no internal lock is held.)
template <class T>
class atomic : alive {
public:
    atomic(T value) noexcept : value_{value} {}

    T load(std::memory_order = std::memory_order_seq_cst) const noexcept
    {
        before();
        return value_;
    }
    void store(T value, std::memory_order = std::memory_order_seq_cst) noexcept
    {
        before();
        if constexpr (std::is_same_v<T, bool>) {
            if (value && mux_watcher::now)
                mux_watcher::now->on_close();
        }
        value_ = value;
    }
    T fetch_add(T by, std::memory_order = std::memory_order_seq_cst) noexcept
    {
        before();
        const T old = value_;
        value_ = static_cast<T>(value_ + by);
        return old;
    }
    T fetch_sub(T by, std::memory_order = std::memory_order_seq_cst) noexcept
    {
        before();
        const T old = value_;
        value_ = static_cast<T>(value_ - by);
        return old;
    }
    T operator--() noexcept
    {
        before();
        return --value_;
    }
    bool compare_exchange_weak(T& expected, T desired,
                               std::memory_order = std::memory_order_seq_cst) noexcept
    {
        before();
        if (value_ != expected) {
            expected = value_;
            return false;
        }
        value_ = desired;
        return true;
    }

private:
    void before() const noexcept
    {
        constexpr bool is_counter = std::is_integral_v<T> && !std::is_same_v<T, bool>;
        if (!is_counter || internal_locks::of_this_thread() == 0)
            point("before an atomic");
        this->require_alive("an atomic is used that is gone");
    }

    T value_;
};

struct observer {
    void on_wait(const amux::lock_observation& o) noexcept
    {
        if (mux_watcher::now)
            mux_watcher::now->on_wait(o);
    }
    void on_leave(const amux::lock_observation& o) noexcept
    {
        if (mux_watcher::now)
            mux_watcher::now->on_leave(o);
    }
    void on_grant(const amux::lock_observation& o) noexcept
    {
        if (mux_watcher::now)
            mux_watcher::now->on_grant(o);
    }
    void on_release(const amux::lock_observation& o) noexcept
    {
        if (mux_watcher::now)
            mux_watcher::now->on_release(o);
    }
};

/// The policy of a mux whose schedules are explored. With several shards it is divided when its lock is found taken.
template <std::size_t Shards>
struct explored {
    using mutex = schedules::mutex;
    template <class T>
    using atomic = schedules::atomic<T>;
    using observer = schedules::observer;
    static constexpr std::size_t shards = Shards;
    static constexpr unsigned collisions_to_grow = 1;
};

} // namespace schedules

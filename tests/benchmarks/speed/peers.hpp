// SPDX-License-Identifier: BSL-1.0
// Without this file amux would be compared with nothing that people use.
//
// What is written by hand: a map of mutexes that are made on demand and counted, under a std::mutex. And mutexes for
// coroutines without a key, which resume the next owner inside unlock, as most do.
#pragma once

#include <atomic>
#include <coroutine>
#include <cstddef>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace bench {

template <class Key, class Mutex>
class map_of {
    struct slot {
        Mutex mutex;
        std::size_t users = 0;
    };

public:
    /// Keeps the mutex of a key alive.
    class user {
    public:
        user(map_of& m, const Key& key) : map_{m}
        {
            const std::lock_guard lock{map_.mutex_};
            slot_ = &*map_.slots_.try_emplace(key).first; // an iterator would not survive a rehash
            ++slot_->second.users;
        }
        user(const user&) = delete;
        user& operator=(const user&) = delete;
        ~user()
        {
            const std::lock_guard lock{map_.mutex_};
            if (--slot_->second.users == 0)
                map_.slots_.erase(slot_->first);
        }
        Mutex& operator*() const noexcept { return slot_->second.mutex; }

    private:
        map_of& map_;
        std::pair<const Key, slot>* slot_;
    };

private:
    std::mutex mutex_;
    std::unordered_map<Key, slot> slots_;
};

template <class Mutex>
class [[nodiscard]] unlocks {
public:
    explicit unlocks(Mutex& m) noexcept : mutex_{&m} {}
    unlocks(unlocks&& other) noexcept : mutex_{std::exchange(other.mutex_, nullptr)} {}
    unlocks& operator=(unlocks&&) = delete;
    ~unlocks()
    {
        if (mutex_)
            mutex_->unlock();
    }

private:
    Mutex* mutex_;
};

/// Without a key: one word, either free, held, or the newest of those who wait.
class coroutine_mutex {
public:
    struct waiter {
        coroutine_mutex& mutex;
        waiter* next = nullptr;
        std::coroutine_handle<> handle{};

        bool await_ready() const noexcept { return mutex.try_lock(); }
        bool await_suspend(std::coroutine_handle<> h) noexcept
        {
            handle = h;
            return mutex.queue(*this);
        }
        unlocks<coroutine_mutex> await_resume() const noexcept
        {
            return unlocks<coroutine_mutex>{mutex};
        }
    };

    waiter lock() noexcept { return {*this}; }
    bool try_lock() noexcept
    {
        void* expected = free();
        return state_.compare_exchange_strong(expected, nullptr, std::memory_order_acquire,
                                              std::memory_order_relaxed);
    }
    void unlock() noexcept
    {
        if (!waiting_) {
            void* expected = nullptr;
            if (state_.compare_exchange_strong(expected, free(), std::memory_order_release,
                                               std::memory_order_relaxed))
                return;
            auto* w = static_cast<waiter*>(state_.exchange(nullptr, std::memory_order_acquire));
            waiter* oldest = nullptr;
            while (w) { // they stand newest first
                waiter* const older = std::exchange(w->next, oldest);
                oldest = std::exchange(w, older);
            }
            waiting_ = oldest;
        }
        waiter* const next = waiting_;
        waiting_ = next->next;
        next->handle.resume();
    }

private:
    void* free() noexcept { return this; }
    bool queue(waiter& w) noexcept
    {
        void* seen = state_.load(std::memory_order_acquire);
        for (;;) {
            if (seen == free()) {
                if (state_.compare_exchange_weak(seen, nullptr, std::memory_order_acquire))
                    return false;
            } else {
                w.next = static_cast<waiter*>(seen);
                if (state_.compare_exchange_weak(seen, &w, std::memory_order_release,
                                                 std::memory_order_acquire))
                    return true;
            }
        }
    }

    std::atomic<void*> state_{free()}; // null: held, and nobody waits
    waiter* waiting_ = nullptr; // the holder's: oldest first
};

/// The same for one thread.
class unsynchronized_coroutine_mutex {
public:
    struct waiter {
        unsynchronized_coroutine_mutex& mutex;
        waiter* next = nullptr;
        std::coroutine_handle<> handle{};

        bool await_ready() const noexcept { return !std::exchange(mutex.held_, true); }
        void await_suspend(std::coroutine_handle<> h) noexcept
        {
            handle = h;
            (mutex.first_ ? mutex.last_->next : mutex.first_) = this;
            mutex.last_ = this;
        }
        unlocks<unsynchronized_coroutine_mutex> await_resume() const noexcept
        {
            return unlocks<unsynchronized_coroutine_mutex>{mutex};
        }
    };

    waiter lock() noexcept { return {*this}; }
    void unlock() noexcept
    {
        waiter* const next = first_;
        if (!next)
            return void(held_ = false);
        first_ = next->next;
        next->handle.resume();
    }

private:
    bool held_ = false;
    waiter* first_ = nullptr;
    waiter* last_ = nullptr;
};

/// Readers and writers, in order of arrival.
class coroutine_shared_mutex {
public:
    struct waiter {
        coroutine_shared_mutex& mutex;
        bool writes;
        std::coroutine_handle<> handle{};

        bool await_ready() const noexcept { return false; }
        bool await_suspend(std::coroutine_handle<> h)
        {
            handle = h;
            const std::lock_guard lock{mutex.mutex_};
            if (mutex.waiting_.empty() && mutex.admit(writes))
                return false;
            mutex.waiting_.push_back(this);
            return true;
        }
        unlocks<coroutine_shared_mutex> await_resume() const noexcept
        {
            return unlocks<coroutine_shared_mutex>{mutex};
        }
    };

    waiter lock() noexcept { return {*this, true}; }
    waiter lock_shared() noexcept { return {*this, false}; }
    void unlock()
    {
        std::deque<waiter*> granted;
        {
            const std::lock_guard lock{mutex_};
            written_ ? void(written_ = false) : void(--readers_);
            if (waiting_.empty()) [[likely]]
                return;
            for (; !waiting_.empty() && admit(waiting_.front()->writes); waiting_.pop_front())
                granted.push_back(waiting_.front());
        }
        for (waiter* const w : granted)
            w->handle.resume();
    }

private:
    bool admit(bool writes) noexcept
    {
        if (written_ || (writes && readers_ != 0))
            return false;
        writes ? void(written_ = true) : void(++readers_);
        return true;
    }

    std::mutex mutex_;
    std::size_t readers_ = 0;
    bool written_ = false;
    std::deque<waiter*> waiting_;
};

} // namespace bench

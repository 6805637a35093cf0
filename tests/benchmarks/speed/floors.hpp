// SPDX-License-Identifier: BSL-1.0
// Without this file nobody would know how fast a keyed lock can be at all.
//
// Floors are what the work cannot do without, and nothing else: no readers, no order, no stop, no lock on everything.
#pragma once

#include <atomic>
#include <bit>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <sched.h>

namespace bench {

/// A compare-exchange, and a store.
class short_lock {
public:
    void lock() noexcept
    {
        for (int spins = 0; !try_lock(); ++spins)
            wait(spins);
    }
    /// Between two attempts. It must yield: the holder may have been taken off the only processor.
    static void wait(int spins) noexcept
    {
        if (spins < 64)
            __builtin_ia32_pause();
        else
            sched_yield();
    }
    bool try_lock() noexcept
    {
        bool expected = false;
        return locked_.compare_exchange_strong(expected, true, std::memory_order_acquire,
                                               std::memory_order_relaxed);
    }
    void unlock() noexcept { locked_.store(false, std::memory_order_release); }

private:
    std::atomic<bool> locked_{false};
};

inline std::uint64_t mix(std::uint64_t h) noexcept
{
    h *= 0x9e3779b97f4a7c15;
    return h ^ (h >> 32);
}

/// A set by open addressing: linear probing, and an erasure closes its gap. A string that leaves keeps its buffer.
template <class Key>
class flat_set {
public:
    /// Whether it was not there.
    bool insert(std::uint64_t hash, const Key& key)
    {
        if (2 * (size_ + 1) > slots_.size())
            grow();
        std::size_t i = hash & mask();
        for (; slots_[i].used; i = (i + 1) & mask()) {
            if (slots_[i].hash == hash && slots_[i].key == key)
                return false;
        }
        slots_[i].used = true;
        slots_[i].hash = hash;
        slots_[i].key = key;
        ++size_;
        return true;
    }

    /// Requires: it is there.
    void erase(std::uint64_t hash, const Key& key)
    {
        std::size_t gap = hash & mask();
        while (slots_[gap].hash != hash || slots_[gap].key != key)
            gap = (gap + 1) & mask();
        slots_[gap].used = false;
        --size_;
        for (std::size_t i = (gap + 1) & mask(); slots_[i].used; i = (i + 1) & mask()) {
            const std::size_t home = slots_[i].hash & mask();
            if (((i - home) & mask()) < ((i - gap) & mask()))
                continue; // reachable past the gap
            std::swap(slots_[gap], slots_[i]);
            gap = i;
        }
    }

private:
    struct slot {
        std::uint64_t hash = 0;
        bool used = false;
        Key key{};
    };

    std::size_t mask() const noexcept { return slots_.size() - 1; }
    void grow()
    {
        std::vector<slot> old(slots_.empty() ? 16 : 2 * slots_.size());
        std::swap(old, slots_);
        size_ = 0;
        for (slot& s : old) {
            if (s.used)
                insert(s.hash, s.key);
        }
    }

    std::vector<slot> slots_;
    std::size_t size_ = 0;
};

/// Exclusive locks on keys: two short locks, an insertion and an erasure.
template <class Key, std::size_t Shards = 64>
class keyed_floor {
    struct alignas(64) shard {
        short_lock lock;
        flat_set<Key> keys;
    };

public:
    class guard {
    public:
        guard(keyed_floor& floor, const Key& key)
            : key_{key}, hash_{mix(std::hash<Key>{}(key))}, shard_{floor.of(hash_)}
        {
            for (int spins = 0; !take(); ++spins)
                short_lock::wait(spins);
        }
        guard(const guard&) = delete;
        guard& operator=(const guard&) = delete;
        ~guard()
        {
            shard_.lock.lock();
            shard_.keys.erase(hash_, key_);
            shard_.lock.unlock();
        }

    private:
        bool take()
        {
            shard_.lock.lock();
            const bool taken = shard_.keys.insert(hash_, key_);
            shard_.lock.unlock();
            return taken;
        }

        const Key& key_;
        std::uint64_t hash_;
        shard& shard_;
    };

private:
    shard& of(std::uint64_t hash) noexcept
    {
        return shards_[hash >> (64 - std::countr_zero(Shards))];
    }

    std::vector<shard> shards_ = std::vector<shard>(Shards);
};

struct flat_waiter {
    flat_waiter* next = nullptr;
    std::coroutine_handle<> handle{};
};

struct flat_queue {
    flat_waiter* first = nullptr;
    flat_waiter* last = nullptr;
    void push(flat_waiter& w) noexcept
    {
        w.next = nullptr;
        (first ? last->next : first) = &w;
        last = &w;
    }
    flat_waiter* pop() noexcept
    {
        flat_waiter* const w = first;
        if (w)
            first = w->next;
        return w;
    }
};

/// A mutex for coroutines, without a key: a queue under a short lock. Who is granted is put into a list of this thread,
/// which the outermost unlock runs: constant stack.
class flat_mutex {
public:
    class guard {
    public:
        explicit guard(flat_mutex& m) noexcept : mutex_{&m} {}
        guard(guard&& other) noexcept : mutex_{std::exchange(other.mutex_, nullptr)} {}
        guard& operator=(guard&&) = delete;
        ~guard()
        {
            if (mutex_)
                mutex_->unlock();
        }

    private:
        flat_mutex* mutex_;
    };

    struct waiter : flat_waiter {
        flat_mutex& mutex;

        explicit waiter(flat_mutex& m) noexcept : mutex{m} {}
        bool await_ready() const noexcept { return false; }
        bool await_suspend(std::coroutine_handle<> h) noexcept
        {
            handle = h;
            return mutex.queue(*this);
        }
        guard await_resume() noexcept { return guard{mutex}; }
    };

    waiter lock() noexcept { return waiter{*this}; }

private:
    bool queue(waiter& w) noexcept
    {
        lock_.lock();
        const bool waits = std::exchange(held_, true);
        if (waits)
            waiting_.push(w);
        lock_.unlock();
        return waits;
    }
    void unlock() noexcept
    {
        lock_.lock();
        flat_waiter* const next = waiting_.pop();
        if (!next)
            held_ = false;
        lock_.unlock();
        if (!next)
            return;
        ready_.push(*next);
        if (std::exchange(running_, true))
            return;
        while (flat_waiter* const w = ready_.pop())
            w->handle.resume();
        running_ = false;
    }

    static inline constinit thread_local flat_queue ready_{};
    static inline constinit thread_local bool running_ = false;

    short_lock lock_;
    bool held_ = false;
    flat_queue waiting_;
};

} // namespace bench

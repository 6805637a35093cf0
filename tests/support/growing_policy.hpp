// SPDX-License-Identifier: BSL-1.0
// Without this file no test decides when a mux grows, nor sees what happens under its internal locks.
#pragma once

#include "support/program.hpp"

#include <amux/threading.hpp>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace walks {

/// What is noticed where no answer can be given, such as in a destructor.
struct noticed {
    static inline int internal_locks = 0; // that are held now
    static inline int collisions = 0; // that the next attempts pretend
    static inline int mutexes = 0; // that were ever made
    static inline int grown = 0; // programs at whose end the mux had many shards
    static inline bool under_lock = false; // the user's code ran while one was held
    static inline std::vector<seen>* observed = nullptr;
    static inline int (*key_number)(const void*) = nullptr;

    static void outside_of_locks()
    {
        if (internal_locks != 0)
            under_lock = true;
    }
};

/// A mutex that never is contended, but can pretend to be. Whoever locks it twice would wait for ever.
class pretending_mutex {
public:
    pretending_mutex() noexcept { ++noticed::mutexes; }
    pretending_mutex(const pretending_mutex&) = delete;
    pretending_mutex& operator=(const pretending_mutex&) = delete;

    void lock() noexcept
    {
        if (std::exchange(locked_, true))
            std::abort();
        ++noticed::internal_locks;
    }
    bool try_lock() noexcept
    {
        if (noticed::collisions > 0) {
            --noticed::collisions;
            return false;
        }
        lock();
        return true;
    }
    void unlock() noexcept
    {
        if (!std::exchange(locked_, false))
            std::abort();
        --noticed::internal_locks;
    }

private:
    bool locked_ = false;
};

struct recording_observer {
    void on_wait(const amux::lock_observation& o) noexcept { record('w', o); }
    void on_grant(const amux::lock_observation& o) noexcept { record('g', o); }
    void on_release(const amux::lock_observation& o) noexcept { record('r', o); }

    static void record(char what, const amux::lock_observation& o) noexcept
    {
        if (noticed::observed)
            noticed::observed->push_back(
                {what, o.mode, o.whole, o.keys, o.key ? noticed::key_number(o.key) : -1});
    }
};

/// A mux with this policy grows from one shard to many when the test says so.
template <std::size_t Shards>
struct growing {
    using mutex = pretending_mutex;
    template <class T>
    using atomic = std::atomic<T>;
    using observer = recording_observer;
    static constexpr std::size_t shards = Shards;
    static constexpr unsigned collisions_to_grow = 1;
};

/// A key with an owner's duties; all have the same hash.
class owning_key {
public:
    explicit owning_key(int number) : number_{new int{number}} {}
    owning_key(const owning_key& other) : number_{new int{*other.number_}} {}
    owning_key(owning_key&& other) noexcept : number_{std::exchange(other.number_, nullptr)} {}
    owning_key& operator=(const owning_key&) = delete;
    ~owning_key()
    {
        if (number_)
            noticed::outside_of_locks();
        delete number_;
    }

    int number() const noexcept { return *number_; }
    bool operator==(const owning_key& other) const noexcept { return *number_ == *other.number_; }

    struct hash {
        std::size_t operator()(const owning_key&) const noexcept { return 42; }
    };

private:
    int* number_;
};

template <class Key>
Key make_key(int number)
{
    if constexpr (std::is_same_v<Key, std::string>)
        return "a name too long to be stored inside of the string " + std::to_string(number);
    else
        return Key(number);
}

template <class Key>
int number_of_key(const Key& key)
{
    if constexpr (std::is_same_v<Key, std::string>)
        return key.back() - '0';
    else if constexpr (std::is_same_v<Key, int>)
        return key;
    else
        return key.number();
}

} // namespace walks

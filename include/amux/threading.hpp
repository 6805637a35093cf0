// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/fatal.hpp>
#include <amux/detail/spin_lock.hpp>
#include <amux/lock_mode.hpp>

#include <atomic>
#include <cstddef>
#include <type_traits>

namespace amux {

/// What an observer is told of one request. Lifetime: valid during the call.
struct lock_observation {
    /// The same from the wait to the grant; null for one that did not wait.
    const void* request;
    /// A `const Key*`, the same while the key is held or waited for; null for the whole mux and for several keys, also for
    /// a list of one.
    const void* key;
    /// How many; 0 for the whole mux, and for an empty set. That holds nothing: its release is told right after its
    /// grant, both without an internal lock.
    std::size_t keys;
    /// How it is asked for, or held.
    lock_mode mode;
    /// It is for the whole mux.
    bool whole;
    /// Where `key` is null: the same from the wait or the grant to the release; else, and for an empty set, null.
    const void* set;
    /// Of an observer with a type `note`: one that lives in the request while it waits. Null for one that did not wait.
    void* note;
};

/// Sees nothing and costs nothing. An observer of your own has the same members; they are called with internal locks of
/// the mux held, in the order in which things happen, and must not throw nor call the mux.
struct no_observer {
    /// A request begins to wait.
    void on_wait(const lock_observation&) noexcept {}
    /// Its wait ends without a grant: stopped, timed out, closed, or its coroutine destroyed. May be left out.
    void on_leave(const lock_observation&) noexcept {}
    /// A request is granted, at once or after a wait.
    void on_grant(const lock_observation&) noexcept {}
    /// An exclusive lock is shared from now on. May be left out.
    void on_downgrade(const lock_observation&) noexcept {}
    /// A lock is given back.
    void on_release(const lock_observation&) noexcept {}
};

/// Threading policy of a mux whose members may be called from any thread.
///
/// A policy supplies: `mutex` (lock, try_lock, unlock; after `unlock` has let the next one in it touches nothing),
/// `atomic<T>`, `observer`, and
///   `shards`              the most parts that the mux is divided into, a power of two up to 32: locks on keys of
///                         different parts do not meet. A lock on the whole mux takes them all;
///   `collisions_to_grow`  a mux starts with one part, and is divided when its mutex was found taken so many times.
struct multi_threaded {
    /// Spins briefly, then yields.
    using mutex = detail::spin_lock;
    /// The standard's.
    template <class T>
    using atomic = std::atomic<T>;
    /// None.
    using observer = no_observer;
    /// What a lock on the whole mux costs, against how seldom threads meet.
    static constexpr std::size_t shards = 16;
    /// So a mux that one thread uses stays small.
    static constexpr unsigned collisions_to_grow = 10;
};

namespace detail {

/// What a request keeps for its observer.
template <class Observer>
struct note_of {
    struct type {};
};
template <class Observer>
    requires requires { typename Observer::note; }
struct note_of<Observer> {
    using type = typename Observer::note;
};

/// An observer that follows `lock_observation::key` says by a type `key_type` what it takes it for.
template <class Observer, class Key>
inline constexpr bool may_observe = true;
template <class Observer, class Key>
    requires requires { typename Observer::key_type; }
inline constexpr bool may_observe<Observer, Key> = std::is_same_v<typename Observer::key_type, Key>;

/// No mutex at all; in debug builds it ends the program when a second thread comes.
class thread_check {
public:
    bool try_lock() noexcept
    {
        lock();
        return true;
    }

    void lock() noexcept
    {
#if !defined(NDEBUG)
        if (!thread_)
            thread_ = this_thread();
        else if (thread_ != this_thread())
            fatal("a single_threaded asyncmux is used by a second thread");
#endif
    }

    void unlock() noexcept {}
    /// The next one to lock may be any thread: for destruction.
    void unbind() noexcept { thread_ = nullptr; }

private:
    [[gnu::noinline]] static const void* this_thread() noexcept
    {
        static constinit thread_local char tag{};
        return &tag;
    }

    [[maybe_unused]] const void* thread_ = nullptr; // in every build, so that builds can be mixed
};

/// What `std::atomic` offers of what the mux uses, without the atomicity.
template <class T>
class plain {
public:
    constexpr plain(T value) noexcept : value_{value} {}
    T load(std::memory_order = std::memory_order_relaxed) const noexcept { return value_; }
    void store(T value, std::memory_order = std::memory_order_relaxed) noexcept { value_ = value; }
    T fetch_add(T by, std::memory_order = std::memory_order_relaxed) noexcept
    {
        const T before = value_;
        value_ = static_cast<T>(value_ + by);
        return before;
    }
    T fetch_sub(T by, std::memory_order = std::memory_order_relaxed) noexcept
    {
        const T before = value_;
        value_ = static_cast<T>(value_ - by);
        return before;
    }
    T operator--() noexcept { return --value_; }
    bool compare_exchange_weak(T&, T desired,
                               std::memory_order = std::memory_order_relaxed) noexcept
    {
        value_ = desired;
        return true;
    }

private:
    T value_;
};

} // namespace detail

/// Threading policy of a mux that one thread uses, the one that locks first: no atomic operation.
///
/// Stops must come from that thread too. Without NDEBUG, use by another thread ends the program with a message.
struct single_threaded {
    /// None; without NDEBUG it tells when a second thread comes.
    using mutex = detail::thread_check;
    /// A plain value.
    template <class T>
    using atomic = detail::plain<T>;
    /// None.
    using observer = no_observer;
    /// Nobody meets anybody.
    static constexpr std::size_t shards = 1;
    /// It never grows.
    static constexpr unsigned collisions_to_grow = 0;
};

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/clock.hpp>
#include <amux/detail/fatal.hpp>
#include <amux/detail/lease.hpp>
#include <amux/detail/lease_calls.hpp>
#include <amux/lock_hooks.hpp>
#include <amux/task.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace amux {

namespace detail {
struct lease_access;
} // namespace detail

/// A lease that is held, as far as its holder can know.
///
/// A holder may believe until `valid_until()`: the moment when the request that last set the ttl was begun, and the ttl,
/// less what clocks may differ by. `is_held()`, `valid_until()`, `remaining()` and `lost_token()` may be called on any
/// thread; awaiting calls are carried out on the lock's loop, which somebody must run, and resume their caller at its own
/// place. What a lease cannot promise stands in the guide: protect what must not be damaged with `fence()`.
///
/// Lifetime: its `distributed_lock` outlives it. Its destructor drops belief and sends the release, on this thread;
/// after a `fork` the child's copy does neither. It remembers its own address, as a guard of `asyncmux` does, because
/// g++ 12 copies such objects bit by bit in some expressions: such a copy says that it holds nothing, and any other use
/// of it ends the program with a message.
class [[nodiscard("the lease is released at once when it is dropped")]] acquired_lock {
public:
    /// Holds nothing, as one that was moved from.
    acquired_lock() noexcept : self_{this} {}
    /// For `distributed_lock`.
    explicit acquired_lock(std::shared_ptr<detail::lease> l) noexcept
        : lease_{std::move(l)}, self_{this}
    {
        lease_->core().live_handles.fetch_add(1, std::memory_order_relaxed);
    }
    acquired_lock(acquired_lock&& other) noexcept : self_{this}
    {
        other.require_original();
        lease_ = std::move(other.lease_);
    }
    /// Releases what was held before.
    acquired_lock& operator=(acquired_lock&& other) noexcept
    {
        require_original();
        acquired_lock taken{std::move(other)};
        std::swap(lease_, taken.lease_);
        return *this;
    }
    ~acquired_lock()
    {
        require_original();
        if (!lease_)
            return;
        lease_->begin_release();
        lease_->core().live_handles.fetch_sub(1, std::memory_order_release);
    }

    /// What is locked.
    const std::string& key() const noexcept { return state().key; }
    /// Unique to this acquisition: 128 random bits, in hexadecimal.
    const std::string& token() const noexcept { return state().token; }
    /// Rises with every grant of the key, over all holders; none when the backend has no fences.
    std::optional<fencing_token> fence() const noexcept { return state().fence; }
    /// The text that was given to `acquire`.
    const std::string& metadata() const noexcept { return state().metadata; }

    /// Whether its holder may believe to hold it, at this moment. Local: no I/O.
    bool is_held() const noexcept { return self_ == this && lease_ && lease_->believes(); }
    /// When belief ends, by the loop's clock.
    clock::time_point valid_until() const noexcept { return state().valid_until(); }
    /// How long belief lasts; zero when it is over.
    clock::duration remaining() const noexcept { return state().remaining(); }
    /// `valid_until()` by the system clock, for people.
    std::chrono::system_clock::time_point expires_at() const noexcept
    {
        return state().wall_time(state().valid_until());
    }
    /// Whether it was asked for with `renew`.
    bool auto_renew() const noexcept { return state().renews(); }
    /// Stops when the lease is lost, aborted, or taken away by `release(key, token)` of its lock; or `stop_margin` before it
    /// runs out. Never by its own `release()`.
    std::stop_token lost_token() const noexcept { return state().lost_token(); }

    /// Asks the backend whether it is ours. Throws: `backend_error` when that cannot be told.
    task<bool> verify() const { return detail::verify_call(shared()); }

    /// Lets the ttl start anew, by default the one that it has.
    ///
    /// Returns: the new `valid_until()`.
    /// Throws: `lock_ended_error` when the lease is over; `backend_error` when the backend is in trouble, and the lease is
    /// held until the smaller of what it was and what this asked for; `std::invalid_argument` for a bad ttl.
    task<clock::time_point> extend(std::optional<std::chrono::milliseconds> ttl = {}) const
    {
        return detail::extend_call(shared(), ttl);
    }

    /// Gives it back. Belief ends, and the request is sent, at the call, awaited or not.
    ///
    /// Returns: true when it was ours until then; false when it was lost, or given back before. Calls while the request is
    /// in flight share its answer.
    /// Throws: `backend_error` when the backend is in trouble: belief is over all the same, and the release is tried again
    /// in the background.
    task<bool> release() const
    {
        const bool open = shared()->begin_release();
        return detail::release_call(lease_, open);
    }

    /// Waits for the end, however it comes. Any number of coroutines may.
    task<lock_end> ended() const { return detail::ended_call(shared()); }

private:
    friend detail::lease_access;

    void require_original() const noexcept
    {
        if (self_ != this) [[unlikely]]
            detail::fatal(
                "an acquired_lock was copied bit by bit by the compiler, and the lease is "
                "released: bind the "
                "result of co_await to a variable of its own");
    }
    const detail::lease& state() const noexcept { return *shared(); }
    const std::shared_ptr<detail::lease>& shared() const noexcept
    {
        require_original();
        if (!lease_) [[unlikely]]
            detail::fatal("an acquired_lock is used after it was moved from");
        return lease_;
    }

    std::shared_ptr<detail::lease> lease_; // null: empty
    const acquired_lock* self_;
};

/// The inside of a handle, for the calls that work with one.
struct detail::lease_access {
    static lease& of(const acquired_lock& l) noexcept { return *l.shared(); }
    static const std::shared_ptr<lease>& shared(const acquired_lock& l) noexcept
    {
        return l.shared();
    }
};

} // namespace amux

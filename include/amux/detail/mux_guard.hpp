// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/fatal.hpp>
#include <amux/detail/reentrancy.hpp>
#include <amux/error.hpp>
#include <amux/lock_mode.hpp>

#include <cstdint>
#include <utility>

namespace amux::detail {

/// Owns a lock on a mux, or nothing: `asyncmux<Key>::guard`.
///
/// Lifetime: releases in its destructor; the mux outlives it. May be moved, and released on any thread when the mux is
/// multi_threaded. Thread-safety: one thread at a time.
///
/// It remembers its own address. g++ 12 copies a guard bit by bit in some expressions, such as `c ? co_await a :
/// co_await b`, and destroys the original, which releases the lock. The observers of such a copy answer as if it were
/// empty; any other use of it, and its destruction, end the program with a message. It never releases anything.
template <class Body>
class [[nodiscard("the lock is released at once when its guard is dropped")]] mux_guard {
    using entry = typename Body::entry;
    using block = typename Body::block;

public:
    /// What is locked by name.
    using key_type = typename Body::key_type;

    /// Owns nothing.
    mux_guard() noexcept = default;

    // For awaiters: one key; several keys or the whole mux; no keys at all.
    mux_guard(Body& body, entry& e, lock_mode mode) noexcept
        : body_{&body}, target_{reinterpret_cast<std::uintptr_t>(&e) | bits(mode)}, self_{this}
    {}
    mux_guard(Body& body, block& b) noexcept
        : body_{&body},
          target_{reinterpret_cast<std::uintptr_t>(&b) | is_block | bits(b.mode)},
          self_{this}
    {}
    mux_guard(Body& body, lock_mode mode) noexcept
        : body_{&body}, target_{is_block | bits(mode)}, self_{this}
    {
        body.grant_nothing(mode);
    }

    mux_guard(mux_guard&& other) noexcept : body_{other.body_}, target_{other.target_}, self_{this}
    {
        other.require_original();
        other.body_ = nullptr;
    }

    /// Releases what was held before.
    mux_guard& operator=(mux_guard&& other) noexcept
    {
        require_original();
        other.require_original();
        mux_guard taken{std::move(other)}; // so that moving onto itself keeps what it holds
        std::swap(body_, taken.body_);
        std::swap(target_, taken.target_);
        self_ = this;
        return *this; // `taken` releases; whoever is resumed inside may use this guard
    }

    ~mux_guard()
    {
        if (!body_)
            return;
        require_original();
        release(*body_);
    }

    /// Releases the lock before the end of the scope.
    ///
    /// Effects: every waiting request that no longer conflicts is granted, in order of arrival.
    /// Resumes: each granted coroutine at its own place (see `resume_on`); those without one on this thread, before this
    ///   call returns, with no internal lock held.
    /// Throws: `lock_released_error` when `!owns_lock()`.
    /// Complexity: O(requests granted).
    void unlock()
    {
        require_owner("unlock");
        release(*std::exchange(body_, nullptr));
    }

    /// Turns an exclusive lock into a shared one in one step: nobody gets in between. A shared one stays as it is.
    ///
    /// Effects, resumes: as `unlock`, for those who wait for shared locks.
    /// Throws: `lock_released_error` when `!owns_lock()`.
    void downgrade()
    {
        require_owner("downgrade");
        if (mode() == lock_mode::shared)
            return;
        target_ = (target_ & ~mode_bit) | bits(lock_mode::shared);
        if (entry* e = held_entry())
            body_->downgrade(*e);
        else if (block* b = held_block())
            body_->downgrade(*b);
    }

    /// Whether there is something to release.
    bool owns_lock() const noexcept { return body_ && self_ == this; }
    /// As `owns_lock`.
    explicit operator bool() const noexcept { return owns_lock(); }

    /// How it holds; `shared` when it owns nothing.
    lock_mode mode() const noexcept
    {
        return owns_lock() && (target_ & mode_bit) != 0 ? lock_mode::exclusive : lock_mode::shared;
    }

    /// The key that it holds; null when it owns nothing, holds the whole mux, or holds several keys.
    const key_type* key() const noexcept
    {
        if (!owns_lock())
            return nullptr;
        if (const entry* e = held_entry())
            return std::addressof(e->key);
        block* const b = held_block();
        return b && b->one_key ? std::addressof(Body::entry_of(*b->begin()).key) : nullptr;
    }

private:
    static constexpr std::uintptr_t mode_bit = 1;
    static constexpr std::uintptr_t is_block = 2; // or nothing, for no keys
    static_assert(static_cast<std::uintptr_t>(lock_mode::exclusive) == mode_bit &&
                  static_cast<std::uintptr_t>(lock_mode::shared) == 0);
    static_assert(alignof(entry) >= 4 && alignof(block) >= 4);

    static std::uintptr_t bits(lock_mode mode) noexcept
    {
        return static_cast<std::uintptr_t>(mode);
    }

    entry* held_entry() const noexcept
    {
        return target_ & is_block ? nullptr : reinterpret_cast<entry*>(target_ & ~mode_bit);
    }
    /// Requires: no entry. Returns: null for no keys.
    block* held_block() const noexcept
    {
        return reinterpret_cast<block*>(target_ & ~(mode_bit | is_block));
    }

    void release(Body& body) const noexcept
    {
        if (!(target_ & is_block)) [[likely]]
            return body.release(*reinterpret_cast<entry*>(target_ & ~mode_bit),
                                static_cast<lock_mode>(target_ & mode_bit));
        if (block* b = held_block()) {
            if (body.extra)
                body.extra->holding.remove(*b);
            body.release(*b);
        }
    }

    void require_original() const noexcept
    {
        if (body_ && self_ != this) [[unlikely]]
            fatal(
                "a lock guard was copied bit by bit by the compiler, and the lock is released: "
                "bind the result of "
                "co_await to a variable of its own");
    }

    void require_owner(const char* what) const
    {
        require_original();
        if (!body_)
            throw lock_released_error{std::string{"amux: "} + what + ": the guard owns nothing"};
    }

    Body* body_ = nullptr; // null: owns nothing
    std::uintptr_t target_ = 0; // an entry or a block, and how
    const mux_guard* self_ = nullptr;
};

} // namespace amux::detail

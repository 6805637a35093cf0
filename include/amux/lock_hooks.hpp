// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/error.hpp>
#include <amux/lock_backend.hpp>

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>

namespace amux {

/// What a hook is told.
struct lock_event {
    /// Of the lease, or of the request for one.
    std::string key;
    /// Unique to the acquisition; empty when no lease was asked for yet.
    std::string token;
    /// Of a lease that was granted, by a store that can count.
    std::optional<fencing_token> fence;
    /// The one in force; zero for a request that has none.
    std::chrono::milliseconds ttl{};
    /// The end of belief, for people; the lock itself never looks at this clock.
    std::chrono::system_clock::time_point expires_at{};
    /// Of `on_release` and `on_lost`.
    std::optional<end_reason> reason;
    /// The trouble; null for none.
    std::exception_ptr cause;
    /// The text that was given to `acquire`.
    std::string metadata;
};

/// Called for every lease of a `distributed_lock`, on its loop, under no internal lock. What a hook throws is dropped.
///
/// `on_acquire` comes first, then exactly one of `on_release` and `on_lost`. A hook that blocks holds up the loop, and
/// with it the renewal of every lease.
struct lock_hooks {
    /// Granted.
    std::function<void(const lock_event&)> on_acquire{};
    /// Given back by its holder.
    std::function<void(const lock_event&)> on_release{};
    /// Extended, by renewal or by `extend()`.
    std::function<void(const lock_event&)> on_renew{};
    /// Expired, or aborted by its stop token.
    std::function<void(const lock_event&)> on_lost{};
    /// Trouble of the store; the lease may still be held.
    std::function<void(const lock_event&)> on_error{};
};

/// The end of a lease.
struct lock_end {
    /// How it came.
    end_reason reason = end_reason::released;
    /// Trouble of the store, when that had to do with it; else null.
    std::exception_ptr cause;
    /// When, for people.
    std::chrono::system_clock::time_point at{};
};

} // namespace amux

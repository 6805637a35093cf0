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
    std::string key;
    std::string token; // empty when no lease was asked for yet
    std::optional<fencing_token> fence;
    std::chrono::milliseconds ttl{};
    std::chrono::system_clock::time_point
        expires_at{}; // for people; the lock itself never looks at this clock
    std::optional<end_reason> reason; // of `on_release` and `on_lost`
    std::exception_ptr cause; // null for none
    std::string metadata;
};

/// Called for every lease of a `distributed_lock`, on its loop, under no internal lock. What a hook throws is dropped.
///
/// `on_acquire` comes first, then exactly one of `on_release` and `on_lost`. A hook that blocks holds up the loop, and
/// with it the renewal of every lease.
struct lock_hooks {
    std::function<void(const lock_event&)> on_acquire{};
    std::function<void(const lock_event&)> on_release{}; // given back by its holder
    std::function<void(const lock_event&)> on_renew{};
    std::function<void(const lock_event&)> on_lost{}; // expired, or aborted by its stop token
    std::function<void(const lock_event&)>
        on_error{}; // trouble of the store; the lease may still be held
};

/// The end of a lease.
struct lock_end {
    end_reason reason = end_reason::released;
    std::exception_ptr cause; // trouble of the store, when that had to do with it
    std::chrono::system_clock::time_point at{}; // for people
};

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace amux {

/// For `max_wait`: no limit.
inline constexpr std::chrono::milliseconds forever = (std::chrono::milliseconds::max)();

/// What holds for every lease of a `distributed_lock` that does not say otherwise.
struct distributed_lock_options {
    /// The time to live of a lease that is asked for without one.
    std::chrono::milliseconds default_ttl{30'000};
    /// How long `acquire` waits at most, a backend that hangs included.
    std::chrono::milliseconds max_wait{30'000};
    /// How often a waiting `acquire` asks the store, give or take a quarter; one with notifications asks sooner.
    std::chrono::milliseconds poll_interval{200};
    /// After so many grants in a row from its own queue a process stays away for one poll, so that others get a turn.
    unsigned local_turns = 64;
};

/// What holds for one lease. A duration that is not given is the lock's.
struct acquire_options {
    /// The time to live, from 10 ms to 366 days.
    std::optional<std::chrono::milliseconds> ttl{};
    /// How long `acquire` waits at most; 0: one attempt.
    std::optional<std::chrono::milliseconds> max_wait{};
    /// How often a waiting `acquire` asks the store.
    std::optional<std::chrono::milliseconds> poll_interval{};
    /// Keep it, by extending it in time, until it is released.
    bool renew = false;
    /// How long after one renewal the next one comes: a third of the ttl if not given, half of it at most.
    std::optional<std::chrono::milliseconds> renew_interval{};
    /// No renewal later than this after the grant.
    std::optional<std::chrono::milliseconds> max_hold{};
    /// How long before its end `lost_token` stops; not at all before it if not given.
    std::optional<std::chrono::milliseconds> stop_margin{};
    /// For hooks, and for a store that takes it; copied by the call.
    std::string_view metadata{};
};

} // namespace amux

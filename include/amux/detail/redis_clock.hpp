// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>

#include <chrono>
#include <cstdint>
#include <optional>

namespace amux::detail {

/// In the year 2255: the numbers of the scripts are exact up to it.
inline constexpr std::chrono::microseconds latest_redis_time{1LL << 53};

/// What is known of a server's clock: how far it is ahead of ours at least.
///
/// A reply that says what the server's clock showed between `sent` and `received` puts the difference between two
/// bounds. The greatest lower one is kept: a time that is reckoned with it is never later than meant. A reply that
/// contradicts it shows that a clock was set, or that the two run apart, and everything is learned anew.
class redis_clock {
public:
    using microseconds = std::chrono::microseconds;

    void learn(microseconds shown, clock::time_point sent, clock::time_point received) noexcept
    {
        const microseconds least =
            shown - ours(received) - microseconds{1}; // both are rounded down
        const microseconds most = shown - ours(sent) + microseconds{1};
        if (!ahead_ || *ahead_ < least || *ahead_ > most)
            ahead_ = least;
    }

    bool known() const noexcept { return ahead_.has_value(); }
    void forget() noexcept { ahead_.reset(); }

    /// What the server's clock shows at that time of ours, or later. Requires: known.
    microseconds at(clock::time_point t) const noexcept { return ours(t) + *ahead_; }

private:
    static microseconds ours(clock::time_point t) noexcept
    {
        return std::chrono::floor<microseconds>(t.time_since_epoch());
    }

    std::optional<microseconds> ahead_;
};

} // namespace amux::detail

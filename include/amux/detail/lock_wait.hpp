// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/stop_token.hpp>

#include <type_traits>

namespace amux::detail {

// How long a request waits. Who cannot be stopped carries no token: made and destroyed it costs 8 of 170 instructions.

struct wait_forever {
    static constexpr bool stop_requested() noexcept { return false; }
};

struct wait_until_stopped {
    std::stop_token stop;
    bool stop_requested() const noexcept { return stop.stop_requested(); }
};

/// For a time from the await on.
struct wait_for : wait_until_stopped {
    clock::duration limit;
    clock::time_point deadline(clock::time_point now) const noexcept
    {
        return deadline_after(now, limit);
    }
};

/// Until a moment.
struct wait_until : wait_until_stopped {
    clock::time_point limit;
    clock::time_point deadline(clock::time_point) const noexcept { return limit; }
};

template <class Wait>
concept has_stop = requires(Wait w) { w.stop; };
template <class Wait>
using stoppable_wait = std::conditional_t<has_stop<Wait>, Wait, wait_until_stopped>;
template <class Wait>
concept has_limit = requires(Wait w) { w.limit; };

} // namespace amux::detail

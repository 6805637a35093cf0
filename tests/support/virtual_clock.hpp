// SPDX-License-Identifier: BSL-1.0
// Without this file nothing that measures can be tested to the tick.
#pragma once

#include <amux/clock.hpp>

namespace support {

/// Stands still until it is told: for observers, which know no scheduler.
struct virtual_clock {
    static amux::clock::time_point now() noexcept { return time; }
    static void advance(amux::clock::duration d) noexcept { time += d; }

    static inline amux::clock::time_point time{};
};

} // namespace support

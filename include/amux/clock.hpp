// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <chrono>
#include <ratio>
#include <type_traits>

#if defined(__linux__)
#include <time.h>
#endif

namespace amux {

/// The clock of every deadline in amux: monotonic, and it counts the time that a machine sleeps.
///
/// On Linux it reads CLOCK_BOOTTIME; libstdc++'s `steady_clock` stands still during a suspend, which would let a
/// deadline or a lease outlive its time. Elsewhere it is `steady_clock`. Thread-safety: any thread.
struct clock {
    /// Its tick is a nanosecond.
    using duration = std::chrono::nanoseconds;
    /// As a clock of the standard has it.
    using rep = duration::rep;
    /// As a clock of the standard has it.
    using period = duration::period;
    /// The type of every deadline in amux.
    using time_point = std::chrono::time_point<clock, duration>;
    /// It never goes back.
    static constexpr bool is_steady = true;

    /// The time since the machine was started, sleep included (on Linux).
    static time_point now() noexcept
    {
#if defined(__linux__)
        timespec t{};
        clock_gettime(CLOCK_BOOTTIME, &t);
        return time_point{std::chrono::seconds{t.tv_sec} + std::chrono::nanoseconds{t.tv_nsec}};
#else
        return time_point{std::chrono::duration_cast<duration>(
            std::chrono::steady_clock::now().time_since_epoch())};
#endif
    }
};

namespace detail {

/// `start + d`, rounded up to the clock's tick; what does not fit is `time_point::max()`.
template <class Rep, class Period>
clock::time_point deadline_after(clock::time_point start,
                                 const std::chrono::duration<Rep, Period>& d) noexcept
{
    using seconds = std::chrono::duration<long double>;
    using exact = std::ratio_divide<Period, clock::period>;
    constexpr auto never = (clock::time_point::max)();
    if (!(d > std::chrono::duration<Rep, Period>::zero())) // also a floating NaN
        return start;
    // Compared in floating point, where nothing overflows; with a second of slack for what that rounds.
    const seconds most{(clock::duration::max)()};
    const seconds room = seconds{never.time_since_epoch()} - seconds{start.time_since_epoch()};
    if (seconds{d} + seconds{1} >= (room < most ? room : most))
        return never;
    if constexpr (std::is_integral_v<Rep> && exact::den == 1)
        return start + std::chrono::duration_cast<clock::duration>(d);
    else
        return start + std::chrono::ceil<clock::duration>(
                           std::chrono::duration<long double, clock::period>{d});
}

} // namespace detail
} // namespace amux

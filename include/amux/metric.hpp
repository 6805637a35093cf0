// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>

#include <chrono>
#include <cstdint>

namespace amux {

/// What a figure may do: a counter only rises, a gauge may fall.
enum class metric_type : unsigned char { counter, gauge };

/// "counter" or "gauge".
constexpr const char* to_string(metric_type type) noexcept
{
    return type == metric_type::counter ? "counter" : "gauge";
}

/// A figure as an exporter wants it. The names follow Prometheus: base units, and counters end in `_total`.
struct metric {
    /// Such as "amux_mux_waits_total". A literal, as is `help`.
    const char* name;
    /// A sentence for people.
    const char* help;
    /// What it may do.
    metric_type type;
    /// Times are in seconds.
    double value;
};

namespace detail {

/// How many have begun and not ended; 0 when an end was read that belongs to a later beginning.
constexpr std::uint64_t left_of(std::uint64_t begun, std::uint64_t ended) noexcept
{
    return begun > ended ? begun - ended : 0;
}

constexpr double in_seconds(clock::duration d) noexcept
{
    return std::chrono::duration<double>{d}.count();
}

} // namespace detail

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/error.hpp>

#include <chrono>
#include <exception>
#include <optional>
#include <string>

namespace amux::detail {

using std::chrono::milliseconds;

/// What a lease is asked for with: options, with what was not given filled in.
struct lease_terms {
    milliseconds ttl{};
    milliseconds max_wait{};
    milliseconds poll_interval{};
    bool renew = false;
    std::optional<milliseconds> renew_interval;
    std::optional<milliseconds> max_hold;
    milliseconds stop_margin{};
    std::string metadata;
};

/// What clocks may differ by in the time of a ttl, and a little for what is late: 1 % and 2 ms. (Antirez: Distributed
/// locks with Redis.)
constexpr clock::duration drift_of(milliseconds ttl) noexcept
{
    return clock::duration{ttl} / 100 + milliseconds{2};
}

/// What trouble means; none: the request was not even sent.
inline backend_error_kind kind_of(const std::exception_ptr& trouble) noexcept
{
    try {
        std::rethrow_exception(trouble);
    } catch (const backend_error& e) {
        return e.kind();
    } catch (...) {
        return backend_error_kind::not_applied;
    }
}

/// What it says, to be a part of another message.
inline std::string what_of(const std::exception_ptr& trouble)
{
    try {
        std::rethrow_exception(trouble);
    } catch (const std::exception& e) {
        const std::string text = e.what();
        return text.starts_with("amux: ") ? text.substr(6) : text;
    }
}

} // namespace amux::detail

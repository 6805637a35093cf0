// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/request_record.hpp>
#include <amux/scheduler.hpp>

#include <cstddef>

namespace amux {

/// No limit: the default of `asyncmux_options::max_waiters`.
inline constexpr std::size_t unlimited = static_cast<std::size_t>(-1);

/// What a mux is made with.
struct asyncmux_options {
    /// A request that its own context would wait for throws `reentrant_lock_error` instead of waiting for ever.
    bool prevent_reentrancy = false;
    /// How many requests may wait at a time; one more throws `lock_queue_full_error`.
    std::size_t max_waiters = unlimited;
    /// For messages and snapshots. Not copied: it outlives the mux.
    const char* name = "";
    /// A `deadlock_detector`: a request that would close a cycle of contexts that wait for each other, over all muxes with
    /// this detector, throws `deadlock_error` instead of waiting for ever. It outlives them. Null: nobody looks.
    detail::wait_graph* deadlocks = nullptr;
    /// Every request leaves who asks, from where and when, to be seen in `snapshot()`. A detector does that too.
    bool record_requests = false;
    /// The clock of the records; null: `amux::clock`. It is read when a request arrives or is granted, and for snapshots.
    const scheduler* time = nullptr;
};

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
// When a command must end. Nothing but arithmetic: no process, no clock of its own.
#pragma once

#include <amux/clock.hpp>

#include <algorithm>
#include <chrono>

namespace amuxctl {

using time_point = amux::clock::time_point;
using duration = amux::clock::duration;

/// The times of a command under a lease that is believed in until `until`:
///
///     ... renewed ...   until - stop_margin            until - spare       until - spare / 2      until
///                       SIGTERM            kill_after  SIGKILL             by the other process
///
/// where `spare` is `stop_margin - kill_after`. Each renewal moves all of it on, so they come only when renewals fail.
///
/// Requires: 0 <= kill_after < stop_margin.
struct ending {
    duration stop_margin;
    duration kill_after;

    duration spare() const { return stop_margin - kill_after; }

    /// SIGTERM, if nothing else has ended it before.
    time_point term_due(time_point until) const { return until - stop_margin; }

    /// SIGKILL, to one that was told at `told`. One that was told late has less time, never the lease.
    time_point kill_due(time_point told, time_point until) const
    {
        return (std::min)(told + kill_after, until - spare());
    }

    /// SIGKILL by the process that is not in charge, if the other one has not done it: it may be stopped.
    time_point backstop_due(time_point until) const { return until - spare() / 2; }
    /// The same for a lease that was found lost at `lost`, earlier than its time.
    time_point backstop_due_lost(time_point lost, time_point until) const
    {
        return (std::min)(lost + kill_after + spare() / 2, backstop_due(until));
    }
};

} // namespace amuxctl

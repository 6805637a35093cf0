// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/sleep.hpp>
#include <amux/detail/stop_token.hpp>
#include <amux/scheduler.hpp>
#include <amux/task.hpp>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace amux {

namespace detail {

template <class Mux, class F>
task<void> tell_when_held(Mux& mux, scheduler& loop, clock::duration limit, F tell,
                          std::stop_token stop)
{
    std::vector<std::uint64_t> told; // of those that are held yet, ascending
    for (;;) {
        clock::duration next = limit; // whoever is granted from now on is not due before
        std::vector<std::uint64_t> seen;
        const auto now = mux.snapshot();
        for (const auto& r : now.requests) {
            if (r.held < limit) { // who waits has held nothing yet
                next = (std::min)(next, limit - r.held);
                continue;
            }
            seen.push_back(r.number);
            if (!std::binary_search(told.begin(), told.end(), r.number))
                tell(r);
        }
        told = std::move(seen);
        if (!co_await sleep_awaiter{loop, deadline_after(loop.now(), next), stop})
            co_return;
    }
}

} // namespace detail

/// Tells of holders that forget: calls `tell(request)`, with a `request_snapshot`, once for each lock on `mux` that has been
/// held for `limit`, when that time is over; until `stop`. To be spawned on `loop`.
///
/// Requires: the mux records by the clock of `loop`.
/// Resumes: on `loop`. An exception of `tell` leaves the task: spawned, it ends the program.
/// Throws: `std::invalid_argument` when `limit` is not above zero, or the mux keeps no records (`record_requests`).
/// Complexity: a snapshot of the mux, once or twice in `limit`, and when a lock comes to be held for so long.
/// Lifetime: the mux and `loop` outlive the task; so stop it, and let `loop` run, before the mux goes.
template <class Mux, class F>
task<void> tell_long_holds(Mux& mux, scheduler& loop, clock::duration limit, F tell,
                           std::stop_token stop = {})
{
    if (limit <= clock::duration::zero())
        throw std::invalid_argument{"amux: the limit for long holds must be above zero"};
    if (!mux.records_requests())
        throw std::invalid_argument{"amux: long holds of a mux that does not record its requests"};
    return detail::tell_when_held(mux, loop, limit, std::move(tell), std::move(stop));
}

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/sleep.hpp>
#include <amux/detail/stop_token.hpp>
#include <amux/scheduler.hpp>
#include <amux/task.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace amux {

/// Tells of holders that forget: calls `tell(request)`, with a `request_snapshot`, once for each lock on `mux` that has been
/// held for `limit`, when that time is over; until `stop`. To be spawned on `loop`.
///
/// Requires: the mux keeps records (`record_requests`), by the clock of `loop`; `limit` is above zero.
/// Resumes: on `loop`. An exception of `tell` ends it.
/// Complexity: a snapshot of the mux, once or twice in `limit`, and when a lock comes to be held for so long.
/// Lifetime: the mux and `loop` outlive it; so stop it, and let `loop` run, before the mux goes.
template <class Mux, class F>
task<void> tell_long_holds(Mux& mux, scheduler& loop, clock::duration limit, F tell,
                           std::stop_token stop = {})
{
    std::vector<std::uint64_t> told; // of those that are held yet
    for (;;) {
        clock::duration next = limit; // whoever is granted from now on is not due before
        std::vector<std::uint64_t> seen;
        const auto now = mux.snapshot();
        for (const auto& r : now.requests) {
            if (!r.granted)
                continue;
            if (r.held < limit) {
                next = (std::min)(next, limit - r.held);
                continue;
            }
            seen.push_back(r.number);
            if (std::find(told.begin(), told.end(), r.number) == told.end())
                tell(r);
        }
        told = std::move(seen);
        if (!co_await detail::sleep_awaiter{loop, loop.now() + next, stop})
            co_return;
    }
}

} // namespace amux

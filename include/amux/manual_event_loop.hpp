// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/loop_base.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>

namespace amux {

/// A scheduler whose time stands still until it is told to move: for tests and simulations, the same in every run.
///
/// It has what `event_loop` has, but for what would have to wait: `run`, `stop`, `block_on` and `run_for`. Its time
/// begins at `time_point{}`.
///
/// Thread-safety: `post`, `schedule_at`, `spawn`, `now`, `advance`, and starting a sleep from any thread; `run_ready`
/// by one thread at a time. Lifetime: as `event_loop`.
class manual_event_loop final : public detail::loop_base {
public:
    manual_event_loop() = default;
    ~manual_event_loop() override { destroy_roots(); }

    /// Moves the time, at once; nothing runs before the next `run_ready()`. A negative duration moves nothing.
    template <class Rep, class Period>
    void advance(std::chrono::duration<Rep, Period> d) noexcept
    {
        time_point from = now();
        while (!now_.compare_exchange_weak(from, detail::deadline_after(from, d))) {
        }
    }

    /// Runs what is ready and what is due, and what that makes ready.
    ///
    /// Effects: what is ready comes first, in order of arrival. Then the timers, by due time and equal ones in order of
    /// arming; what those of one due time make ready runs before the next due time. Time that a node moves on counts
    /// from the next call; so does what awaits `schedule()`.
    /// Returns: the number of nodes that it has run.
    std::size_t run_ready() noexcept { return run_frame(now(), (time_point::max)()); }

    /// Where the time stands.
    time_point now() const noexcept override { return now_.load(std::memory_order_acquire); }

private:
    std::atomic<time_point> now_{time_point{}};
};

} // namespace amux

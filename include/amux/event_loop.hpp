// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/loop_base.hpp>
#include <amux/detail/task_root.hpp>
#include <amux/task.hpp>

#include <chrono>
#include <cstddef>
#include <utility>

namespace amux {

/// A scheduler that runs on the thread that calls it: for a server, `run()`; for a game, `run_ready()` once a frame.
///
/// Besides what is below it has `spawn`, `schedule`, `sleep_for`, `sleep_until` and the port's `post`, `schedule_at`
/// and `cancel`. Nodes run one at a time, first come, first served. Posting, timers and waiting allocate nothing.
///
/// Thread-safety: `post`, `schedule_at`, `spawn`, `stop`, and starting a sleep from any thread. What runs nodes is
/// called by one thread at a time; a node may call it too.
/// Lifetime: destroying the loop destroys the tasks that were spawned on it and have not ended, one after another;
/// nothing is resumed. Whoever else has a node queued here takes it out, or never runs again.
class event_loop final : public detail::loop_base {
public:
    event_loop() = default;
    ~event_loop() override { destroy_roots(); }

    /// Runs nodes, and sleeps while there are none, until `stop()`. What is queued then stays for the next call.
    void run() noexcept { run_until(stopped_); }

    /// Makes the `run()` that runs, or else the next one, return after the node that it is running. Nothing else looks
    /// at it. Two stops before a return are one. Thread-safety: any thread.
    void stop() noexcept { set(stopped_); }

    /// Runs nodes, and sleeps while there are none, until `work` has ended; a `stop()` is left to `run()`.
    ///
    /// Returns: the result of `work`; throws what it has ended with. It begins behind what is ready, as a root context.
    template <class T>
    T block_on(task<T> work);

    /// Runs what is ready now or due now, and what that makes ready: one frame of a game. It never sleeps.
    ///
    /// Effects: a coroutine that awaits `schedule()` in it resumes in the next call; what is due only later, too.
    /// Returns: the number of nodes that it has run.
    std::size_t run_ready() noexcept { return run_frame(now(), (time_point::max)()); }

    /// As `run_ready`, but begins no further node once `budget` is spent; what is left comes first in the next call.
    template <class Rep, class Period>
    std::size_t run_for(std::chrono::duration<Rep, Period> budget) noexcept
    {
        const time_point start = now();
        return run_frame(start, detail::deadline_after(start, budget));
    }

    time_point now() const noexcept override { return clock::now(); }

private:
    struct blocked;

    bool stopped_ = false;
};

// Declared in this order: the task's frame goes before the context that it refers to.
struct event_loop::blocked : detail::task_root {
    template <class T>
    blocked(event_loop& l, const task<T>& work) noexcept
        : task_root{work, &l, nullptr, &end}, loop{l}
    {}

    static void end(detail::task_root& r) noexcept
    {
        auto& self = static_cast<blocked&>(r);
        self.loop.set(self.done);
    }

    event_loop& loop;
    bool done = false;
};

template <class T>
T event_loop::block_on(task<T> work)
{
    blocked root{*this, work};
    const task<T> owned = std::move(work);
    root.post_begin();
    run_until(root.done);
    return detail::task_access::handle(owned).promise().take();
}

} // namespace amux

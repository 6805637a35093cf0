// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/lock_wait.hpp>
#include <amux/detail/mux_operations.hpp>
#include <amux/scheduler.hpp>

#include <coroutine>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

namespace amux::detail {

/// The part of a request that others may know: made when the lock is not to be had at once, in the frame of the
/// coroutine that awaits it, and never moved.
///
/// What may happen to it, and who does it, under the locks of its shards:
///
///   idle     -> granted, waiting, or an error    the coroutine itself, in `await_suspend`
///   waiting  -> granted                           whoever releases, cancels or downgrades
///   waiting  -> stopped, timed_out, closed        the stop callback; the timer, where the scheduler runs; `close`
///   waiting  -> gone                              whoever destroys the frame
///
/// The one hazard: once it waits, another thread may resume, and destroy, the frame. So the stop callback is armed
/// before the request arrives, the timer under the lock (`waits`), and who lets it arrive touches nothing after it.
template <class Body, class Wait>
class lock_waiter : public Body::waiter {
public:
    lock_waiter(Body& body, lock_mode m, scheduler* s, std::coroutine_handle<> h) noexcept
        : Body::waiter{m, s, h}, body_{body}, name_{body.name}
    {}
    lock_waiter(const lock_waiter&) = delete;
    lock_waiter& operator=(const lock_waiter&) = delete;
    ~lock_waiter()
    {
        if (!known_)
            return;
        disarm(); // first, without a lock: nobody but the mux knows the request after it
        body_.abandon(*this);
    }

    void stop_by(const std::stop_token& stop)
        requires has_stop<Wait>
    {
        if (stop.stop_possible())
            on_stop_.emplace(stop, on_stop{this});
    }
    void end_at(clock::time_point t) noexcept
        requires has_limit<Wait>
    {
        timer_.due = t;
    }

    /// Under the lock: it waits from now on.
    void waits() noexcept
    {
        known_ = true;
        if constexpr (has_limit<Wait>) {
            timer_.armed = timer_.due != (clock::time_point::max)();
            if (timer_.armed)
                this->where->schedule_at(timer_.due, timer_);
        }
    }

    /// Its coroutine runs: nobody else knows the request any more.
    ///
    /// Returns: whether it had waited.
    bool resumed() noexcept
    {
        disarm();
        return std::exchange(known_, false);
    }

    const char* name() const noexcept { return name_; }

    std::uint64_t context_id = 0; // with reentrancy detection, of a task

private:
    struct on_stop {
        lock_waiter* self;
        void operator()() const noexcept { self->body_.give_up(*self, request_state::stopped); }
    };

    struct timer : scheduler::node {
        explicit timer(lock_waiter* w) noexcept : node{&timer::fire}, self{w} {}
        static void fire(scheduler::node& n) noexcept
        {
            lock_waiter& w = *static_cast<timer&>(n).self;
            w.timer_.armed = false;
            w.body_.give_up(w, request_state::timed_out);
        }
        lock_waiter* self;
        bool armed = false;
    };
    struct no_timer {
        explicit no_timer(lock_waiter*) noexcept {}
    };
    struct no_stop {};

    void disarm() noexcept
    {
        if constexpr (has_stop<Wait>)
            on_stop_.reset();
        if constexpr (has_limit<Wait>) {
            if (std::exchange(timer_.armed, false))
                this->where->cancel(timer_);
        }
    }

    Body& body_;
    const char* name_; // of the mux, which may be gone when the coroutine is told so
    [[no_unique_address]] std::conditional_t<
        has_stop<Wait>, std::optional<std::stop_callback<on_stop>>, no_stop> on_stop_;
    [[no_unique_address]] std::conditional_t<has_limit<Wait>, timer, no_timer> timer_{this};
    bool known_ = false; // waits, or waited and was not resumed yet
};

} // namespace amux::detail

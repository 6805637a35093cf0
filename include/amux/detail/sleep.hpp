// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/scheduler.hpp>

#include <atomic>
#include <coroutine>
#include <optional>
#include <utility>

namespace amux::detail {

/// Suspends until a scheduler's time has come or a token is stopped; gives true for the former.
///
/// The timer and the stop are two nodes of the same scheduler, which runs one at a time: the first that runs decides.
/// The stop callback, on whatever thread, only posts. So nothing races with the resumed coroutine but the rest of
/// `await_suspend`, on a thread that is not the scheduler's; the two meet in `armed_`.
class [[nodiscard("a sleep does nothing until it is awaited")]] sleep_awaiter {
public:
    sleep_awaiter(scheduler& where, scheduler::time_point due, std::stop_token stop) noexcept
        : scheduler_{where}, due_{due}, stop_{std::move(stop)}, timer_{*this}, stopped_{*this}
    {}
    sleep_awaiter(const sleep_awaiter&) = delete;
    sleep_awaiter& operator=(const sleep_awaiter&) = delete;
    ~sleep_awaiter()
    {
        if (sleeper_ && !over_)
            disarm();
    }

    bool await_ready() const noexcept { return false; }

    [[gnu::noinline]] void await_suspend(std::coroutine_handle<> sleeper) noexcept
    {
        sleeper_ = sleeper;
        // A token that is stopped already posts here, ahead of a timer that is due already.
        if (stop_.stop_possible())
            callback_.emplace(std::move(stop_), on_stop{*this});
        scheduler_.schedule_at(due_, timer_);
        if (armed_.exchange(true, std::memory_order_acq_rel))
            scheduler_.post(*first_);
    }

    bool await_resume() const noexcept { return first_ == &timer_; }

private:
    struct event : scheduler::node {
        explicit event(sleep_awaiter& s) noexcept : node{&run_event}, self{s} {}
        sleep_awaiter& self;
    };

    struct on_stop {
        void operator()() const noexcept { self.scheduler_.post(self.stopped_); }
        sleep_awaiter& self;
    };

    static void run_event(scheduler::node& n) noexcept
    {
        auto& fired = static_cast<event&>(n);
        fired.self.decide(fired);
    }

    void decide(event& fired) noexcept
    {
        if (!first_)
            first_ = &fired;
        // Whoever comes second goes on: `await_suspend` by posting the node again, which then gets past this line.
        else if (first_ != &fired)
            return;
        if (!armed_.exchange(true, std::memory_order_acq_rel))
            return;
        over_ = true;
        disarm();
        sleeper_.resume();
    }

    void disarm() noexcept
    {
        // First the callback: once it is gone nobody posts `stopped_` again.
        callback_.reset();
        scheduler_.cancel(stopped_);
        scheduler_.cancel(timer_);
    }

    scheduler& scheduler_;
    scheduler::time_point due_;
    std::stop_token stop_;
    std::coroutine_handle<> sleeper_;
    event timer_;
    event stopped_;
    event* first_ =
        nullptr; // of the two that has run; only the scheduler's thread reads and writes it
    bool over_ = false;
    std::atomic<bool> armed_{false};
    std::optional<std::stop_callback<on_stop>> callback_;
};

} // namespace amux::detail

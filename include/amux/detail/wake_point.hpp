// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/loop_gate.hpp>
#include <amux/scheduler.hpp>

#include <coroutine>
#include <optional>
#include <utility>

namespace amux::detail {

/// Moves a coroutine to a lock's loop: `co_await hop{core}`. It does not arrive once the lock is gone.
class hop : scheduler::node {
public:
    explicit hop(loop_gate& gate) noexcept : node{&run}, gate_{gate} {}
    hop(const hop&) = delete;
    hop& operator=(const hop&) = delete;
    ~hop()
    {
        if (posted_)
            gate_.loop().cancel(*this);
    }

    bool await_ready() const noexcept { return false; }
    [[gnu::noinline]] void await_suspend(std::coroutine_handle<> h) noexcept
    {
        handle_ = h;
        posted_ = true;
        gate_.loop().post(*this);
    }
    void await_resume() noexcept { posted_ = false; }

private:
    static void run(scheduler::node& n) noexcept
    {
        auto& self = static_cast<hop&>(n);
        if (const loop_gate::visit here{self.gate_})
            self.handle_.resume();
    }

    loop_gate& gate_;
    std::coroutine_handle<> handle_;
    bool posted_ = false;
};

/// Where one coroutine of a loop waits for news, until a deadline, or until it is stopped.
///
/// Everything happens on the loop; only the stop callback comes from elsewhere, and it only posts. News that come while
/// nobody waits are kept for the next wait.
class wake_point {
public:
    enum class reason : unsigned char { none, news, deadline, stopped };
    class awaiter;

    explicit wake_point(loop_gate& gate) noexcept : gate_{gate} {}
    wake_point(const wake_point&) = delete;
    wake_point& operator=(const wake_point&) = delete;

    /// On the loop.
    void notify() noexcept;

    /// `co_await point.wait(due, stop)` gives the reason that came first. On the loop.
    awaiter wait(scheduler::time_point due, std::stop_token stop = {}) noexcept;

    // For lists of those who wait for the same thing.
    wake_point* before = nullptr;
    wake_point* behind = nullptr;

private:
    loop_gate& gate_;
    awaiter* waiting_ = nullptr;
    bool news_ = false;
};

class wake_point::awaiter {
public:
    awaiter(wake_point& point, scheduler::time_point due, std::stop_token stop) noexcept
        : point_{point},
          due_{due},
          stop_{std::move(stop)},
          news_{*this, reason::news},
          timer_{*this, reason::deadline},
          stopped_{*this, reason::stopped}
    {}
    awaiter(const awaiter&) = delete;
    awaiter& operator=(const awaiter&) = delete;
    ~awaiter()
    {
        if (!handle_)
            return;
        disarm();
        point_.gate_.loop().cancel(news_);
    }

    bool await_ready() const noexcept { return false; }

    [[gnu::noinline]] bool await_suspend(std::coroutine_handle<> h) noexcept
    {
        if (std::exchange(point_.news_, false)) {
            why_ = reason::news;
            return false;
        }
        handle_ = h;
        point_.waiting_ = this;
        if (due_ != (scheduler::time_point::max)())
            point_.gate_.loop().schedule_at(due_, timer_);
        if (stop_.stop_possible())
            on_stop_.emplace(std::move(stop_), on_stop{this});
        return true;
    }

    reason await_resume() noexcept
    {
        handle_ = nullptr;
        return why_;
    }

private:
    friend wake_point;

    struct event : scheduler::node {
        event(awaiter& a, reason r) noexcept : node{&happen}, self{a}, why{r} {}
        awaiter& self;
        reason why;
    };

    struct on_stop {
        awaiter* self;
        void operator()() const noexcept { self->point_.gate_.loop().post(self->stopped_); }
    };

    static void happen(scheduler::node& n) noexcept
    {
        auto& e = static_cast<event&>(n);
        const loop_gate::visit here{e.self.point_.gate_};
        if (!here)
            return; // the lock is gone: nobody is told any more
        e.self.why_ = e.why;
        e.self.disarm();
        e.self.handle_.resume();
    }

    void disarm() noexcept
    {
        point_.waiting_ = nullptr;
        on_stop_.reset(); // first: then nobody posts `stopped_`
        point_.gate_.loop().cancel(stopped_);
        point_.gate_.loop().cancel(timer_);
    }

    wake_point& point_;
    scheduler::time_point due_;
    std::stop_token stop_;
    std::coroutine_handle<> handle_;
    event news_;
    event timer_;
    event stopped_;
    reason why_ = reason::none;
    std::optional<std::stop_callback<on_stop>> on_stop_;
};

inline void wake_point::notify() noexcept
{
    if (!waiting_) {
        news_ = true;
        return;
    }
    awaiter& a = *waiting_;
    a.disarm(); // so that the news are what wakes it
    gate_.loop().post(a.news_);
}

/// Those who wait for the same thing.
using wake_list = intrusive_list<wake_point, &wake_point::before, &wake_point::behind>;

inline void notify_all(const wake_list& list) noexcept
{
    for (wake_point* w = list.front(); w; w = w->behind)
        w->notify();
}

inline wake_point::awaiter wake_point::wait(scheduler::time_point due,
                                            std::stop_token stop) noexcept
{
    return awaiter{*this, due, std::move(stop)};
}

} // namespace amux::detail

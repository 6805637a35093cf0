// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/asio_config.hpp>
#include <amux/detail/asio_memory.hpp>
#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/timer_heap.hpp>
#include <amux/scheduler.hpp>

#if defined(AMUX_STANDALONE_ASIO)
#include <asio/basic_waitable_timer.hpp>
#include <asio/post.hpp>
#else
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/post.hpp>
#endif

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace amux::detail {

/// Asio's timers count what its reactor counts, which stands still while the machine sleeps. So a long wait is cut into
/// pieces, and after each the clock is looked at.
struct asio_wait_traits {
    static clock::duration to_wait_duration(const clock::duration& d) noexcept
    {
        constexpr clock::duration piece = std::chrono::seconds{1};
        return d < piece ? d : piece;
    }
};

/// The queues of an `asio_scheduler`, and what empties them: one turn at a time, posted to the executor when there is
/// something to run. Turns that are still on their way when the scheduler goes find it closed.
///
/// At most one turn and one wait of the timer are outstanding, each with memory of its own. `timer_` is touched where
/// turns run only, since Asio's timers are not to be used by two threads.
template <class Executor>
class asio_loop : public std::enable_shared_from_this<asio_loop<Executor>> {
    using node = scheduler::node;

public:
    explicit asio_loop(const Executor& ex) : executor_{ex} {}

    const Executor& executor() const noexcept { return executor_; }

    void post(node& n) noexcept
    {
        unique_lock lock{mutex_};
        append(n);
        request_turn(lock);
    }

    void schedule_at(clock::time_point due, node& n) noexcept
    {
        unique_lock lock{mutex_};
        n.due = due;
        n.order = ++last_order_;
        n.queue = &timers_;
        timers_.push(n);
        if (timers_.front() == &n && (!armed_ || due < armed_for_))
            request_turn(lock);
    }

    bool cancel(node& n) noexcept
    {
        unique_lock lock{mutex_};
        if (n.queue == &ready_)
            ready_.erase(n);
        else if (n.queue == &timers_)
            timers_.erase(n);
        else
            return false;
        n.queue = nullptr;
        // A turn disarms the timer, so that it keeps no `run()` from its end.
        if (armed_ && timers_.empty())
            request_turn(lock);
        return true;
    }

    /// Nothing runs any more. Requires: no turn runs on another thread.
    void close() noexcept
    {
        const std::lock_guard lock{mutex_};
        closed_ = true;
        if (timer_)
            timer_->cancel();
    }

private:
    using unique_lock = std::unique_lock<std::mutex>;
    using timer = asio::basic_waitable_timer<clock, asio_wait_traits, Executor>;

    template <void (asio_loop::*Member)()>
    struct handler {
        using allocator_type = asio_allocator<void>;

        allocator_type get_allocator() const noexcept { return allocator_type{memory}; }
        void operator()() { (self.get()->*Member)(); }
        template <class Error>
        void operator()(const Error&) // also when it was cancelled
        {
            (self.get()->*Member)();
        }

        std::shared_ptr<asio_loop> self;
        std::shared_ptr<asio_memory> memory;
    };

    void append(node& n) noexcept
    {
        n.queue = &ready_;
        ready_.push_back(n);
    }

    void request_turn(unique_lock& lock) noexcept
    {
        if (std::exchange(turning_, true))
            return;
        const Executor executor = executor_;
        handler<&asio_loop::take_turn> turn{this->shared_from_this(), turn_memory_};
        lock.unlock();
        asio::post(executor, std::move(turn)); // without memory the program ends
    }

    /// Runs what is due, what is ready, and what that makes ready, up to a number: then the executor's other handlers come
    /// before the next turn.
    void take_turn()
    {
        unique_lock lock{mutex_};
        ready_due();
        for (int left = 64; left != 0 && !closed_ && !ready_.empty(); --left) {
            node& n = *ready_.pop_front();
            n.queue = nullptr;
            lock.unlock();
            n.run(); // it may close this
            lock.lock();
        }
        if (closed_)
            return;
        arm();
        turning_ = false;
        if (!ready_.empty())
            request_turn(lock);
    }

    void ready_due() noexcept
    {
        if (timers_.empty())
            return;
        for (const clock::time_point now = clock::now();
             !timers_.empty() && timers_.front()->due <= now;) {
            node& n = *timers_.front();
            timers_.erase(n);
            append(n);
        }
    }

    /// One that waits for too late a time is stopped; it asks for a turn, which arms it anew.
    void arm()
    {
        if (armed_) {
            if (timers_.empty() || timers_.front()->due < armed_for_)
                timer_->cancel();
        } else if (!timers_.empty()) {
            armed_ = true;
            armed_for_ = timers_.front()->due;
            if (!timer_)
                timer_.emplace(executor_);
            timer_->expires_at(armed_for_);
            timer_->async_wait(
                handler<&asio_loop::wait_is_over>{this->shared_from_this(), wait_memory_});
        }
    }

    void wait_is_over()
    {
        unique_lock lock{mutex_};
        armed_ = false;
        if (!closed_ && !timers_.empty())
            request_turn(lock);
    }

    const Executor executor_;
    const std::shared_ptr<asio_memory> turn_memory_ = std::make_shared<asio_memory>();
    const std::shared_ptr<asio_memory> wait_memory_ = std::make_shared<asio_memory>();
    std::optional<timer> timer_; // once one is needed: it makes its context a reactor
    std::mutex mutex_;
    intrusive_list<node, &node::prev, &node::next> ready_;
    timer_heap timers_;
    std::uint64_t last_order_ = 0;
    clock::time_point armed_for_{};
    bool armed_ = false;
    bool turning_ = false; // a turn is posted, or runs
    bool closed_ = false;
};

} // namespace amux::detail

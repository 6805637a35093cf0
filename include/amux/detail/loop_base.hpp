// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/clock.hpp>
#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/resume_queue.hpp>
#include <amux/detail/root_list.hpp>
#include <amux/detail/sleep.hpp>
#include <amux/detail/timer_heap.hpp>
#include <amux/scheduler.hpp>
#include <amux/spawn.hpp>
#include <amux/task.hpp>

#include <chrono>
#include <condition_variable>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

namespace amux::detail {

/// What `event_loop` and `manual_event_loop` share: the queues, what fills them, and one frame of running them.
///
/// `ready_` is what runs next, in order of arrival; `later_` what is kept for the next frame; `timers_` what is armed.
/// A node's `queue` says in which of the three it is.
class loop_base : public scheduler {
public:
    class schedule_awaiter;

    void post(node& n) noexcept final
    {
        const std::lock_guard lock{mutex_};
        append(ready_, n);
        wake();
    }

    void schedule_at(time_point due, node& n) noexcept final
    {
        const std::lock_guard lock{mutex_};
        n.due = due;
        n.order = ++last_order_;
        n.queue = &timers_;
        timers_.push(n);
        wake();
    }

    bool cancel(node& n) noexcept final
    {
        const std::lock_guard lock{mutex_};
        if (n.queue == &ready_)
            ready_.erase(n);
        else if (n.queue == &later_)
            later_.erase(n);
        else if (n.queue == &timers_)
            timers_.erase(n);
        else
            return false;
        n.queue = nullptr;
        return true;
    }

    root_list* roots() noexcept final { return &roots_; }

    /// As `amux::spawn` on this loop.
    template <class T>
    void spawn(task<T> work)
    {
        amux::spawn(*this, std::move(work));
    }

    /// Suspends until the next frame: `co_await loop.schedule()` resumes in the next `run_ready()` or `run_for()`, in
    /// `run()` after everything that is ready now. Elsewhere than on the loop it moves the coroutine there.
    schedule_awaiter schedule() noexcept;

    /// Suspends for a duration: `bool time_is_up = co_await loop.sleep_for(10ms, stop)`.
    ///
    /// Returns: false when `stop` was stopped, before the call or in the sleep; true otherwise.
    /// Resumes: on the loop, also when the time is up already. Sleeps that end together resume in order of arming.
    /// Thread-safety: any thread; the stop too. Lifetime: the sleeping coroutine is destroyed only where it would be
    /// resumed, or while the loop does not run. Allocates nothing.
    template <class Rep, class Period>
    sleep_awaiter sleep_for(std::chrono::duration<Rep, Period> d,
                            std::stop_token stop = {}) noexcept
    {
        return {*this, deadline_after(now(), d), std::move(stop)};
    }

    /// As `sleep_for`, until a time of this loop's `now()`.
    sleep_awaiter sleep_until(time_point due, std::stop_token stop = {}) noexcept
    {
        return {*this, due, std::move(stop)};
    }

protected:
    using unique_lock = std::unique_lock<std::mutex>;

    loop_base() = default;
    ~loop_base() override = default;

    // What the destructor of a loop does first: a dying frame may ask the loop for all but to be resumed.
    void destroy_roots() noexcept { roots_.destroy_all(); }

    // One frame: what is ready, what is due at `now`, and what those make ready, until `end` of the real clock. The
    // earliest due time comes first, with all that it makes ready, then the next one.
    std::size_t run_frame(time_point now, time_point end) noexcept;

    // Runs nodes until `done`, which is read under the lock, and takes it back; sleeps when there is nothing to run.
    void run_until(bool& done) noexcept;

    // Sets what `run_until` waits for.
    void set(bool& done) noexcept
    {
        const std::lock_guard lock{mutex_};
        done = true;
        wake();
    }

private:
    using node_list = intrusive_list<node, &node::prev, &node::next>;

    // A member function below this line is called with the lock held.

    void append(node_list& list, node& n) noexcept
    {
        n.order = ++last_order_;
        n.queue = &list;
        list.push_back(n);
    }

    // The loop may be gone once the poster has given the lock back, so it is woken before.
    void wake() noexcept
    {
        if (std::exchange(sleeping_, false))
            wake_.notify_one();
    }

    void run_front(unique_lock& lock) noexcept
    {
        node& n = *ready_.pop_front();
        n.queue = nullptr;
        lock.unlock();
        n.run();
        lock.lock();
    }

    // What waits behind a nested pump on this thread: coroutines without a scheduler that were granted a lock.
    bool run_resumptions(unique_lock& lock) noexcept
    {
        lock.unlock();
        const bool some = resume_queue::drain_nested();
        lock.lock();
        return some;
    }

    void ready_later() noexcept
    {
        while (node* n = later_.pop_front())
            append(ready_, *n);
    }

    bool due_by(time_point now) const noexcept
    {
        return !timers_.empty() && timers_.front()->due <= now;
    }

    void ready_next_due() noexcept
    {
        const time_point due = timers_.front()->due;
        while (due_by(due)) {
            node& n = *timers_.front();
            timers_.erase(n);
            append(ready_, n);
        }
    }

    void sleep(unique_lock& lock) noexcept;

    void post_later(node& n) noexcept
    {
        const std::lock_guard lock{mutex_};
        append(running_ == 0 ? ready_ : later_, n);
        wake();
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    node_list ready_;
    node_list later_;
    timer_heap timers_;
    std::uint64_t last_order_ = 0;
    int running_ = 0; // calls that run nodes, one inside the other
    bool sleeping_ = false;
    root_list roots_;
};

/// What `schedule()` gives to `co_await`.
class [[nodiscard("a hop does nothing until it is awaited")]] loop_base::schedule_awaiter : node {
public:
    explicit schedule_awaiter(loop_base& loop) noexcept : node{&run_queued}, loop_{loop} {}
    ~schedule_awaiter()
    {
        if (queued_)
            loop_.cancel(*this);
    }

    bool await_ready() const noexcept { return false; }

    [[gnu::noinline]] void await_suspend(std::coroutine_handle<> waiter) noexcept
    {
        waiter_ = waiter;
        queued_ = true;
        loop_.post_later(*this);
    }

    void await_resume() const noexcept {}

private:
    static void run_queued(node& n) noexcept
    {
        auto& self = static_cast<schedule_awaiter&>(n);
        self.queued_ = false;
        self.waiter_.resume();
    }

    loop_base& loop_;
    std::coroutine_handle<> waiter_;
    bool queued_ = false;
};

inline loop_base::schedule_awaiter loop_base::schedule() noexcept
{
    return schedule_awaiter{*this};
}

inline std::size_t loop_base::run_frame(time_point now, time_point end) noexcept
{
    unique_lock lock{mutex_};
    ++running_;
    ready_later();
    std::size_t count = 0;
    while (end == (time_point::max)() || clock::now() < end) {
        if (!ready_.empty()) {
            run_front(lock);
            ++count;
        } else if (due_by(now)) {
            ready_next_due();
        } else if (!run_resumptions(lock) && ready_.empty() && !due_by(now)) {
            break;
        }
    }
    // Now, and not when the next frame begins, so that what is posted in between runs after it.
    if (--running_ == 0)
        ready_later();
    return count;
}

inline void loop_base::run_until(bool& done) noexcept
{
    unique_lock lock{mutex_};
    ++running_;
    while (!done) {
        // One round. What becomes ready in it stands behind it, so that timers and `later_` get their turn.
        ready_later();
        if (!timers_.empty()) {
            for (const time_point now = this->now(); due_by(now);)
                ready_next_due();
        }
        const std::uint64_t last = last_order_;
        while (!done && !ready_.empty() && ready_.front()->order <= last)
            run_front(lock);
        if (!done)
            run_resumptions(lock);
        if (!done && ready_.empty() && later_.empty())
            sleep(lock);
    }
    done = false;
    if (--running_ == 0)
        ready_later();
}

inline void loop_base::sleep(unique_lock& lock) noexcept
{
    if (timers_.empty()) {
        sleeping_ = true;
        wake_.wait(lock);
    } else if (const time_point now = this->now(); timers_.front()->due > now) {
        const clock::duration left = timers_.front()->due - now;
        // A condition variable does not count the time that the machine sleeps, so a long wait is cut into pieces.
        constexpr clock::duration piece = std::chrono::seconds{1};
        sleeping_ = true;
        wake_.wait_for(lock, left < piece ? left : piece);
    }
    sleeping_ = false;
}

} // namespace amux::detail

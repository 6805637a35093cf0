// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/fatal.hpp>
#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/home_of.hpp>
#include <amux/detail/resume_queue.hpp>
#include <amux/detail/root_list.hpp>
#include <amux/detail/task_root.hpp>
#include <amux/scheduler.hpp>
#include <amux/task.hpp>

#include <coroutine>
#include <cstddef>
#include <exception>
#include <mutex>
#include <utility>

namespace amux {

/// Tasks that run side by side on one scheduler and are waited for together, as many as come.
///
/// Each is a context of its own, which sees no lock of the one that spawns it.
///
/// Thread-safety: `spawn` from any thread; while `join` is awaited, by a task of the group or while one runs for sure.
/// Lifetime: the scheduler outlives the group. A group that has spawned is joined before it is destroyed; otherwise
/// the program ends. The exception is teardown: a group whose `join` is being awaited, or whose loop is being
/// destroyed, destroys the tasks that have not ended, and nothing is resumed.
class task_group {
public:
    class join_awaiter;

    /// Without tasks. They will run on `where`.
    explicit task_group(scheduler& where) noexcept : scheduler_{where} {}
    task_group(const task_group&) = delete;
    task_group& operator=(const task_group&) = delete;
    ~task_group();

    /// Starts a task on the group's scheduler, by posting it; its result is dropped.
    ///
    /// Throws: `std::bad_alloc`; then nothing has happened. What the task throws comes out of `join`.
    template <class T>
    void spawn(task<T> work);

    /// Waits until every task has ended: `co_await group.join()`. Afterwards the group is as new.
    ///
    /// Requires: one coroutine at a time.
    /// Resumes: on the awaiting coroutine's scheduler; without one where the last task ends, inside that. It is not
    /// suspended when all have ended already.
    /// Throws: the first exception in time that has left a task.
    join_awaiter join() noexcept;

private:
    using child = detail::owned_root;

    static void child_ended(detail::task_root& r) noexcept;

    scheduler& scheduler_;
    std::mutex mutex_;
    detail::intrusive_list<child, &child::prev_root, &child::next_root> children_;
    std::size_t running_ = 0; // children whose frames are not gone
    std::exception_ptr error_;
    join_awaiter* joiner_ = nullptr;
    bool joined_ = true; // nothing was spawned since the last join
    bool abandoned_ = false; // the coroutine that joins was destroyed
};

/// What `join()` gives to `co_await`.
class [[nodiscard("a join does nothing until it is awaited")]] task_group::join_awaiter
    : scheduler::node {
public:
    /// For `task_group`.
    explicit join_awaiter(task_group& g) noexcept : node{&run_queued}, group_{g} {}
    join_awaiter(const join_awaiter&) = delete;
    join_awaiter& operator=(const join_awaiter&) = delete;
    ~join_awaiter();

    bool await_ready() const noexcept { return false; }

    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> waiter) noexcept
    {
        scheduler_ = detail::home_of(waiter);
        return suspend(waiter);
    }

    void await_resume();

private:
    friend task_group;

    [[gnu::noinline]] bool suspend(std::coroutine_handle<> waiter) noexcept
    {
        const std::lock_guard lock{group_.mutex_};
        if (group_.running_ == 0)
            return false;
        if (group_.joiner_)
            detail::fatal("a task_group is joined by two coroutines at a time");
        waiter_ = waiter;
        waiting_ = true;
        group_.joiner_ = this;
        return true;
    }

    // Called with the group's lock held: whoever destroys the waiting frame meanwhile finds the node queued.
    void queue_resumption() noexcept
    {
        queued_ = true;
        if (scheduler_)
            scheduler_->post(*this);
        else
            detail::resume_queue::push(*this);
    }

    static void run_queued(node& n) noexcept
    {
        auto& self = static_cast<join_awaiter&>(n);
        self.waiting_ = false;
        self.waiter_.resume();
    }

    task_group& group_;
    scheduler* scheduler_ = nullptr;
    std::coroutine_handle<> waiter_;
    bool waiting_ = false; // suspended, and not resumed yet
    bool queued_ = false; // every task has ended, under the group's lock
};

inline task_group::~task_group()
{
    if (!joined_ && !abandoned_) {
        const detail::root_list* const roots = scheduler_.roots();
        if (!roots || !roots->destroying())
            detail::fatal("a task_group is destroyed before it is joined");
    }
    // Its loop is being destroyed, and its frame goes later than this group.
    if (joiner_)
        joiner_->waiting_ = false;
    while (child* c = children_.pop_front())
        delete c;
}

template <class T>
void task_group::spawn(task<T> work)
{
    auto* const c = new child{std::move(work), scheduler_, &child_ended, this};
    {
        const std::lock_guard lock{mutex_};
        children_.push_back(*c);
        ++running_;
        joined_ = false;
    }
    c->post_begin();
}

inline void task_group::child_ended(detail::task_root& r) noexcept
{
    auto& ended = static_cast<child&>(r);
    task_group& group = *static_cast<task_group*>(ended.owner());
    {
        const std::lock_guard lock{group.mutex_};
        if (!group.error_)
            group.error_ = ended.error();
        group.children_.erase(ended);
    }
    // Before it counts as ended: what it refers to may be gone once the join is over.
    delete &ended;
    {
        const std::lock_guard lock{group.mutex_};
        if (--group.running_ != 0 || !group.joiner_)
            return;
        std::exchange(group.joiner_, nullptr)->queue_resumption();
    }
    // The group may be gone. What has a scheduler is not in this queue.
    detail::resume_queue::drain();
}

inline task_group::join_awaiter task_group::join() noexcept
{
    return join_awaiter{*this};
}

inline void task_group::join_awaiter::await_resume()
{
    std::exception_ptr error;
    {
        const std::lock_guard lock{group_.mutex_};
        group_.joined_ = group_.running_ == 0; // who spawned in between has broken the rule
        group_.abandoned_ = false;
        error = std::exchange(group_.error_, nullptr);
    }
    if (error)
        std::rethrow_exception(std::move(error));
}

inline task_group::join_awaiter::~join_awaiter()
{
    if (!waiting_)
        return;
    const std::lock_guard lock{group_.mutex_};
    group_.abandoned_ = true;
    if (!queued_)
        group_.joiner_ = nullptr;
    else if (scheduler_)
        scheduler_->cancel(*this);
    else
        detail::resume_queue::remove(*this);
}

} // namespace amux

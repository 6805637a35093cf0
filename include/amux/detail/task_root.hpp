// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/context.hpp>
#include <amux/scheduler.hpp>
#include <amux/task.hpp>

#include <coroutine>
#include <exception>
#include <utility>

namespace amux::detail {

/// The start and the end of a task that no coroutine awaits: it gives the task a scheduler and a context of its own.
///
/// Lifetime: outlives the task's frame. While a start is posted, it is destroyed only where the scheduler runs.
class task_root : scheduler::node, continuation {
public:
    /// Called where the task has ended; it may destroy the root and the task's frame.
    using end_function = void (*)(task_root&) noexcept;

    /// A context that is a child of `parent`; a new root when that is null. A null scheduler is for `begin` only.
    template <class T>
    task_root(const task<T>& work, scheduler* where, const context* parent,
              end_function at_end) noexcept
        : task_root{task_access::handle(work), task_access::handle(work).promise(), where, parent,
                    at_end}
    {}
    task_root(const task_root&) = delete;
    task_root& operator=(const task_root&) = delete;
    ~task_root()
    {
        if (posted_)
            scheduler_->cancel(*this);
    }

    /// Starts the task inside this call.
    void begin() noexcept { promise_.start_apart(frame_, *this, scheduler_, &context_); }

    /// Lets the scheduler start the task.
    void post_begin() noexcept
    {
        posted_ = true;
        scheduler_->post(*this);
    }

    /// What the ended task has ended with.
    const std::exception_ptr& error() const noexcept { return promise_.error(); }

private:
    task_root(std::coroutine_handle<> frame, task_promise_base& promise, scheduler* where,
              const context* parent, end_function at_end) noexcept
        : node{&run_posted},
          continuation{&run_end},
          frame_{frame},
          promise_{promise},
          scheduler_{where},
          at_end_{at_end},
          context_{parent}
    {}

    static void run_posted(node& n) noexcept
    {
        auto& self = static_cast<task_root&>(n);
        self.posted_ = false;
        self.begin();
    }

    static void run_end(continuation& c) noexcept
    {
        auto& self = static_cast<task_root&>(c);
        self.at_end_(self);
    }

    std::coroutine_handle<> frame_;
    task_promise_base& promise_;
    scheduler* scheduler_;
    end_function at_end_;
    context context_;
    bool posted_ = false;
};

/// A task that belongs to a list of its kind, on the heap.
class owned_root : public task_root {
public:
    template <class T>
    owned_root(task<T>&& work, scheduler& where, end_function at_end, void* owner) noexcept
        : task_root{work, &where, nullptr, at_end}, frame_{task_access::handle(work)}, owner_{owner}
    {
        task_access::release(work);
    }
    // The frame goes before the context that it refers to.
    ~owned_root() { frame_.destroy(); }

    void* owner() const noexcept { return owner_; }

    // For the list that it is in.
    owned_root* prev_root = nullptr;
    owned_root* next_root = nullptr;

private:
    std::coroutine_handle<> frame_;
    void* owner_;
};

} // namespace amux::detail

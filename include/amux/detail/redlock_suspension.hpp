// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/resume_queue.hpp>
#include <amux/scheduler.hpp>

#include <coroutine>

namespace amux::detail {

/// A coroutine that waits for the answer to a question. In its frame, and under the mutex.
class redlock_suspension : scheduler::node {
public:
    redlock_suspension() noexcept : node{&resume} {}
    redlock_suspension(const redlock_suspension&) = delete;
    redlock_suspension& operator=(const redlock_suspension&) = delete;

    /// It will be resumed: at its own place or, without one, on this thread, once that drains its `resume_queue`.
    void finish() noexcept
    {
        queued_ = true;
        if (where_)
            where_->post(*this);
        else
            resume_queue::push(*this);
    }
    /// The frame goes.
    void withdraw() noexcept
    {
        if (!queued_)
            return;
        if (where_)
            where_->cancel(*this);
        else
            resume_queue::remove(*this);
    }

protected:
    ~redlock_suspension() = default;

    void suspended(std::coroutine_handle<> h, scheduler* where) noexcept
    {
        handle_ = h;
        where_ = where;
    }

private:
    static void resume(scheduler::node& n) noexcept
    {
        auto& self = static_cast<redlock_suspension&>(n);
        self.queued_ = false;
        self.handle_.resume();
    }

    std::coroutine_handle<> handle_;
    scheduler* where_ = nullptr;
    bool queued_ = false;
};

} // namespace amux::detail

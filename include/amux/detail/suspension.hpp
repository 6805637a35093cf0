// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/resume_queue.hpp>
#include <amux/scheduler.hpp>

#include <coroutine>

namespace amux::detail {

/// Coroutines that have no place of their own to be resumed at.
using resumption_list =
    intrusive_list<scheduler::node, &scheduler::node::prev, &scheduler::node::next>;

/// A coroutine that waits. In its frame; under the mutex of what it waits for.
///
/// It is suspended, then finished by whoever gets to it first, once, then resumed: at its own place or, without one, by the
/// list that `finish` names, or this thread's `resume_queue`. While it waits its frame may be destroyed where it would be
/// resumed, by `withdraw` from there. One without a place that is destroyed elsewhere must not be finished meanwhile.
class suspension : scheduler::node {
public:
    suspension() noexcept : node{&resume} {}
    suspension(const suspension&) = delete;
    suspension& operator=(const suspension&) = delete;

    void finish() noexcept
    {
        queued_ = true;
        if (where_)
            where_->post(*this);
        else
            resume_queue::push(*this);
    }
    void finish(resumption_list& others) noexcept
    {
        queued_ = true;
        if (where_)
            where_->post(*this);
        else
            others.push_back(*this);
    }

    void withdraw() noexcept
    {
        if (!queued_)
            return;
        if (where_)
            where_->cancel(*this);
        else
            resume_queue::remove(*this);
    }
    void withdraw(resumption_list& others) noexcept
    {
        if (!queued_)
            return;
        if (where_)
            where_->cancel(*this);
        else
            others.erase(*this);
    }

protected:
    ~suspension() = default;

    void suspended(std::coroutine_handle<> h, scheduler* where) noexcept
    {
        handle_ = h;
        where_ = where;
    }

private:
    static void resume(scheduler::node& n) noexcept
    {
        auto& self = static_cast<suspension&>(n);
        self.queued_ = false;
        self.handle_.resume();
    }

    std::coroutine_handle<> handle_;
    scheduler* where_ = nullptr;
    bool queued_ = false; // finished, and not resumed yet
};

} // namespace amux::detail

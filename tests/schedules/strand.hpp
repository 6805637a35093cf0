// SPDX-License-Identifier: BSL-1.0
// Without this file no other thread comes in between where a scheduler is called.
#pragma once

#include "schedules/explorer.hpp"

#include <amux/scheduler.hpp>

#include <algorithm>
#include <chrono>
#include <vector>

namespace schedules {

/// A scheduler that is right, and lets other threads in before and after all that it does.
class strand final : public amux::scheduler {
public:
    void post(node& n) noexcept override
    {
        point("before a post");
        enqueue(ready_, n);
        point("after a post");
    }

    void schedule_at(time_point due, node& n) noexcept override
    {
        point("before a timer");
        n.due = due;
        enqueue(timers_, n);
        point("after a timer");
    }

    bool cancel(node& n) noexcept override
    {
        require(runner_ == nobody || runner_ == thread(), "cancelled beside the loop");
        if (n.queue != this)
            return false;
        n.queue = nullptr;
        std::erase(ready_, &n);
        std::erase(timers_, &n);
        return true;
    }

    time_point now() const noexcept override
    {
        return time_point{std::chrono::nanoseconds{schedules::now()}};
    }

    /// Runs what is ready, and due.
    void run_ready()
    {
        require(runner_ == nobody, "a loop runs twice");
        runner_ = thread();
        for (;;) {
            std::vector<node*>& from = ready_.empty() && due() ? timers_ : ready_;
            if (from.empty())
                break;
            node& n = *from.front();
            from.erase(from.begin());
            n.queue = nullptr;
            point("before a resumption");
            n.run();
            point("after a resumption");
        }
        runner_ = nobody;
    }

    bool runs_here() const noexcept { return runner_ == thread(); }
    bool empty() const noexcept { return ready_.empty() && timers_.empty(); }
    void clear() noexcept
    {
        ready_.clear();
        timers_.clear();
        runner_ = nobody;
    }

private:
    static constexpr int nobody = -2;

    void enqueue(std::vector<node*>& to, node& n)
    {
        require(n.queue == nullptr, "a node is posted that is queued already");
        n.queue = this;
        to.push_back(&n);
    }
    bool due() const { return !timers_.empty() && timers_.front()->due <= now(); }

    std::vector<node*> ready_;
    std::vector<node*> timers_; // in order of arming; one at a time is enough here
    int runner_ = nobody;
};

} // namespace schedules

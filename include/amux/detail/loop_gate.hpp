// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/scheduler.hpp>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace amux::detail {

/// The one crossing between a lock's loop and the other threads: whether the lock still is, and whether something
/// happens on its loop at this moment. Once it is shut, nothing more happens.
class loop_gate : public std::enable_shared_from_this<loop_gate> {
public:
    explicit loop_gate(scheduler& loop) noexcept : loop_{loop} {}
    loop_gate(const loop_gate&) = delete;
    loop_gate& operator=(const loop_gate&) = delete;
    virtual ~loop_gate() = default;

    scheduler& loop() const noexcept { return loop_; }

    /// What happens on the loop, while it happens: false when the gate is shut.
    class visit {
    public:
        explicit visit(loop_gate& g) noexcept : visit{g, [](bool) {}} {}
        /// Calls `first(shut)` under the mutex.
        template <class F>
        visit(loop_gate& g, F first) noexcept : gate_{g.shared_from_this()}
        {
            const std::lock_guard lock{gate_->mutex_};
            first(gate_->shut_);
            if (gate_->shut_)
                return;
            entered_ = true;
            outer_ = std::exchange(gate_->visited_, std::this_thread::get_id());
        }
        visit(const visit&) = delete;
        visit& operator=(const visit&) = delete;
        ~visit()
        {
            if (!entered_)
                return;
            const std::lock_guard lock{gate_->mutex_};
            gate_->visited_ = outer_;
            if (gate_->shut_)
                gate_->empty_.notify_all();
        }

        explicit operator bool() const noexcept { return entered_; }

    private:
        std::shared_ptr<loop_gate> gate_; // what happens may drop the last of the others
        std::thread::id outer_; // of the visit that this one is inside of
        bool entered_ = false;
    };

protected:
    /// Waits for what happens on another thread. Requires: shut.
    void wait_until_empty(std::unique_lock<std::mutex>& lock)
    {
        empty_.wait(lock, [this] {
            return visited_ == std::thread::id{} || visited_ == std::this_thread::get_id();
        });
    }

    mutable std::mutex mutex_;
    bool shut_ = false;

private:
    scheduler& loop_;
    std::thread::id visited_; // by which thread; none: nothing happens
    std::condition_variable empty_;
};

} // namespace amux::detail

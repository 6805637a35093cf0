// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/loop_gate.hpp>
#include <amux/scheduler.hpp>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace amux::detail {

class event_gate;
class lock_core;

/// Something that happens on a lock's loop: posted, or armed for a time. It is kept alive until then.
class core_event {
public:
    explicit core_event(std::shared_ptr<event_gate> gate) noexcept
        : gate_{std::move(gate)}, node_{*this}
    {}
    core_event(const core_event&) = delete;
    core_event& operator=(const core_event&) = delete;
    virtual ~core_event() = default;

    lock_core& core() const noexcept;

    // For the gate's list of those on their way.
    core_event* before = nullptr;
    core_event* behind = nullptr;

protected:
    /// `self` owns this. Any thread. An event that is on its way already stays so.
    void post(std::shared_ptr<core_event> self) noexcept;
    /// On the loop: replaces an earlier time.
    void arm(std::shared_ptr<core_event> self, clock::time_point when) noexcept;
    void disarm() noexcept;

    /// On the loop, unless the lock is gone by then.
    virtual void happens() noexcept = 0;

private:
    friend event_gate;

    struct event_node : scheduler::node {
        explicit event_node(core_event& e) noexcept : node{&fire}, self{e} {}
        core_event& self;
    };

    static void fire(scheduler::node& n) noexcept;

    std::shared_ptr<event_gate> gate_; // a `lock_core`
    std::shared_ptr<core_event> self_; // while on its way
    event_node node_;
};

/// What is on its way to a lock's loop, under the gate's mutex: the one crossing between the loop and the other threads.
/// Everything else of a lock is touched on its loop alone.
class event_gate : public loop_gate {
public:
    using loop_gate::loop_gate;

protected:
    /// Takes back what has not begun to happen. Requires: the mutex is held.
    ///
    /// Returns: what kept the events alive; its destruction may want the mutex.
    std::vector<std::shared_ptr<core_event>> drop_coming() noexcept
    {
        std::vector<std::shared_ptr<core_event>> dropped;
        while (core_event* e = coming_.pop_front()) {
            // One that is not queued any more is about to run, on the loop's thread, and sees that the lock is gone.
            if (loop().cancel(e->node_))
                dropped.push_back(std::move(e->self_));
        }
        return dropped;
    }

private:
    friend core_event;

    intrusive_list<core_event, &core_event::before, &core_event::behind> coming_;
};

inline void core_event::post(std::shared_ptr<core_event> self) noexcept
{
    const std::lock_guard lock{gate_->mutex_};
    if (gate_->shut_ || self_)
        return;
    self_ = std::move(self);
    gate_->coming_.push_back(*this);
    gate_->loop().post(node_);
}

inline void core_event::arm(std::shared_ptr<core_event> self, clock::time_point when) noexcept
{
    disarm();
    const std::lock_guard lock{gate_->mutex_};
    if (gate_->shut_)
        return;
    self_ = std::move(self);
    gate_->coming_.push_back(*this);
    gate_->loop().schedule_at(when, node_);
}

inline void core_event::disarm() noexcept
{
    std::shared_ptr<core_event> self; // released after the mutex
    const std::lock_guard lock{gate_->mutex_};
    if (!self_)
        return;
    gate_->loop().cancel(node_);
    gate_->coming_.erase(*this);
    self = std::move(self_);
}

inline void core_event::fire(scheduler::node& n) noexcept
{
    core_event& e = static_cast<event_node&>(n).self;
    const auto gate = e.gate_; // outlives the mutex, whatever `happens` drops
    std::shared_ptr<core_event> self;
    const loop_gate::visit now{*gate, [&](bool shut) {
                                   self = std::move(e.self_);
                                   if (!shut)
                                       gate->coming_.erase(e);
                               }};
    if (now)
        e.happens();
}

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/clock.hpp>
#include <amux/detail/core_event.hpp>
#include <amux/detail/redlock_agenda.hpp>
#include <amux/detail/redlock_crowds.hpp>
#include <amux/detail/redlock_round.hpp>
#include <amux/detail/redlock_traces.hpp>
#include <amux/detail/resume_queue.hpp>
#include <amux/detail/suspension.hpp>
#include <amux/error.hpp>
#include <amux/scheduler.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

namespace amux::detail {

/// The shared state of a `redlock`, whatever its nodes are: it asks them, counts what they say, and ends the rounds.
///
/// One mutex guards the rounds, the traces and the agendas. Nodes are asked, coroutines resumed and stop callbacks run with
/// no lock held; an answer is taken in on whatever thread it comes. The loop is for time alone: so a call still ends, by
/// the nodes' own limits, when the loop does not run or the `redlock` is gone.
class redlock_core : public event_gate {
public:
    using round_ptr = std::shared_ptr<redlock_round>;
    using operation = redlock_round::operation;

    redlock_core(scheduler& loop, std::size_t nodes, std::chrono::milliseconds node_timeout)
        : event_gate{loop}, count_{nodes}, node_timeout_{node_timeout}
    {}

    std::size_t size() const noexcept { return count_; }

    /// Once it is shared, and before anything is asked.
    void start() { alarm_ = alarm{std::static_pointer_cast<redlock_core>(shared_from_this())}; }
    /// Asks every node. Returns: whether `waiter` waits now; it may be gone by then.
    bool begin(const round_ptr& r, suspension& waiter);
    /// A node has answered, in time or late. Any thread; once for each question.
    void answered(const round_ptr& r, std::size_t node, node_answer a) noexcept;
    /// Ends a wait.
    void stop(const round_ptr& r) noexcept;
    /// Nobody wants the answer: the waiter's frame goes.
    void abandon(const round_ptr& r, suspension& waiter) noexcept;

    /// The `redlock` is gone: no more limits, nothing more is tried again.
    void shut_down() noexcept;

protected:
    const std::exception_ptr no_memory_{
        redlock_trouble(backend_error_kind::not_applied, "no memory to ask")};

    /// Hands a question to a node, which answers by `answered`. Called with no lock held.
    virtual void ask(std::size_t node, round_ptr r) noexcept = 0;

private:
    using alarm = redlock_alarm<redlock_core>;
    friend alarm;

    /// The time in which something has the mutex. At its end what was left to do is done, without it.
    class turn;

    void tick() noexcept;

    // With the mutex, all below.

    /// Whether it is decided now.
    bool decide(const round_ptr& r) noexcept;
    bool holds_back(const round_ptr& r) noexcept;
    void wake(redlock_round& r) noexcept;
    void come_back(const round_ptr& r) noexcept;
    /// Without its loop, later than everything.
    clock::time_point now() const noexcept
    {
        return over_ ? (clock::time_point::max)() : loop().now();
    }
    /// Throws: without memory.
    void look_at(const round_ptr& r, clock::time_point when)
    {
        if (!over_)
            agenda_.put(r, when);
    }

    const std::size_t count_;
    const std::chrono::milliseconds node_timeout_;
    std::mutex state_mutex_;
    redlock_crowds crowds_;
    redlock_agenda<redlock_round> agenda_; // their limits, and when they go on
    alarm alarm_; // none when the `redlock` is gone
    bool over_ = false;

    // To be done at the end of the turn.
    redlock_questions questions_;
    round_ptr stopped_;
    bool resumes_ = false;

    redlock_traces traces_{count_, questions_};
};

class redlock_core::turn {
public:
    explicit turn(redlock_core& core) : core_{core}, lock_{core.state_mutex_} {}
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn()
    {
        core_.alarm_.ring_by((std::min)(core_.agenda_.first(), core_.traces_.agenda.first()));
        const redlock_questions questions = std::exchange(core_.questions_, {});
        const round_ptr stopped = std::exchange(core_.stopped_, nullptr);
        const bool resumes = std::exchange(core_.resumes_, false);
        lock_.unlock();
        for (const auto& [node, r] : questions)
            core_.ask(node, r);
        if (stopped)
            stopped->give_up.request_stop();
        if (resumes)
            resume_queue::drain(); // whoever goes on may destroy the `redlock`
    }

private:
    redlock_core& core_;
    std::unique_lock<std::mutex> lock_;
};

inline bool redlock_core::begin(const round_ptr& r, suspension& waiter)
{
    {
        const turn asking{*this};
        if (r->changes()) {
            traces_.ask(r, now());
        } else {
            questions_.reserve(count_);
            for (std::size_t n = 0; n != count_; ++n)
                questions_.emplace_back(n, r);
        }
    }
    const turn waiting{*this};
    r->asked_all = true;
    r->waiter = &waiter;
    if (decide(r))
        return false;
    try {
        if (r->op != operation::wait)
            look_at(r, r->limit(node_timeout_));
    } catch (...) {
        // Without memory for a limit it is over at once: an answer may resume the coroutine already.
        r->time_out(now());
        return !decide(r);
    }
    return true;
}

inline void redlock_core::answered(const round_ptr& r, std::size_t node, node_answer a) noexcept
{
    const turn answering{*this};
    const bool refused = a.vote != node_vote::yes;
    if (r->trace)
        traces_.answered(*r, node, a, now());
    if (r->op == operation::extend)
        r->gaps.heard(node, a.vote);
    const round_ptr& whose = r->renewal ? r->renewal : r;
    if (r->renewal && refused) {
        whose->gaps.refused(node, now());
        come_back(whose);
    }
    if (whose->end == verdict::open)
        whose->answers[node] = std::move(a);
    traces_.put_back(whose, now());
    if (whose->asked_all && whose->end == verdict::open && decide(whose))
        wake(*whose);
    if (r->trace)
        traces_.sweep(r->trace, now());
}

inline bool redlock_core::decide(const round_ptr& r) noexcept
{
    r->count(now());
    if (r->end == verdict::open)
        return false;
    if (r->op == operation::wait) {
        stopped_ = r;
        if (holds_back(r))
            return false;
    }
    agenda_.drop(*r);
    if (r->op == operation::acquire && r->end == verdict::yes)
        crowds_.granted(r->key);
    else if (r->op == operation::acquire && votes(r->answers, node_vote::yes) != 0)
        crowds_.split(r->key);
    come_back(r);
    if (r->trace)
        traces_.decided(*r, now());
    return true;
}

/// Whether who is told of a release lets some time pass yet.
inline bool redlock_core::holds_back(const round_ptr& r) noexcept
{
    if (r->end != verdict::yes || r->stopped || over_)
        return false;
    if (!r->tells_at) {
        r->tells_at = now();
        try {
            const auto when = *r->tells_at + crowds_.pause(r->key);
            look_at(r, when);
            r->tells_at = when;
        } catch (...) { // NOLINT(bugprone-empty-catch): without memory it tells at once
        }
    }
    if (now() >= *r->tells_at)
        return false;
    r->end = verdict::open;
    return true;
}

inline void redlock_core::wake(redlock_round& r) noexcept
{
    suspension* const w = std::exchange(r.waiter, nullptr);
    if (!w)
        return;
    w->finish();
    resumes_ = true;
}

/// A renewal that is decided has its place in the agenda for what was refused.
inline void redlock_core::come_back(const round_ptr& r) noexcept
{
    if (r->end == verdict::open || r->due || r->gaps.again() == clock::time_point{})
        return;
    try {
        look_at(r, r->gaps.again());
    } catch (...) { // NOLINT(bugprone-empty-catch): the next renewal tries again
    }
}

/// What is due is done, and the alarm set for what comes next. On the loop.
inline void redlock_core::tick() noexcept
{
    const turn ticking{*this};
    const clock::time_point due = loop().now();
    while (const round_ptr r = agenda_.take(due)) {
        const bool limited = r->end == verdict::open;
        if (limited) {
            r->time_out(due);
            decide(r);
        }
        traces_.put_back(r, now());
        if (limited)
            wake(*r);
    }
    while (const auto t = traces_.agenda.take(due))
        traces_.sweep(t, now());
    alarm_.set((std::min)(agenda_.first(), traces_.agenda.first()));
}

inline void redlock_core::stop(const round_ptr& r) noexcept
{
    const turn stopping{*this};
    r->stopped = true;
    if (r->asked_all && r->end == verdict::open) {
        decide(r);
        wake(*r);
    }
}

inline void redlock_core::abandon(const round_ptr& r, suspension& waiter) noexcept
{
    const turn leaving{*this};
    waiter.withdraw();
    r->waiter = nullptr;
    if (r->op == operation::acquire && r->end == verdict::yes)
        traces_.lose(*r, now());
    if (r->op == operation::wait && r->end == verdict::open) {
        r->end = verdict::yes;
        stopped_ = r;
        agenda_.drop(*r);
    }
}

inline void redlock_core::shut_down() noexcept
{
    alarm gone;
    {
        const turn ending{*this};
        over_ = true;
        gone = std::exchange(alarm_, {});
        while (const round_ptr r = agenda_.take((clock::time_point::max)())) {
            if (!r->tells_at)
                continue;
            decide(r);
            wake(*r);
        }
        while (traces_.agenda.take((clock::time_point::max)()))
            continue;
    }
    std::unique_lock lock{mutex_};
    shut_ = true;
    const auto dropped = drop_coming();
    wait_until_empty(lock);
    lock.unlock();
}

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/clock.hpp>
#include <amux/detail/core_event.hpp>
#include <amux/detail/redlock_crowds.hpp>
#include <amux/detail/redlock_round.hpp>
#include <amux/detail/resume_queue.hpp>
#include <amux/detail/token.hpp>
#include <amux/error.hpp>
#include <amux/scheduler.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace amux::detail {

/// The shared state of a `redlock`, whatever its nodes are.
///
/// One mutex guards the rounds, the traces and the agenda. Nodes are asked, and stop callbacks run, with no lock held; an
/// answer is taken in on whatever thread it comes. The loop is for time alone: so a call still ends, by the nodes' own
/// limits, when the loop does not run or the `redlock` is gone.
class redlock_core : public event_gate {
public:
    using round_ptr = std::shared_ptr<redlock_round>;
    using operation = redlock_round::operation;

    redlock_core(scheduler& loop, std::size_t nodes, std::chrono::milliseconds node_timeout)
        : event_gate{loop},
          silence_{trouble(backend_error_kind::indeterminate,
                           "no answer in " + std::to_string(node_timeout.count()) + " ms")},
          count_{nodes},
          node_timeout_{node_timeout}
    {}

    std::size_t size() const noexcept { return count_; }

    /// Asks every node. Returns: whether `waiter` waits now; it may be gone by then.
    bool begin(const round_ptr& r, redlock_suspension& waiter);
    /// A node has answered, in time or late. Any thread; once for each question.
    void answered(const round_ptr& r, std::size_t node, node_answer a) noexcept;
    /// Ends a wait.
    void stop(const round_ptr& r) noexcept;
    /// Nobody wants the answer. `withdraw` is called under the mutex.
    template <class Withdraw>
    void abandon(const round_ptr& r, Withdraw withdraw) noexcept;

    /// The `redlock` is gone: no more limits, nothing more is tried again.
    void shut_down() noexcept;

protected:
    const std::exception_ptr no_memory_{
        trouble(backend_error_kind::not_applied, "no memory to ask")};

    /// Hands a question to a node, which answers by `answered`. Called with no lock held.
    virtual void ask(std::size_t node, round_ptr r) noexcept = 0;

private:
    using trace_ptr = std::shared_ptr<redlock_trace>;

    struct timer : core_event {
        timer(const std::shared_ptr<redlock_core>& c) : core_event{c}, self{*c} {}
        using core_event::arm;
        using core_event::post;
        void happens() noexcept override { self.tick(); }
        redlock_core& self;
    };

    static std::exception_ptr trouble(backend_error_kind kind, const std::string& what)
    {
        return std::make_exception_ptr(backend_error{kind, what});
    }

    /// What is to be done once the mutex is left.
    struct errands {
        std::vector<std::pair<std::size_t, round_ptr>> questions;
        round_ptr stopped;
        std::shared_ptr<timer> poke;
        bool resumes = false;
    };
    void run(const errands& todo) noexcept;
    void tick() noexcept;

    // With the mutex, all below.

    trace_ptr trace_of(const redlock_round& r);
    void prepare(const round_ptr& r);
    void hand_out(const round_ptr& r, errands& todo);
    void take_in(redlock_round& r, std::size_t node, const node_answer& a);
    bool is_late(const redlock_round& r, std::size_t node) const noexcept;
    void ask_again(const round_ptr& r, std::size_t node, errands& todo) noexcept;
    void come_back(const round_ptr& r, errands& todo) noexcept;
    void put_back(const round_ptr& r, errands& todo) noexcept;
    void time_out(redlock_round& r) noexcept;
    clock::time_point limit_of(const redlock_round& r) const noexcept;
    void lose(const redlock_round& r, errands& todo) noexcept;
    void believe(const redlock_round& r) noexcept;
    bool holds_back(const round_ptr& r, errands& todo) noexcept;
    /// Whether it is decided now.
    bool decide(const round_ptr& r, errands& todo) noexcept;
    static void wake(redlock_round& r, errands& todo) noexcept;
    void sweep(const trace_ptr& t, errands& todo) noexcept;
    void send_release(const trace_ptr& t, std::size_t node, errands& todo);
    void forget(const trace_ptr& t) noexcept;
    /// Without its loop, later than everything.
    clock::time_point now() const noexcept
    {
        return over_ ? (clock::time_point::max)() : loop().now();
    }
    template <class Item>
    void list(Item& item, clock::time_point when, redlock_due what, errands& todo);
    template <class Item>
    void unlist(Item& item) noexcept
    {
        if (std::exchange(item.listed, false))
            agenda_.erase(item.due);
    }

    // Made beforehand: where they are given there may be no memory.
    const std::exception_ptr silence_;
    const std::exception_ptr shorter_{
        trouble(backend_error_kind::indeterminate,
                "yes, but a shorter time to live may be on its way there")};
    const std::exception_ptr undone_{trouble(
        backend_error_kind::not_applied, "a release of the same token may be on its way there")};
    const std::exception_ptr late_{trouble(backend_error_kind::indeterminate,
                                           "the lease was missing there, and is back too late")};
    const std::size_t count_;
    const std::chrono::milliseconds node_timeout_;
    const long process_ = process_id(); // a forked child leaves its parent's leases alone
    std::mutex state_mutex_;
    std::map<std::pair<std::string, std::string>, trace_ptr> traces_; // by key and token
    redlock_crowds crowds_;
    redlock_agenda agenda_;
    clock::time_point alarm_at_ = (clock::time_point::max)(); // when the loop looks at the agenda
    std::shared_ptr<timer> alarm_; // none before the first question, and when the `redlock` is gone
    std::shared_ptr<timer> poke_; // goes to the loop, where alone the alarm can be set earlier
    bool over_ = false;
};

template <class Item>
void redlock_core::list(Item& item, clock::time_point when, redlock_due what, errands& todo)
{
    unlist(item);
    if (over_)
        return;
    item.due = agenda_.emplace(when, std::move(what));
    item.listed = true;
    if (when < alarm_at_) {
        alarm_at_ = when;
        todo.poke = poke_;
    }
}

inline auto redlock_core::trace_of(const redlock_round& r) -> trace_ptr
{
    const auto known = traces_.find({r.key, r.token});
    if (known != traces_.end())
        return known->second;
    const auto t = std::make_shared<redlock_trace>(r.key, r.token, count_);
    traces_.emplace(t->name, t);
    return t;
}

/// Takes what memory it needs first. Throws: without it, and nothing has changed.
inline void redlock_core::prepare(const round_ptr& r)
{
    std::string metadata = r->metadata;
    const trace_ptr t = trace_of(*r);
    try {
        for (redlock_trace::at_node& at : t->nodes)
            at.setting.reserve(at.setting.size() + 1);
    } catch (...) {
        if (t->settled(now()))
            forget(t);
        throw;
    }
    if (r->op == operation::acquire && now() >= t->believed) // else the nodes keep what they have
        t->metadata = std::move(metadata);
    r->trace = t;
}

/// Counts what is about to be in flight.
inline void redlock_core::hand_out(const round_ptr& r, errands& todo)
{
    if (r->changes())
        prepare(r);
    redlock_trace* const t = r->trace.get();
    if (r->op == operation::acquire)
        t->want();
    if (r->op == operation::acquire || r->op == operation::extend)
        t->lives_for(r->ttl, r->started);
    if (r->op == operation::release)
        t->unwant(r->started);
    if (t) {
        ++t->undecided;
        t->newest = r.get();
    }
    for (std::size_t n = 0; n != count_; ++n) {
        if (t && r->op != operation::release && t->may_undo(n, now())) {
            r->answers[n].vote = node_vote::trouble;
            r->answers[n].trouble = undone_;
            --r->unheard;
            continue;
        }
        if (r->op == operation::acquire || r->op == operation::extend) {
            r->unsure[n] = t->may_shorten(n, r->ttl, now());
            t->nodes[n].setting.push_back(r->ttl);
        }
        if (r->op == operation::acquire)
            ++t->nodes[n].acquiring;
        if (r->op == operation::release) {
            ++t->nodes[n].releasing;
            t->nodes[n].left = (std::max)(t->nodes[n].left, redlock_trace::rest::held);
        }
        todo.questions.emplace_back(n, r);
    }
}

inline bool redlock_core::begin(const round_ptr& r, redlock_suspension& waiter)
{
    errands todo;
    todo.questions.reserve(count_);
    {
        const std::lock_guard lock{state_mutex_};
        if (!alarm_ && !over_) {
            const auto self = std::static_pointer_cast<redlock_core>(shared_from_this());
            poke_ = std::make_shared<timer>(self);
            alarm_ = std::make_shared<timer>(self);
        }
        hand_out(r, todo);
    }
    run(todo);
    errands then;
    bool decided = false;
    {
        const std::lock_guard lock{state_mutex_};
        r->asked_all = true;
        r->waiter = &waiter;
        decided = decide(r, then);
        try {
            if (!decided && r->op != operation::wait)
                list(*r, limit_of(*r), {r, nullptr}, then);
        } catch (...) {
            // Without memory for a limit it is over at once: an answer may resume the coroutine already.
            time_out(*r);
            decided = decide(r, then);
        }
    }
    run(then);
    return !decided;
}

/// A lease that would be over when it is granted is none.
inline clock::time_point redlock_core::limit_of(const redlock_round& r) const noexcept
{
    const clock::time_point limit = r.started + node_timeout_;
    if (r.op != operation::acquire && r.op != operation::extend)
        return limit;
    return (std::min)(limit, r.valid_until());
}

/// What a node's answer says of what is left there.
inline void redlock_core::take_in(redlock_round& r, std::size_t node, const node_answer& a)
{
    using rest = redlock_trace::rest;
    if (!r.changes())
        return;
    redlock_trace& t = *r.trace;
    redlock_trace::at_node& at = t.nodes[node];
    const bool doubt = a.trouble && kind_of(a.trouble) == backend_error_kind::indeterminate;
    if (r.op != operation::release) {
        t.has_set(node, r.ttl);
        if (r.op == operation::acquire)
            --at.acquiring;
        if (!doubt && a.vote != node_vote::yes)
            return;
        if (!over_)
            t.over = (std::max)(t.over, loop().now() + r.ttl); // it came late, or is to come
        if (!over_ && doubt)
            t.is_in_doubt(node, r.ttl, loop().now());
        if (r.op == operation::extend)
            return;
        at.left = doubt ? rest::doubt : (std::max)(at.left, rest::held);
        at.crossed = at.crossed || at.releasing != 0;
        if (r.renewal && now() >= t.believed)
            at.came_late = true;
        return;
    }
    --at.releasing;
    const bool crossed = at.releasing == 0 ? std::exchange(at.crossed, false) : at.crossed;
    if (doubt)
        at.may_go_until = over_ ? t.over : (std::max)(t.over, loop().now() + redlock_trace::latest);
    const bool hopeless = a.trouble && kind_of(a.trouble) == backend_error_kind::permanent;
    if ((!a.trouble && at.left == rest::held && !crossed) || hopeless)
        at.left = rest::nothing;
    if (!over_)
        at.again = loop().now() + at.pause;
    at.pause *= 2;
}

inline void redlock_core::answered(const round_ptr& r, std::size_t node, node_answer a) noexcept
{
    errands todo;
    {
        const std::lock_guard lock{state_mutex_};
        take_in(*r, node, a);
        const bool refused = a.vote != node_vote::yes;
        if (a.vote == node_vote::yes && is_late(*r, node)) {
            a.vote = node_vote::trouble;
            a.trouble = late_;
        }
        if (a.vote == node_vote::yes && r->unsure[node]) {
            a.vote = node_vote::trouble;
            a.trouble = shorter_;
        }
        if (r->op == operation::extend) {
            --r->unheard;
            r->absent[node] = a.vote == node_vote::no;
            r->missing += a.vote == node_vote::no ? 1 : 0;
        }
        const round_ptr& whose = r->renewal ? r->renewal : r;
        if (r->renewal && refused)
            ask_again(whose, node, todo);
        if (whose->end == verdict::open)
            whose->answers[node] = std::move(a);
        put_back(whose, todo);
        if (whose->asked_all && whose->end == verdict::open && decide(whose, todo))
            wake(*whose, todo);
        if (r->trace)
            sweep(r->trace, todo);
    }
    run(todo);
}

/// Whether a yes to a renewal is that of a lease which was put there when nobody believed any more, or may be.
inline bool redlock_core::is_late(const redlock_round& r, std::size_t node) const noexcept
{
    if (!r.renewal && r.op != operation::extend)
        return false;
    const redlock_trace::at_node& at = r.trace->nodes[node];
    return now() >= r.trace->believed && (r.renewal || at.came_late || at.acquiring != 0);
}

/// A node has not taken the lease: who has failed to get a majority may have it for a moment.
inline void redlock_core::ask_again(const round_ptr& r, std::size_t node, errands& todo) noexcept
{
    r->absent[node] = true;
    if (now() >= r->tries_again) {
        r->tries_again = over_ ? r->tries_again : now() + r->pause;
        r->pause *= 2;
    }
    come_back(r, todo);
}

/// A renewal that is decided has its place in the agenda for that.
inline void redlock_core::come_back(const round_ptr& r, errands& todo) noexcept
{
    if (r->end == verdict::open || r->listed || r->tries_again == clock::time_point{})
        return;
    try {
        list(*r, r->tries_again, {r, nullptr}, todo);
    } catch (...) { // NOLINT(bugprone-empty-catch): the next renewal tries again
    }
}

/// A renewal gives the lease back to nodes that have lost it, or never had it.
///
/// Not before it is certain that no majority misses it: that is a loss, be it of data or by a release that another
/// process has asked for. And not once nobody believes: somebody else may have had the key since, so that a dead lease
/// would come to life. An older question does not: it would shorten what the newest one asks for.
inline void redlock_core::put_back(const round_ptr& r, errands& todo) noexcept
{
    if (r->op != operation::extend || !r->is_missing_at_few())
        return;
    redlock_trace& t = *r->trace;
    if (t.newest != r.get() || now() >= t.believed || now() < r->tries_again)
        return;
    try {
        for (std::size_t n = 0; n != count_; ++n) {
            if (!r->absent[n])
                continue;
            auto q = std::make_shared<redlock_round>(operation::acquire, r->key, r->token, r->ttl,
                                                     t.metadata, count_, r->started);
            q->renewal = r;
            q->trace = r->trace;
            q->end = verdict::yes; // nobody waits for it
            q->unsure[n] = t.may_shorten(n, r->ttl, now());
            todo.questions.reserve(todo.questions.size() + 1);
            t.nodes[n].setting.push_back(r->ttl);
            ++t.nodes[n].acquiring;
            todo.questions.emplace_back(n, std::move(q));
            r->absent[n] = false;
            if (r->end == verdict::open)
                r->answers[n] = {};
        }
    } catch (...) { // NOLINT(bugprone-empty-catch): the next renewal tries again
    }
}

inline bool redlock_core::decide(const round_ptr& r, errands& todo) noexcept
{
    r->count(now());
    if (r->end == verdict::open)
        return false;
    if (r->op == operation::wait) {
        todo.stopped = r;
        if (holds_back(r, todo))
            return false;
    }
    unlist(*r);
    if (r->op == operation::acquire && r->end == verdict::yes)
        crowds_.granted(r->key);
    else if (r->op == operation::acquire && votes(r->answers, node_vote::yes) != 0)
        crowds_.split(r->key);
    if (r->op == operation::extend && r->end == verdict::no)
        lose(*r, todo);
    come_back(r, todo);
    if (!r->trace)
        return true;
    --r->trace->undecided;
    if (r->op == operation::acquire && (r->end != verdict::yes || !r->waiter))
        r->trace->unwant(r->started);
    else
        believe(*r);
    sweep(r->trace, todo);
    return true;
}

/// A lease that nobody believes in any more: the nodes forget it too.
inline void redlock_core::lose(const redlock_round& r, errands& todo) noexcept
{
    try {
        const trace_ptr t = trace_of(r);
        for (std::size_t n = 0; n != count_; ++n) {
            if (r.answers[n].vote != node_vote::no)
                t->nodes[n].left = (std::max)(t->nodes[n].left, redlock_trace::rest::held);
        }
        t->unwant(r.started);
        sweep(t, todo);
    } catch (...) { // NOLINT(bugprone-empty-catch): without memory the ttl has to free it
    }
}

/// Whether who is told of a release lets some time pass yet.
inline bool redlock_core::holds_back(const round_ptr& r, errands& todo) noexcept
{
    if (r->end != verdict::yes || r->stopped || over_)
        return false;
    try {
        if (!std::exchange(r->told, true)) {
            const auto when = now() + crowds_.pause(r->key);
            list(*r, when, {r, nullptr}, todo);
            r->tells_at = when;
        }
    } catch (...) { // NOLINT(bugprone-empty-catch): without memory it tells at once
    }
    if (now() >= r->tells_at)
        return false;
    r->end = verdict::open;
    return true;
}

/// Until when, after `acquire` and `extend`. What was asked before the newest may be carried out before or after it, and what
/// is in doubt may have been carried out: then the least counts.
inline void redlock_core::believe(const redlock_round& r) noexcept
{
    redlock_trace& t = *r.trace;
    const bool newest = t.newest == &r && r.end == verdict::yes;
    if (r.op == operation::acquire && newest)
        t.believed = r.valid_until();
    if (r.op == operation::extend && t.believed != clock::time_point{})
        t.believed = newest ? r.valid_until() : (std::min)(t.believed, r.valid_until());
}

inline void redlock_core::wake(redlock_round& r, errands& todo) noexcept
{
    redlock_suspension* const w = std::exchange(r.waiter, nullptr);
    if (!w)
        return;
    w->finish();
    todo.resumes = true;
}

inline void redlock_core::time_out(redlock_round& r) noexcept
{
    for (node_answer& a : r.answers) {
        if (a.vote == node_vote::pending) {
            a.vote = node_vote::trouble;
            a.trouble = silence_;
        }
    }
}

/// Has released what is to be released now, and says when to look again.
inline void redlock_core::sweep(const trace_ptr& t, errands& todo) noexcept
{
    const bool expired = !over_ && loop().now() >= t->over;
    if (expired)
        t->give_up();
    t->judge_latecomers(now());
    if (t->settled(now()))
        return forget(t);
    if (expired) // what is in flight comes back here
        return unlist(*t);
    clock::time_point next = t->over;
    try {
        for (std::size_t n = 0; n != count_; ++n) {
            if (!t->to_be_freed(n) || process_ != process_id())
                continue;
            const redlock_trace::at_node& at = t->nodes[n];
            if (over_ ? !at.tried() : loop().now() >= at.again)
                send_release(t, n, todo);
            else
                next = (std::min)(next, at.again);
        }
        list(*t, next, {nullptr, t}, todo);
    } catch (...) { // NOLINT(bugprone-empty-catch): without memory the ttl has to free it
    }
}

inline void redlock_core::send_release(const trace_ptr& t, std::size_t node, errands& todo)
{
    auto r = std::make_shared<redlock_round>(operation::release, t->name.first, t->name.second,
                                             std::chrono::milliseconds{}, std::string_view{},
                                             count_, clock::time_point{});
    r->trace = t;
    r->end = verdict::yes; // nobody waits for it
    todo.questions.emplace_back(node, std::move(r));
    ++t->nodes[node].releasing;
}

inline void redlock_core::forget(const trace_ptr& t) noexcept
{
    unlist(*t);
    traces_.erase(t->name);
}

inline void redlock_core::run(const errands& todo) noexcept
{
    for (const auto& [node, r] : todo.questions)
        ask(node, r);
    if (todo.stopped)
        todo.stopped->give_up.request_stop();
    if (todo.poke)
        todo.poke->post(todo.poke);
    if (todo.resumes)
        resume_queue::drain();
}

/// What is due is done, and the alarm set for what comes next. On the loop.
inline void redlock_core::tick() noexcept
{
    errands todo;
    std::shared_ptr<timer> alarm;
    clock::time_point next;
    {
        const std::lock_guard lock{state_mutex_};
        const clock::time_point now = loop().now();
        while (!agenda_.empty() && agenda_.begin()->first <= now) {
            const redlock_due what = agenda_.begin()->second;
            if (what.trace) {
                unlist(*what.trace);
                sweep(what.trace, todo);
                continue;
            }
            unlist(*what.round);
            const bool limited = what.round->end == verdict::open;
            if (limited) {
                time_out(*what.round);
                decide(what.round, todo);
            }
            put_back(what.round, todo);
            if (limited)
                wake(*what.round, todo);
        }
        next = agenda_.empty() ? (clock::time_point::max)() : agenda_.begin()->first;
        alarm_at_ = next;
        alarm = alarm_;
    }
    if (next != (clock::time_point::max)())
        alarm->arm(alarm, next);
    run(todo);
}

inline void redlock_core::stop(const round_ptr& r) noexcept
{
    errands todo;
    {
        const std::lock_guard lock{state_mutex_};
        r->stopped = true;
        if (r->asked_all && r->end == verdict::open) {
            decide(r, todo);
            wake(*r, todo);
        }
    }
    run(todo);
}

template <class Withdraw>
void redlock_core::abandon(const round_ptr& r, Withdraw withdraw) noexcept
{
    errands todo;
    {
        const std::lock_guard lock{state_mutex_};
        withdraw();
        r->waiter = nullptr;
        if (r->op == operation::acquire && r->end == verdict::yes)
            lose(*r, todo); // granted, but nobody has heard of it
        if (r->op == operation::wait && r->end == verdict::open) {
            r->end = verdict::yes;
            todo.stopped = r;
            unlist(*r);
        }
    }
    run(todo);
}

inline void redlock_core::shut_down() noexcept
{
    std::vector<std::shared_ptr<core_event>> dropped; // their destructors may want the mutex
    std::shared_ptr<timer> alarm;
    std::shared_ptr<timer> poke;
    redlock_agenda agenda;
    errands todo;
    {
        const std::lock_guard lock{state_mutex_};
        over_ = true;
        alarm.swap(alarm_);
        poke.swap(poke_);
        for (auto& [when, what] : agenda_)
            (what.round ? what.round->listed : what.trace->listed) = false;
        agenda.swap(agenda_);
        for (auto& [when, what] : agenda) {
            if (!what.round || !what.round->told)
                continue;
            decide(what.round, todo);
            wake(*what.round, todo);
        }
    }
    run(todo);
    std::unique_lock lock{mutex_};
    shut_ = true;
    dropped = drop_coming();
    wait_until_empty(lock);
    lock.unlock();
}

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/redlock_agenda.hpp>
#include <amux/detail/redlock_round.hpp>
#include <amux/detail/redlock_trace.hpp>
#include <amux/detail/redlock_vote.hpp>
#include <amux/detail/token.hpp>
#include <amux/error.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace amux::detail {

/// What is to be asked, and of which node, once the mutex is left.
using redlock_questions = std::vector<std::pair<std::size_t, std::shared_ptr<redlock_round>>>;

inline std::exception_ptr redlock_trouble(backend_error_kind kind, const std::string& what)
{
    return std::make_exception_ptr(backend_error{kind, what});
}

/// What all tokens may have left at the nodes, and what is asked there because of that. Under the mutex.
///
/// Each `now` is later than everything once the loop is not to be used any more: then nothing has a time, and nothing is
/// tried twice.
class redlock_traces {
    using operation = redlock_round::operation;
    using round_ptr = std::shared_ptr<redlock_round>;
    using trace_ptr = std::shared_ptr<redlock_trace>;
    using time_point = clock::time_point;

public:
    /// Of so many nodes. What is to be asked is added to `out`.
    redlock_traces(std::size_t nodes, redlock_questions& out) noexcept : count_{nodes}, out_{out} {}

    /// Asks a question that may change something, at the nodes where its answer can count.
    ///
    /// Throws: without memory, and nothing has changed.
    void ask(const round_ptr& r, time_point now);
    /// A node has answered it. A yes that does not count becomes trouble.
    void answered(const redlock_round& r, std::size_t node, node_answer& a,
                  time_point now) noexcept;
    /// A renewal gives the lease back to nodes that have lost it, or never had it.
    void put_back(const round_ptr& r, time_point now) noexcept;
    /// It has come to an end.
    void decided(const redlock_round& r, time_point now) noexcept;
    /// What was granted has reached nobody.
    void lose(const redlock_round& r, time_point now) noexcept;
    /// Has released what is to be released now, and says when to look again.
    void sweep(const trace_ptr& t, time_point now) noexcept;

    /// What is to be swept at some time.
    redlock_agenda<redlock_trace> agenda;

private:
    trace_ptr trace_of(const redlock_round& r);
    void forget(redlock_trace& t) noexcept;
    round_ptr question(operation op, const trace_ptr& t, std::chrono::milliseconds ttl = {},
                       time_point started = {}) const;
    void send(std::size_t node, round_ptr q);

    // Made beforehand: where they are given there may be no memory.
    const std::exception_ptr shorter_{
        redlock_trouble(backend_error_kind::indeterminate,
                        "yes, but a shorter time to live may be on its way there")};
    const std::exception_ptr undone_{redlock_trouble(
        backend_error_kind::not_applied, "a release of the same token may be on its way there")};
    const std::exception_ptr late_{redlock_trouble(
        backend_error_kind::indeterminate, "the lease was missing there, and is back too late")};
    const std::size_t count_;
    const long process_ = process_id(); // a forked child leaves its parent's leases alone
    redlock_questions& out_;
    std::map<std::pair<std::string, std::string>, trace_ptr> traces_; // by key and token
};

inline auto redlock_traces::trace_of(const redlock_round& r) -> trace_ptr
{
    const auto known = traces_.find({r.key, r.token});
    if (known != traces_.end())
        return known->second;
    const auto t = std::make_shared<redlock_trace>(r.key, r.token, count_);
    traces_.emplace(t->name, t);
    return t;
}

inline void redlock_traces::forget(redlock_trace& t) noexcept
{
    agenda.drop(t);
    traces_.erase(t.name);
}

inline void redlock_traces::ask(const round_ptr& r, time_point now)
{
    out_.reserve(out_.size() + count_);
    r->trace = trace_of(*r);
    redlock_trace& t = *r->trace;
    try {
        t.prepare(*r, now);
    } catch (...) {
        if (t.settled(now))
            forget(t);
        throw;
    }
    t.asked(*r);
    for (std::size_t n = 0; n != count_; ++n) {
        if (t.may_undo(*r, n, now)) {
            r->answers[n] = {node_vote::trouble, undone_, {}, {}};
            r->gaps.heard(n, node_vote::trouble);
        } else {
            r->unsure[n] = t.may_shorten(*r, n, now);
            send(n, r);
        }
    }
}

inline void redlock_traces::send(std::size_t node, round_ptr q)
{
    out_.reserve(out_.size() + 1);
    q->trace->sent(*q, node);
    out_.emplace_back(node, std::move(q));
}

inline void redlock_traces::answered(const redlock_round& r, std::size_t node, node_answer& a,
                                     time_point now) noexcept
{
    r.trace->answered(r, node, a, now);
    if (a.vote != node_vote::yes)
        return;
    if (r.trace->is_late(r, node, now))
        a = {node_vote::trouble, late_, {}, {}};
    else if (r.unsure[node])
        a = {node_vote::trouble, shorter_, {}, {}};
}

/// A question to one node, whose answer nobody waits for.
inline auto redlock_traces::question(operation op, const trace_ptr& t,
                                     std::chrono::milliseconds ttl, time_point started) const
    -> round_ptr
{
    auto q = std::make_shared<redlock_round>(op, t->name.first, t->name.second, ttl, t->metadata(),
                                             count_, started);
    q->trace = t;
    q->end = verdict::yes;
    return q;
}

/// Not before it is certain that no majority misses it: that is a loss, be it of data or by a release that another
/// process has asked for. And not once nobody believes: somebody else may have had the key since, so that a dead lease
/// would come to life. An older question does not: it would shorten what the newest one asks for.
inline void redlock_traces::put_back(const round_ptr& r, time_point now) noexcept
{
    if (r->op != operation::extend || !r->gaps.are_few(r->end != verdict::open))
        return;
    redlock_trace& t = *r->trace;
    if (!t.is_newest(*r) || !t.may_be_believed(now) || now < r->gaps.again())
        return;
    try {
        for (std::size_t n = 0; n != count_; ++n) {
            if (!r->gaps.at(n))
                continue;
            round_ptr q = question(operation::acquire, r->trace, r->ttl, r->started);
            q->renewal = r;
            q->unsure[n] = t.may_shorten(*q, n, now);
            send(n, std::move(q));
            r->gaps.fill(n);
            if (r->end == verdict::open)
                r->answers[n] = {};
        }
    } catch (...) { // NOLINT(bugprone-empty-catch): the next renewal tries again
    }
}

inline void redlock_traces::decided(const redlock_round& r, time_point now) noexcept
{
    r.trace->decided(r);
    sweep(r.trace, now);
}

inline void redlock_traces::lose(const redlock_round& r, time_point now) noexcept
{
    const auto known = traces_.find(r.trace->name); // none: nothing is left
    if (known == traces_.end() || !known->second->belongs_to(r))
        return;
    const trace_ptr t = known->second;
    t->lose(r);
    sweep(t, now);
}

inline void redlock_traces::sweep(const trace_ptr& t, time_point now) noexcept
{
    const bool last = now == redlock_trace::never;
    if (!last)
        t->expire(now);
    t->judge_latecomers(now);
    if (t->settled(now))
        return forget(*t);
    time_point next = t->over(now);
    if (next <= now && !last) // what is in flight comes back here
        return agenda.drop(*t);
    try {
        for (std::size_t n = 0; n != count_; ++n) {
            const time_point frees = t->frees_at(n, now);
            if (frees == redlock_trace::never || process_ != process_id())
                continue;
            if (now >= frees)
                send(n, question(operation::release, t));
            else
                next = (std::min)(next, frees);
        }
        if (!last)
            agenda.put(t, next);
    } catch (...) { // NOLINT(bugprone-empty-catch): without memory the ttl has to free it
    }
}

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/fatal.hpp>
#include <amux/lock_backend.hpp>
#include <amux/scheduler.hpp>
#include <amux/testing/course.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace amux::testing {

/// The calls of a scripted store: how each goes, which are in flight, which there were. See `scripted_backend`.
class scripted_calls {
protected:
    struct request;

public:
    /// What times are given in.
    using milliseconds = std::chrono::milliseconds;

    scripted_calls(const scripted_calls&) = delete;
    scripted_calls& operator=(const scripted_calls&) = delete;

    // The script.

    /// The next call of `op` that has no course yet goes so. Several are used in order.
    void next(operation op, course way) { next_[index(op)].push_back(std::move(way)); }
    /// Every call of `op` goes so, unless `next` or `decide` says otherwise.
    void always(operation op, course way) { always_[index(op)] = std::move(way); }
    /// Asked for every call that `next` says nothing of; none: `always`.
    std::function<std::optional<course>(const backend_call&)> decide;

    /// Carries out a call that is in flight, now. Its answer, if it comes by itself, comes no sooner.
    void act(std::size_t number) { act(of(number)); }
    /// Answers a call that is in flight, and carries it out before that if it was not yet.
    void answer(std::size_t number);
    /// Fails a call that is in flight. It is not carried out, unless it was already or `acts_after` is to come.
    void fail(std::size_t number, std::exception_ptr e);

    // The log.

    /// Every call since the last `forget_calls()`, in order.
    const std::deque<backend_call>& calls() const noexcept { return log_; }
    /// The calls of `op` ever.
    std::size_t count(operation op) const noexcept { return counts_[index(op)]; }
    std::size_t count() const noexcept { return last_number_; }
    /// Empties the log; the numbers go on.
    void forget_calls() noexcept { log_.clear(); }
    /// For tests with so many calls that their log would not fit: only `count` goes on.
    void keep_no_log() noexcept
    {
        logs_ = false;
        log_.clear();
    }
    /// How many calls are neither answered nor given up, `wait_for_release` not counted.
    std::size_t in_flight() const noexcept;
    /// The oldest call of `op` that is in flight; 0 when there is none.
    std::size_t oldest_in_flight(operation op) const noexcept;

protected:
    explicit scripted_calls(scheduler& time) noexcept : time_{time} {}
    virtual ~scripted_calls() = default;

    /// Does what the call asks for, and fills in its answer.
    virtual void carry_out(request& r) = 0;

    scheduler& time() const noexcept { return time_; }
    std::pair<backend_call, course> begin(operation op, std::string_view key,
                                          std::string_view token, milliseconds ttl,
                                          std::string_view metadata);
    std::shared_ptr<request> send(operation op, std::string_view key, std::string_view token = {},
                                  milliseconds ttl = {}, std::string_view metadata = {});
    /// Fails what is unanswered; nothing is carried out any more.
    void end_all();

private:
    static constexpr std::size_t operations = 6;
    static constexpr std::size_t index(operation op) noexcept
    {
        return static_cast<std::size_t>(op);
    }

    request& of(std::size_t number) const;
    void act(request& r);
    void finish(std::size_t number);
    backend_call* logged(std::size_t number) noexcept;

    scheduler& time_;
    std::array<std::deque<course>, operations> next_;
    std::array<course, operations> always_;
    std::array<std::size_t, operations> counts_{};
    std::size_t last_number_ = 0;
    std::deque<backend_call> log_;
    bool logs_ = true;
    std::map<std::size_t, std::shared_ptr<request>> requests_; // to be carried out or answered
};

/// A call that is not over: a node of `time` for each of its two moments.
struct scripted_calls::request {
    struct event : scheduler::node {
        event(request& r, function f) noexcept : node{f}, self{r} {}
        request& self;
    };

    request(scripted_calls& s, std::pair<backend_call, course> begun)
        : store{&s}, call{std::move(begun.first)}, way{std::move(begun.second)}
    {}

    scripted_calls* store;
    backend_call call;
    course way;
    event act_event{*this, [](scheduler::node& n) noexcept {
                        request& r = static_cast<event&>(n).self;
                        r.store->act(r);
                    }};
    event answer_event{*this, [](scheduler::node& n) noexcept {
                           request& r = static_cast<event&>(n).self;
                           r.store->finish(r.call.number);
                       }};
    std::coroutine_handle<> waiter;

    acquire_result grant;
    bool yes = false;
    std::optional<std::string> holder;
    std::optional<lease_info> info;
};

inline std::pair<backend_call, course> scripted_calls::begin(operation op, std::string_view key,
                                                             std::string_view token,
                                                             milliseconds ttl,
                                                             std::string_view metadata)
{
    backend_call made{
        last_number_ + 1, op, std::string{key}, std::string{token}, ttl, {}, {}, {}, {}};
    made.metadata = metadata;
    made.at = time_.now();
    std::pair<backend_call, course> begun{std::move(made), always_[index(op)]};
    ++counts_[index(op)];
    if (auto& planned = next_[index(op)]; !planned.empty()) {
        begun.second = std::move(planned.front());
        planned.pop_front();
    } else if (decide) {
        if (auto way = decide(begun.first))
            begun.second = *std::move(way);
    }
    if (logs_)
        log_.push_back(begun.first);
    ++last_number_; // once nothing throws any more: the log knows its calls by their numbers
    return begun;
}

inline auto scripted_calls::send(operation op, std::string_view key, std::string_view token,
                                 milliseconds ttl, std::string_view metadata)
    -> std::shared_ptr<request>
{
    auto r = std::make_shared<request>(*this, begin(op, key, token, ttl, metadata));
    const course& way = r->way;
    const auto number = r->call.number;
    requests_.emplace(number, r);
    if (way.acts_after == milliseconds{})
        act(*r);
    else if (way.acts_after != course::never)
        time_.schedule_at(r->call.at + way.acts_after, r->act_event);
    // An answer waits for what it tells; with equal times the act, armed first, comes first.
    const auto after =
        way.error ? way.answers_after : (std::max)(way.answers_after, way.acts_after);
    if (after == milliseconds{})
        finish(number);
    else if (after != course::never)
        time_.schedule_at(r->call.at + after, r->answer_event);
    return r;
}

inline void scripted_calls::act(request& r)
{
    if (r.call.acted)
        return;
    const auto kept = requests_.at(r.call.number);
    time_.cancel(r.act_event);
    r.call.acted = time_.now();
    if (backend_call* const l = logged(r.call.number))
        l->acted = r.call.acted;
    if (r.call.answered)
        requests_.erase(r.call.number);
    try {
        carry_out(r);
    } catch (...) {
        if (!r.way.error)
            r.way.error = std::current_exception();
    }
}

inline void scripted_calls::finish(std::size_t number)
{
    const auto r = requests_.at(number);
    time_.cancel(r->answer_event);
    r->call.answered = time_.now();
    if (backend_call* const l = logged(number))
        l->answered = r->call.answered;
    if (r->call.acted || r->way.acts_after == course::never)
        requests_.erase(number);
    if (r->waiter)
        std::exchange(r->waiter, nullptr).resume();
}

inline scripted_calls::request& scripted_calls::of(std::size_t number) const
{
    const auto found = requests_.find(number);
    if (found == requests_.end() || found->second->call.answered)
        amux::detail::fatal("a scripted store is told to end a call that is not in flight");
    return *found->second;
}

inline void scripted_calls::answer(std::size_t number)
{
    request& r = of(number);
    r.way.error = nullptr;
    act(r);
    finish(number);
}

inline void scripted_calls::fail(std::size_t number, std::exception_ptr e)
{
    of(number).way.error = std::move(e);
    finish(number);
}

inline std::size_t scripted_calls::in_flight() const noexcept
{
    std::size_t n = 0;
    for (const auto& [number, r] : requests_)
        n += r->call.answered ? 0U : 1U;
    return n;
}

inline std::size_t scripted_calls::oldest_in_flight(operation op) const noexcept
{
    for (const auto& [number, r] : requests_) {
        if (r->call.op == op && !r->call.answered)
            return number;
    }
    return 0;
}

inline backend_call* scripted_calls::logged(std::size_t number) noexcept
{
    if (log_.empty() || number < log_.front().number)
        return nullptr;
    return &log_[number - log_.front().number]; // numbers have no gaps
}

inline void scripted_calls::end_all()
{
    const auto lost =
        course::trouble(backend_error_kind::indeterminate, "the connection to the store is lost");
    while (!requests_.empty()) {
        const auto r = requests_.begin()->second;
        time_.cancel(r->act_event);
        r->way.acts_after = course::never;
        if (r->call.answered) {
            requests_.erase(requests_.begin());
        } else {
            r->way.error = lost;
            finish(r->call.number);
        }
    }
}

} // namespace amux::testing

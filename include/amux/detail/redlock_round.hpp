// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/clock.hpp>
#include <amux/detail/lease_terms.hpp>
#include <amux/detail/redlock_trace.hpp>
#include <amux/detail/redlock_vote.hpp>
#include <amux/detail/resume_queue.hpp>
#include <amux/error.hpp>
#include <amux/scheduler.hpp>

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

protected:
    ~redlock_suspension() = default;

    void suspended(std::coroutine_handle<> h, scheduler* where) noexcept
    {
        handle_ = h;
        where_ = where;
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

/// One question to all nodes, or a release that is tried again at one of them.
///
/// Kept alive by who awaits it, by each node that is asked, until it answers, however late, and by the agenda. Key and
/// the other constants are read by the nodes; the rest is under the mutex, and does not change once `end` is set.
struct redlock_round {
    enum class operation : unsigned char { acquire, extend, release, get, inspect, wait };

    redlock_round(operation what, std::string_view of_key, std::string_view for_token,
                  std::chrono::milliseconds time, std::string_view text, std::size_t nodes,
                  clock::time_point now)
        : op{what},
          key{of_key},
          token{for_token},
          ttl{time},
          metadata{text},
          started{now},
          answers(nodes),
          unsure(nodes),
          absent(nodes),
          unheard{nodes}
    {}

    const operation op;
    const std::string key;
    const std::string token;
    const std::chrono::milliseconds ttl;
    const std::string metadata;
    const clock::time_point started;
    std::stop_source give_up; // of a `wait`

    node_answers answers;
    std::vector<bool> unsure; // of which nodes a yes does not count
    std::vector<bool> absent; // an `extend`: where it is missing, and may be put
    clock::time_point tries_again{}; // to put it where that was refused
    std::chrono::milliseconds pause{10}; // before that; doubled each time
    std::size_t missing = 0; // an `extend`: how many nodes have said that it is
    std::size_t unheard; // an `extend`: how many have said nothing
    std::shared_ptr<redlock_round> renewal; // an `acquire` of this one, at one node
    bool asked_all = false; // not decided before
    bool stopped = false;
    bool told = false; // a `wait`: that the key may be free
    clock::time_point tells_at{}; // a `wait` that was told: when it says so
    bool late = false; // granted by a majority, but too late
    verdict end = verdict::open;
    redlock_suspension* waiter = nullptr;
    std::shared_ptr<redlock_trace> trace; // of `acquire`, `extend` and `release`
    redlock_agenda::iterator due{};
    bool listed = false; // in the agenda

    /// Until when a lease may be believed that this sets.
    clock::time_point valid_until() const noexcept { return started + ttl - drift_of(ttl); }

    /// No majority has said that the lease is missing, and none will in time.
    bool is_missing_at_few() const noexcept
    {
        return missing + (end == verdict::open ? unheard : 0) < majority_of(answers.size());
    }

    bool changes() const noexcept
    {
        return op == operation::acquire || op == operation::extend || op == operation::release;
    }

    void count(clock::time_point now) noexcept
    {
        if (stopped)
            end = verdict::yes;
        else if (op == operation::get || op == operation::inspect)
            end = count_tokens(answers);
        else
            end = count_votes(answers);
        if (op == operation::acquire && end == verdict::yes && now >= valid_until()) {
            end = verdict::none;
            late = true;
        }
    }

    /// For `verdict::none`.
    [[noreturn]] void throw_trouble() const;
};

inline const char* to_string(redlock_round::operation op) noexcept
{
    constexpr const char* names[] = {"acquire", "extend", "release", "get", "inspect", "wait"};
    return names[static_cast<std::size_t>(op)];
}

inline void redlock_round::throw_trouble() const
{
    std::size_t permanent = 0;
    std::string text = late ? "a majority has granted it too late" : "no majority";
    text += " of " + std::to_string(answers.size()) + " nodes in " + to_string(op) + ':';
    for (std::size_t n = 0; n != answers.size(); ++n) {
        text += (n == 0 ? " node " : "; node ") + std::to_string(n + 1) + ": ";
        const node_answer& a = answers[n];
        if (!a.trouble) {
            constexpr const char* said[] = {"not waited for", "yes", "no"};
            text += said[static_cast<std::size_t>(a.vote)];
            continue;
        }
        if (kind_of(a.trouble) == backend_error_kind::permanent)
            ++permanent;
        try {
            std::rethrow_exception(a.trouble);
        } catch (const std::exception& e) {
            constexpr std::string_view prefix = "amux: ";
            const std::string_view what = e.what();
            text += what.starts_with(prefix) ? what.substr(prefix.size()) : what;
        }
    }
    backend_error_kind kind = backend_error_kind::indeterminate;
    if (permanent >= majority_of(answers.size()))
        kind = backend_error_kind::permanent;
    else if (op == operation::acquire) // what the others have granted is given back
        kind = backend_error_kind::not_applied;
    throw backend_error{kind, lock_message(text, {}, key)};
}

} // namespace amux::detail

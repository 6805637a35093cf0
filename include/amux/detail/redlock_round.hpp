// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/clock.hpp>
#include <amux/detail/lease_terms.hpp>
#include <amux/detail/redlock_agenda.hpp>
#include <amux/detail/redlock_gaps.hpp>
#include <amux/detail/redlock_vote.hpp>
#include <amux/error.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace amux::detail {

class redlock_trace;
class suspension;

/// One question to all nodes, or to one of them: a release that is tried again, or the `acquire` of a renewal.
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
          gaps{nodes}
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
    redlock_gaps gaps; // of an `extend`
    std::shared_ptr<redlock_round> renewal; // whose `acquire` at one node this is
    bool asked_all = false; // not decided before
    bool stopped = false;
    std::optional<clock::time_point> tells_at; // of a `wait` that was told that the key may be free
    bool late = false; // granted by a majority, but too late
    std::chrono::milliseconds waited{}; // for the nodes that have not answered in time
    verdict end = verdict::open;
    suspension* waiter = nullptr;
    std::shared_ptr<redlock_trace> trace; // of `acquire`, `extend` and `release`
    redlock_agenda<redlock_round>::place due;

    /// Until when a lease may be believed that this sets.
    clock::time_point valid_until() const noexcept
    {
        // A ttl may be longer than the clock goes.
        const clock::duration time = deadline_after(started, ttl) - started;
        const auto lives = std::chrono::duration_cast<std::chrono::milliseconds>(time);
        return started + lives - drift_of(lives);
    }

    /// A lease that would be over when it is granted is none.
    clock::time_point limit(std::chrono::milliseconds node_timeout) const noexcept
    {
        const bool sets = op == operation::acquire || op == operation::extend;
        const clock::time_point most = deadline_after(started, node_timeout);
        return sets ? (std::min)(most, valid_until()) : most;
    }

    bool changes() const noexcept
    {
        return op == operation::acquire || op == operation::extend || op == operation::release;
    }

    /// Nodes that have not answered are in trouble.
    void time_out(clock::time_point now) noexcept
    {
        waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - started);
        for (node_answer& a : answers) {
            if (a.vote == node_vote::pending)
                a.vote = node_vote::trouble;
        }
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
            const std::string said[] = {"not waited for", "yes", "no",
                                        "no answer in " + std::to_string(waited.count()) + " ms"};
            text += said[static_cast<std::size_t>(a.vote)];
            continue;
        }
        if (a.is(backend_error_kind::permanent))
            ++permanent;
        text += what_of(a.trouble);
    }
    backend_error_kind kind = backend_error_kind::indeterminate;
    if (permanent >= majority_of(answers.size()))
        kind = backend_error_kind::permanent;
    else if (op == operation::acquire) // what the others have granted is given back
        kind = backend_error_kind::not_applied;
    throw backend_error{kind, lock_message(text, {}, key)};
}

} // namespace amux::detail

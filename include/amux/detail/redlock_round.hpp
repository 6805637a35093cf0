// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/clock.hpp>
#include <amux/detail/lease_terms.hpp>
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

struct redlock_round;
struct redlock_trace;

/// What has a time: the limit of a question, or when a release is tried again.
struct redlock_due {
    std::shared_ptr<redlock_round> round;
    std::shared_ptr<redlock_trace> trace;
};
using redlock_agenda = std::multimap<clock::time_point, redlock_due>;

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

/// What one token may have left at the nodes. Under the mutex.
///
/// It is there while a question that changes something is undecided or in flight at a node, while something of it is to be freed, and while a
/// release may still be carried out, which must not meet a lease that the same token has got again.
struct redlock_trace {
    enum class rest : unsigned char { nothing, held, doubt };
    static constexpr std::chrono::milliseconds first_pause{50};
    static constexpr auto longest = (std::chrono::milliseconds::max)();
    struct at_node {
        unsigned acquiring = 0; // in flight
        unsigned releasing = 0; // in flight
        rest left =
            rest::nothing; // `doubt`: it may come yet, so that a "no" to the release proves nothing
        bool may_go = false; // a release that has met trouble may be carried out yet
        std::vector<std::chrono::milliseconds> setting; // the ttls that are on their way there
        std::chrono::milliseconds doubtful =
            longest; // the least that a question in doubt may set yet
        clock::time_point again{}; // when the next release is due
        std::chrono::milliseconds pause = first_pause; // doubled after each

        bool tried() const noexcept { return pause != first_pause; }
    };

    redlock_trace(std::string of_key, std::string of_token, std::size_t count)
        : name{std::move(of_key), std::move(of_token)}, nodes(count)
    {}

    const std::pair<std::string, std::string> name; // key and token
    std::vector<at_node> nodes;
    unsigned undecided = 0; // questions to change something
    bool unwanted = false; // what is left is to be freed
    clock::time_point over{}; // by then the ttl has freed it
    redlock_agenda::iterator due{};
    bool listed = false; // in the agenda

    /// A release sent before may undo what is asked for now.
    bool may_undo(std::size_t n) const noexcept
    {
        return nodes[n].releasing != 0 || nodes[n].may_go;
    }

    /// A question sent before may let a shorter ttl start when this one has started.
    bool may_shorten(std::size_t n, std::chrono::milliseconds ttl) const noexcept
    {
        const at_node& at = nodes[n];
        return at.doubtful < ttl ||
               std::any_of(
                   at.setting.begin(), at.setting.end(), [ttl](auto other) { return other < ttl; });
    }
    void has_set(std::size_t n, std::chrono::milliseconds ttl, bool in_doubt) noexcept
    {
        at_node& at = nodes[n];
        at.setting.erase(std::find(at.setting.begin(), at.setting.end(), ttl));
        if (in_doubt)
            at.doubtful = (std::min)(at.doubtful, ttl);
    }

    bool to_be_freed(std::size_t n) const noexcept
    {
        const at_node& at = nodes[n];
        return unwanted && at.left != rest::nothing && at.acquiring == 0 && at.releasing == 0;
    }
    /// Nothing is in flight, nothing is to be done, and nothing to be minded.
    bool settled() const noexcept
    {
        return undecided == 0 && std::none_of(nodes.begin(), nodes.end(), [this](const at_node& n) {
                   return n.acquiring != 0 || n.releasing != 0 || n.may_go || !n.setting.empty() ||
                          n.doubtful != longest || (unwanted && n.left != rest::nothing);
               });
    }
    /// The ttl has freed the rest.
    void give_up() noexcept
    {
        for (at_node& n : nodes) {
            n.left = rest::nothing;
            n.may_go = false;
            n.doubtful = longest;
        }
    }
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
          unsure(nodes)
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
    bool asked_all = false; // not decided before
    bool stopped = false;
    bool late = false; // granted by a majority, but too late
    verdict end = verdict::open;
    redlock_suspension* waiter = nullptr;
    std::shared_ptr<redlock_trace> trace; // of `acquire`, `extend` and `release`
    redlock_agenda::iterator due{};
    bool listed = false; // in the agenda

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
        if (op == operation::acquire && end == verdict::yes &&
            now >= started + ttl - drift_of(ttl)) {
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

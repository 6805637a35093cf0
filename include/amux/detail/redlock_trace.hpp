// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/redlock_agenda.hpp>
#include <amux/detail/redlock_round.hpp>
#include <amux/detail/redlock_vote.hpp>
#include <amux/error.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace amux::detail {

/// What one token may have left at the nodes, and until when its lease may be believed. Under the mutex.
///
/// It is told of each question that may change something, when that is asked, goes to a node, is answered there, and is
/// decided. It is there while such a question is undecided or in flight at a node, while something may be left there, and
/// while a question whose answer was lost may still be carried out: it must not meet a lease that the same token has got
/// again.
class redlock_trace {
    using operation = redlock_round::operation;
    using milliseconds = std::chrono::milliseconds;
    using time_point = clock::time_point;

public:
    redlock_trace(std::string of_key, std::string of_token, std::size_t count)
        : name{std::move(of_key), std::move(of_token)}, nodes_(count)
    {}

    const std::pair<std::string, std::string> name; // key and token
    redlock_agenda<redlock_trace>::place due;

    /// Takes the memory that a question will need. Throws: without it, and nothing has changed.
    void prepare(const redlock_round& r, time_point now);
    /// A question is asked, of all nodes that it may be sent to.
    void asked(const redlock_round& r) noexcept;
    /// A release that is on its way to this node, or about to be, may undo what is asked for.
    bool may_undo(const redlock_round& r, std::size_t node, time_point now) const noexcept;
    /// An earlier question may let a shorter time to live begin at this node when this one has set its own.
    bool may_shorten(const redlock_round& r, std::size_t node, time_point now) const noexcept;
    /// A question goes to a node. Throws: without memory, when it was not prepared.
    void sent(const redlock_round& r, std::size_t node);
    void answered(const redlock_round& r, std::size_t node, const node_answer& a,
                  time_point now) noexcept;
    /// Whether a yes to a renewal is that of a lease which was put there when nobody believed any more, or may be.
    bool is_late(const redlock_round& r, std::size_t node, time_point now) const noexcept;
    void decided(const redlock_round& r) noexcept;
    /// What an `acquire` was granted is its own: no later one has been asked, which would have it then.
    bool belongs_to(const redlock_round& r) const noexcept { return last_acquire_ == &r; }
    /// Nobody believes any more in what was granted.
    void lose(const redlock_round& r) noexcept;

    /// Of the questions to all nodes.
    bool is_newest(const redlock_round& r) const noexcept { return newest_ == &r; }
    bool may_be_believed(time_point now) const noexcept { return now < believed_; }
    const std::string& metadata() const noexcept { return metadata_; }

    /// When the ttl has freed what is left; later than that, when no lost question can be carried out any more.
    time_point over(time_point now) const noexcept;
    /// What the ttl has freed is minded no more.
    void expire(time_point now) noexcept;
    /// What a renewal has put at a node too late to be of use is freed, unless another one goes on with the lease.
    void judge_latecomers(time_point now) noexcept;
    /// Nothing is in flight, nothing left, and nothing to be minded.
    bool settled(time_point now) const noexcept;
    /// When a release is to go to this node; `never` when none is.
    time_point frees_at(std::size_t node, time_point now) const noexcept;

    static constexpr time_point never = (time_point::max)();

private:
    enum class rest : unsigned char { nothing, held, doubt };
    static constexpr milliseconds first_pause{50};
    /// For how long a token is minded that was granted elsewhere: as long as a lease lives when nothing is said of it.
    static constexpr milliseconds unknown_ttl{30'000};
    /// How long after its answer was lost a question may yet be carried out, by a server or a network that stood still.
    static constexpr milliseconds latest{30'000};

    struct at_node {
        unsigned acquiring = 0; // in flight
        unsigned releasing = 0; // in flight
        rest left =
            rest::nothing; // `doubt`: may come yet, so that a "no" to a release proves nothing
        bool unwanted = false; // what is left is to be freed
        bool came_late = false; // put there by a renewal when nobody believed any more, it seems
        bool crossed =
            false; // granted while a release was on its way: which was carried out first?
        time_point may_go_until{}; // a release that has met trouble may be carried out yet
        std::vector<milliseconds> setting; // the ttls that are on their way there
        milliseconds doubtful{}; // the least that a question in doubt may set yet
        time_point doubtful_until{};
        time_point again{}; // when the next release is due
        milliseconds pause = first_pause; // doubled after each

        bool is_in_the_way() const noexcept { return unwanted && left != rest::nothing; }
        void may_have_it() noexcept { left = (std::max)(left, rest::held); }
    };

    void unwant(time_point from) noexcept;
    void ttl_answered(const redlock_round& r, at_node& at, const node_answer& a,
                      time_point now) noexcept;
    void release_answered(at_node& at, const node_answer& a, time_point now) noexcept;

    std::vector<at_node> nodes_;
    unsigned undecided_ = 0; // questions to all nodes
    const redlock_round* newest_ = nullptr; // of those; only to compare
    const redlock_round* last_acquire_ = nullptr; // likewise
    std::string metadata_; // of the lease
    time_point believed_{}; // until then; none: not granted here, or not wanted any more
    bool known_ = false; // how long its lease lives: that was asked for here
    time_point over_{};
};

inline void redlock_trace::prepare(const redlock_round& r, time_point now)
{
    for (at_node& at : nodes_)
        at.setting.reserve(at.setting.size() + 1);
    if (r.op == operation::acquire && now >= believed_) // else the nodes keep what they have
        metadata_ = r.metadata;
}

inline void redlock_trace::asked(const redlock_round& r) noexcept
{
    ++undecided_;
    newest_ = &r;
    if (r.op == operation::release) {
        for (at_node& at : nodes_)
            at.may_have_it();
        return unwant(r.started);
    }
    known_ = true;
    over_ = (std::max)(over_, deadline_after(r.started, r.ttl));
    believed_ = (std::min)(believed_, r.valid_until()); // it may be carried out from now on
    if (r.op == operation::acquire) {
        last_acquire_ = &r;
        for (at_node& at : nodes_)
            at.unwanted = false;
    }
}

inline bool redlock_trace::may_undo(const redlock_round& r, std::size_t node,
                                    time_point now) const noexcept
{
    const at_node& at = nodes_[node];
    return r.op != operation::release &&
           (at.releasing != 0 || now < at.may_go_until || at.is_in_the_way());
}

inline bool redlock_trace::may_shorten(const redlock_round& r, std::size_t node,
                                       time_point now) const noexcept
{
    const at_node& at = nodes_[node];
    return (at.doubtful < r.ttl && now < at.doubtful_until) ||
           std::any_of(at.setting.begin(), at.setting.end(),
                       [&r](milliseconds other) { return other < r.ttl; });
}

inline void redlock_trace::sent(const redlock_round& r, std::size_t node)
{
    at_node& at = nodes_[node];
    if (r.op == operation::release) {
        ++at.releasing;
        return;
    }
    at.setting.push_back(r.ttl);
    if (r.op == operation::acquire)
        ++at.acquiring;
}

inline void redlock_trace::answered(const redlock_round& r, std::size_t node, const node_answer& a,
                                    time_point now) noexcept
{
    if (r.op == operation::release)
        release_answered(nodes_[node], a, now);
    else
        ttl_answered(r, nodes_[node], a, now);
}

inline void redlock_trace::ttl_answered(const redlock_round& r, at_node& at, const node_answer& a,
                                        time_point now) noexcept
{
    at.setting.erase(std::find(at.setting.begin(), at.setting.end(), r.ttl));
    if (r.op == operation::acquire)
        --at.acquiring;
    const bool doubt = a.is(backend_error_kind::indeterminate);
    if (!doubt && a.vote != node_vote::yes)
        return;
    over_ = (std::max)(over_, deadline_after(now, r.ttl)); // it came late, or is to come
    if (doubt) { // it may be carried out yet, though not for ever
        at.doubtful = now < at.doubtful_until ? (std::min)(at.doubtful, r.ttl) : r.ttl;
        at.doubtful_until =
            (std::max)(at.doubtful_until, deadline_after(now, (std::max)(r.ttl, latest)));
    }
    if (r.op == operation::extend)
        return;
    at.left = doubt ? rest::doubt : (std::max)(at.left, rest::held);
    at.again = {}; // earlier pauses were for what was left before
    at.pause = first_pause;
    at.crossed = at.releasing != 0;
    if (r.renewal && now >= believed_)
        at.came_late = true;
}

inline void redlock_trace::release_answered(at_node& at, const node_answer& a,
                                            time_point now) noexcept
{
    --at.releasing;
    const bool crossed = at.releasing == 0 ? std::exchange(at.crossed, false) : at.crossed;
    if (a.is(backend_error_kind::indeterminate))
        at.may_go_until = (std::max)(over_, deadline_after(now, latest));
    const bool hopeless = a.is(backend_error_kind::permanent);
    if ((!a.trouble && at.left == rest::held && !crossed) || hopeless)
        at.left = rest::nothing;
    if (now < at.again) // somebody else has asked meanwhile
        return;
    at.again = deadline_after(now, at.pause);
    at.pause *= 2;
}

inline bool redlock_trace::is_late(const redlock_round& r, std::size_t node,
                                   time_point now) const noexcept
{
    if (!r.renewal && r.op != operation::extend)
        return false;
    const at_node& at = nodes_[node];
    return now >= believed_ && (at.came_late || at.acquiring != 0);
}

/// Only the newest promises anything: what was asked before may be carried out before or after it.
inline void redlock_trace::decided(const redlock_round& r) noexcept
{
    --undecided_;
    const bool yes = r.end == verdict::yes;
    if (r.op == operation::acquire && belongs_to(r) && (!yes || !r.waiter))
        unwant(r.started);
    else if (r.op == operation::extend && r.end == verdict::no)
        lose(r);
    else if (yes && is_newest(r) && (r.op == operation::acquire || believed_ != time_point{}))
        believed_ = r.valid_until();
}

inline void redlock_trace::lose(const redlock_round& r) noexcept
{
    for (std::size_t n = 0; n != nodes_.size(); ++n) {
        if (r.answers[n].vote != node_vote::no)
            nodes_[n].may_have_it();
    }
    unwant(r.started);
}

/// Nobody believes any more: what is left is to be freed.
inline void redlock_trace::unwant(time_point from) noexcept
{
    believed_ = {};
    if (!known_)
        over_ = (std::max)(over_, from + unknown_ttl);
    for (at_node& at : nodes_)
        at.unwanted = true;
}

inline auto redlock_trace::over(time_point now) const noexcept -> time_point
{
    if (now < over_)
        return over_;
    time_point last{};
    for (const at_node& at : nodes_)
        last = (std::max)({last, at.may_go_until, at.doubtful_until});
    return last;
}

inline void redlock_trace::expire(time_point now) noexcept
{
    if (now < over_)
        return;
    for (at_node& at : nodes_)
        at.left = rest::nothing;
}

inline auto redlock_trace::frees_at(std::size_t node, time_point now) const noexcept -> time_point
{
    const at_node& at = nodes_[node];
    const bool tried = at.pause != first_pause;
    if (!at.is_in_the_way() || at.acquiring != 0 || at.releasing != 0 || (now == never && tried))
        return never;
    return at.again;
}

inline void redlock_trace::judge_latecomers(time_point now) noexcept
{
    for (at_node& at : nodes_) {
        if (undecided_ == 0 && std::exchange(at.came_late, false) && now >= believed_)
            at.unwanted = true;
    }
}

inline bool redlock_trace::settled(time_point now) const noexcept
{
    return undecided_ == 0 && std::none_of(nodes_.begin(), nodes_.end(), [now](const at_node& at) {
               return at.releasing != 0 || !at.setting.empty() || now < at.may_go_until ||
                      now < at.doubtful_until || at.left != rest::nothing;
           });
}

} // namespace amux::detail

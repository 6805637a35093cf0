// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
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

/// What one token may have left at the nodes, and until when its lease may be believed. Under the mutex.
///
/// It is there while the lease that it was granted may be believed, while a question that changes something is undecided
/// or in flight at a node, while something of it is to be freed, and while a release may still be carried out, which must
/// not meet a lease that the same token has got again.
struct redlock_trace {
    enum class rest : unsigned char { nothing, held, doubt };
    static constexpr std::chrono::milliseconds first_pause{50};
    static constexpr auto longest = (std::chrono::milliseconds::max)();
    /// For how long a token is minded that was granted elsewhere: as long as a lease lives when nothing is said of it.
    static constexpr std::chrono::milliseconds unknown_ttl{30'000};
    /// How long after its answer was lost a question may yet be carried out, by a server or a network that stood still.
    static constexpr std::chrono::milliseconds latest{30'000};
    struct at_node {
        unsigned acquiring = 0; // in flight
        unsigned releasing = 0; // in flight
        rest left =
            rest::nothing; // `doubt`: it may come yet, so that a "no" to the release proves nothing
        bool unwanted = false; // what is left is to be freed
        bool came_late = false; // put there by a renewal when nobody believed any more, it seems
        bool crossed =
            false; // granted while a release was on its way: which was carried out first?
        clock::time_point may_go_until{}; // a release that has met trouble may be carried out yet
        std::vector<std::chrono::milliseconds> setting; // the ttls that are on their way there
        std::chrono::milliseconds doubtful =
            longest; // the least that a question in doubt may set yet
        clock::time_point doubtful_until{};
        clock::time_point again{}; // when the next release is due
        std::chrono::milliseconds pause = first_pause; // doubled after each

        bool tried() const noexcept { return pause != first_pause; }
        bool is_in_the_way() const noexcept { return unwanted && left != rest::nothing; }
    };

    redlock_trace(std::string of_key, std::string of_token, std::size_t count)
        : name{std::move(of_key), std::move(of_token)}, nodes(count)
    {}

    const std::pair<std::string, std::string> name; // key and token
    std::vector<at_node> nodes;
    unsigned undecided = 0; // questions to change something
    const redlock_round* newest = nullptr; // of those; only to compare
    std::string metadata; // of the lease
    clock::time_point believed{}; // until then; none: not granted here, or not wanted any more
    std::chrono::milliseconds ttl{}; // the longest that was asked for; none: not asked for here
    clock::time_point over{}; // by then the ttl has freed what is left
    redlock_agenda::iterator due{};
    bool listed = false; // in the agenda

    /// A question to a node goes out that is to set this time to live.
    void lives_for(std::chrono::milliseconds time, clock::time_point from) noexcept
    {
        ttl = (std::max)(ttl, time);
        over = (std::max)(over, from + time);
    }
    void want() noexcept
    {
        for (at_node& n : nodes)
            n.unwanted = false;
    }
    /// Nobody believes any more: what is left is to be freed.
    void unwant(clock::time_point from) noexcept
    {
        believed = {};
        over = (std::max)(over, from + (ttl == std::chrono::milliseconds{} ? unknown_ttl : ttl));
        for (at_node& n : nodes)
            n.unwanted = true;
    }

    /// A release sent before, or about to be, may undo what is asked for now.
    bool may_undo(std::size_t n, clock::time_point now) const noexcept
    {
        const at_node& at = nodes[n];
        return at.releasing != 0 || now < at.may_go_until || at.is_in_the_way();
    }

    /// A question sent before may let a shorter ttl start when this one has started.
    bool may_shorten(std::size_t n, std::chrono::milliseconds time,
                     clock::time_point now) const noexcept
    {
        const at_node& at = nodes[n];
        return (at.doubtful < time && now < at.doubtful_until) ||
               std::any_of(at.setting.begin(), at.setting.end(),
                           [time](auto other) { return other < time; });
    }
    void has_set(std::size_t n, std::chrono::milliseconds time) noexcept
    {
        auto& setting = nodes[n].setting;
        setting.erase(std::find(setting.begin(), setting.end(), time));
    }
    /// It may still be carried out, though not for ever.
    void is_in_doubt(std::size_t n, std::chrono::milliseconds time, clock::time_point now) noexcept
    {
        at_node& at = nodes[n];
        at.doubtful = now < at.doubtful_until ? (std::min)(at.doubtful, time) : time;
        at.doubtful_until = (std::max)(at.doubtful_until, now + (std::max)(time, latest));
    }

    bool to_be_freed(std::size_t n) const noexcept
    {
        const at_node& at = nodes[n];
        return at.is_in_the_way() && at.acquiring == 0 && at.releasing == 0;
    }
    /// What a renewal has put at a node too late to be of use is freed, unless another one goes on with the lease.
    void judge_latecomers(clock::time_point now) noexcept
    {
        for (at_node& n : nodes) {
            if (undecided == 0 && std::exchange(n.came_late, false) && now >= believed)
                n.unwanted = true;
        }
    }
    /// Nobody believes, nothing is in flight, nothing is to be done, and nothing to be minded.
    bool settled(clock::time_point now) const noexcept
    {
        return now >= believed && undecided == 0 &&
               std::none_of(nodes.begin(), nodes.end(), [now](const at_node& n) {
                   return n.acquiring != 0 || n.releasing != 0 || !n.setting.empty() ||
                          now < n.may_go_until || now < n.doubtful_until || n.is_in_the_way();
               });
    }
    /// The ttl has freed the rest.
    void give_up() noexcept
    {
        for (at_node& n : nodes) {
            n.left = rest::nothing;
            n.may_go_until = {};
            n.doubtful_until = {};
        }
    }
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/detail/redlock_call.hpp>
#include <amux/detail/redlock_core.hpp>
#include <amux/detail/redlock_nodes.hpp>
#include <amux/detail/redlock_round.hpp>
#include <amux/lock_backend.hpp>
#include <amux/scheduler.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace amux {

/// How a `redlock` treats its nodes.
struct redlock_options {
    /// How long a call waits for a node that does not answer; less if the lease would be over by then. It is taken from
    /// the time in which a lease may be believed, and needed only when the others cannot decide: little against the ttl,
    /// much against the time of an answer.
    std::chrono::milliseconds node_timeout{200};
};

/// One store out of several that know nothing of each other: what a majority of them says counts. (Antirez: Distributed
/// locks with Redis.) So leases go on when fewer than half of the nodes are down, hang, or have lost their data.
///
/// | of n nodes, m = n/2 + 1 | `acquire` | `extend` | `release` |
/// |---|---|---|---|
/// | m say yes | granted, if its time is not up | true | true |
/// | m say no | refused; given back | false; the rest is given back | false |
/// | neither | `not_applied`; given back | `indeterminate` | `indeterminate` |
/// | neither, m `permanent` | `permanent`; given back | `permanent` | `permanent` |
///
/// All nodes are asked at once; as soon as the answers that are out can change nothing, the call ends. What is given
/// back is released at every node that has granted it, may have, or does so later; again, with growing pauses, while
/// the ttl runs. No fences: the counters of different nodes are not ordered.
///
/// The loop is there for time alone: limits, pauses, and what is tried again.
/// Resumes: a coroutine at its own place; without one where the deciding answer comes, or on the loop.
/// Thread-safety: any thread. Lifetime: the loop outlives it, and it outlives the locks over it: declare it between the
/// two. It does not move, so give it to a lock as an lvalue. Destroy it where the loop runs or while it does not run, with
/// a loop of amux anywhere. Its nodes live until they have answered.
template <lock_backend Backend>
class redlock {
    using operation = detail::redlock_round::operation;

public:
    /// Takes the nodes, all of which every process names; their order does not matter.
    ///
    /// Throws: `std::invalid_argument` when their number is even or below three, or the limit not above zero.
    redlock(std::vector<Backend> nodes, scheduler& loop, const redlock_options& options = {})
        : core_{detail::redlock_nodes<Backend>::make(loop, sound(std::move(nodes), options),
                                                     options.node_timeout)}
    {}
    redlock(const redlock&) = delete;
    redlock& operator=(const redlock&) = delete;
    ~redlock() { core_->shut_down(); }

    /// Granted, refused, or in trouble, as the table says. A refusal tells when a majority is free at the latest. One that
    /// fails also ends a lease that its token had before.
    detail::redlock_call<unfenced_result> acquire(std::string_view key, std::string_view token,
                                                  std::chrono::milliseconds ttl)
    {
        return {core_, operation::acquire, key, token, ttl};
    }
    detail::redlock_call<unfenced_result> acquire(std::string_view key, std::string_view token,
                                                  std::chrono::milliseconds ttl,
                                                  std::string_view metadata)
        requires metadata_backend<Backend>
    {
        return {core_, operation::acquire, key, token, ttl, metadata};
    }
    /// True, false, or in trouble, as the table says.
    ///
    /// Where a lease that was granted here is missing, it is asked for again, while it may be believed and no majority
    /// misses it; and again, with growing pauses, while that is refused. So the nodes may lose their data one after the
    /// other, with a renewal between that has reached them.
    detail::redlock_call<bool> extend(std::string_view key, std::string_view token,
                                      std::chrono::milliseconds ttl)
    {
        return {core_, operation::extend, key, token, ttl};
    }
    /// True, false, or in trouble, as the table says; tried again in the background where there was trouble. A holder
    /// that has the lease through another `redlock` puts it back if a majority cannot tell of it at its next renewal.
    detail::redlock_call<bool> release(std::string_view key, std::string_view token)
    {
        return {core_, operation::release, key, token};
    }
    /// The token that a majority names; none when no token can have one; else in trouble, as `extend`.
    detail::redlock_call<std::optional<std::string>> get(std::string_view key) const
    {
        return {core_, operation::get, key};
    }
    /// The same with the time for which a majority has it, and with its metadata.
    detail::redlock_call<std::optional<lease_info>> inspect(std::string_view key) const
        requires inspecting_backend<Backend>
    {
        return {core_, operation::inspect, key};
    }
    /// Done when a majority says that the key may be free, or when it is stopped. Throws when too many are in trouble.
    detail::redlock_call<void> wait_for_release(std::string_view key, std::stop_token stop = {})
        requires notifying_backend<Backend>
    {
        return {core_, operation::wait, key, {}, {}, {}, std::move(stop)};
    }

private:
    static std::vector<Backend> sound(std::vector<Backend> nodes, const redlock_options& options)
    {
        if (nodes.size() < 3 || nodes.size() % 2 == 0)
            throw std::invalid_argument{
                "amux: a redlock needs an odd number of nodes, at least three, not " +
                std::to_string(nodes.size()) +
                ": one more than an odd number bears no more failures, and adds one that may fail"};
        if (options.node_timeout <= std::chrono::milliseconds::zero())
            throw std::invalid_argument{"amux: a redlock's node_timeout is above zero"};
        return nodes;
    }

    const std::shared_ptr<detail::redlock_core> core_;
};

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/detail/backend_driver.hpp>
#include <amux/detail/home_of.hpp>
#include <amux/detail/redlock_core.hpp>
#include <amux/detail/redlock_round.hpp>
#include <amux/detail/redlock_vote.hpp>
#include <amux/detail/suspension.hpp>
#include <amux/error.hpp>
#include <amux/lock_backend.hpp>
#include <amux/scheduler.hpp>

#include <chrono>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace amux {

namespace detail {

/// The nodes of a `redlock`. They live until the last of them has answered.
template <class Backend>
class redlock_nodes final : public redlock_core {
public:
    static std::shared_ptr<redlock_nodes> make(scheduler& loop, std::vector<Backend> nodes,
                                               std::chrono::milliseconds node_timeout)
    {
        std::shared_ptr<redlock_nodes> all{new redlock_nodes{loop, std::move(nodes), node_timeout},
                                           &backend_burial<redlock_nodes>::destroy};
        all->start();
        return all;
    }

private:
    redlock_nodes(scheduler& loop, std::vector<Backend> nodes,
                  std::chrono::milliseconds node_timeout)
        : redlock_core{loop, nodes.size(), node_timeout}, nodes_{std::move(nodes)}
    {}

    void ask(std::size_t node, round_ptr r) noexcept override
    {
        try {
            drive(std::static_pointer_cast<redlock_nodes>(shared_from_this()), r, node);
        } catch (...) { // no memory for the frame
            answered(r, node, {node_vote::trouble, no_memory_, {}, {}});
        }
    }

    static backend_driver drive(std::shared_ptr<redlock_nodes> core, round_ptr r, std::size_t node)
    {
        Backend& b = core->nodes_[node];
        node_answer a;
        try {
            switch (r->op) {
                case operation::acquire:
                    if constexpr (metadata_backend<Backend>)
                        take(a, co_await b.acquire(r->key, r->token, r->ttl,
                                                   std::string_view{r->metadata}));
                    else
                        take(a, co_await b.acquire(r->key, r->token, r->ttl));
                    break;
                case operation::extend:
                    take(a, co_await b.extend(r->key, r->token, r->ttl));
                    break;
                case operation::release:
                    take(a, co_await b.release(r->key, r->token));
                    break;
                case operation::get:
                    take(a, co_await b.get(r->key));
                    break;
                case operation::inspect:
                    if constexpr (inspecting_backend<Backend>)
                        take(a, co_await b.inspect(r->key));
                    break;
                case operation::wait:
                    if constexpr (notifying_backend<Backend>)
                        co_await b.wait_for_release(r->key, r->give_up.get_token());
                    take(a, true);
                    break;
            }
        } catch (const backend_error&) {
            a.trouble = std::current_exception();
        } catch (const std::exception& e) {
            a.trouble = error_of([&] {
                return backend_error{backend_error_kind::indeterminate,
                                     std::string{"the node threw: "} + e.what()};
            });
        } catch (...) {
            a.trouble = error_of([] {
                return backend_error{backend_error_kind::indeterminate, "the node threw something"};
            });
        }
        if (a.trouble)
            a.vote = node_vote::trouble;
        core->answered(r, node, std::move(a));
        backend_burial<redlock_nodes>::bury(std::move(core), std::move(r));
    }

    static void take(node_answer& a, bool yes) noexcept
    {
        a.vote = yes ? node_vote::yes : node_vote::no;
    }
    template <class Result>
        requires requires(Result r) { r.holder_ttl; }
    static void take(node_answer& a, const Result& r) noexcept
    {
        take(a, r.acquired);
        a.holder_ttl = r.holder_ttl;
    }
    static void take(node_answer& a, std::optional<lease_info> info) noexcept
    {
        take(a, info.has_value());
        a.info = std::move(info);
    }
    static void take(node_answer& a, std::optional<std::string> holder)
    {
        take(a, holder.has_value());
        if (holder)
            a.info.emplace().token = std::move(*holder);
    }

    std::vector<Backend> nodes_;
};

/// An operation of a `redlock` that is awaited: `T` is what it gives.
template <class T>
class redlock_call final : suspension {
    using operation = redlock_round::operation;

public:
    redlock_call(std::shared_ptr<redlock_core> core, operation what, std::string_view key,
                 std::string_view token = {}, std::chrono::milliseconds ttl = {},
                 std::string_view metadata = {}, std::stop_token stop = {})
        : core_{std::move(core)},
          round_{std::make_shared<redlock_round>(what, key, token, ttl, metadata, core_->size(),
                                                 core_->loop().now())},
          stop_{std::move(stop)}
    {}
    ~redlock_call()
    {
        on_stop_.reset();
        if (waits_)
            core_->abandon(round_, *this);
    }

    bool await_ready() const noexcept { return false; }

    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> handle)
    {
        return suspend(handle, home_of(handle));
    }

    T await_resume()
    {
        waits_ = false;
        on_stop_.reset();
        const redlock_round& r = *round_;
        if (r.end == verdict::none)
            r.throw_trouble();
        const bool yes = r.end == verdict::yes;
        if constexpr (std::is_same_v<T, bool>)
            return yes;
        else if constexpr (std::is_same_v<T, unfenced_result>)
            return {yes, yes ? std::nullopt : time_until_free(r.answers)};
        else if constexpr (std::is_same_v<T, std::optional<std::string>>)
            return yes ? T{common_lease(r.answers).token} : T{};
        else if constexpr (std::is_same_v<T, std::optional<lease_info>>)
            return yes ? T{common_lease(r.answers)} : T{};
    }

private:
    struct on_stop {
        redlock_call* self;
        void operator()() const noexcept
        {
            const auto core = self->core_; // who is stopped may be gone before this returns
            const auto round = self->round_;
            core->stop(round);
        }
    };

    // Out of line: inside a coroutine, clang before 19 may keep values in the frame that is given away here.
    [[gnu::noinline]] bool suspend(std::coroutine_handle<> handle, scheduler* home)
    {
        suspended(handle, home);
        waits_ = true;
        if (stop_.stop_possible())
            on_stop_.emplace(std::move(stop_), on_stop{this});
        const auto core = core_; // this may be gone when it returns
        const auto round = round_;
        return core->begin(round, *this);
    }

    const std::shared_ptr<redlock_core> core_;
    const std::shared_ptr<redlock_round> round_;
    std::stop_token stop_;
    bool waits_ = false; // on the thread that awaits
    std::optional<std::stop_callback<on_stop>> on_stop_;
};

} // namespace detail

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
/// the ttl runs. So an `acquire` that fails also ends a lease that its token had before.
///
/// Where a lease that it was granted here is missing, `extend` asks for it again, while it may be believed and no majority
/// misses it; again, with growing pauses, while that is refused. So the nodes may lose their data one after the other, with a
/// renewal between that has reached them.
///
/// `get` and `inspect` give what a majority says; without one, `indeterminate`. A wait for a release ends when a majority
/// says that the key may be free. No fences: the counters of different nodes are not ordered.
///
/// The loop is there for time alone: limits, pauses, and what is tried again. A call resumes at its coroutine's place;
/// without one where the deciding answer comes, or on the loop.
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

    /// Granted, refused, or in trouble, as the table says. A refusal tells when a majority is free at the latest.
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
    /// True, false, or in trouble, as the table says. Puts the lease back where it is missing.
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
    /// The token that a majority names; none when no token can have one.
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

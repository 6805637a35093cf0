// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/backend_driver.hpp>
#include <amux/detail/redlock_core.hpp>
#include <amux/detail/redlock_round.hpp>
#include <amux/detail/redlock_vote.hpp>
#include <amux/error.hpp>
#include <amux/lock_backend.hpp>
#include <amux/scheduler.hpp>

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace amux::detail {

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
        } catch (...) {
            a.trouble = odd_error("the node", {});
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

} // namespace amux::detail

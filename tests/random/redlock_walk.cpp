// SPDX-License-Identifier: BSL-1.0
// Without this file two processes may believe in one lease after some mixture of answers, delays and pauses at several nodes.
#include "support/lease_walk.hpp"
#include "support/redlock_crowd.hpp"
#include "support/redlock_world.hpp"
#include "support/seeded_bits.hpp"

#include <amux/redlock.hpp>
#include <amux/testing/scripted_backend.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using support::course;
using support::scripted_node;
using support::walk_manners;

namespace {

/// Several stores, each of which misbehaves by itself; each process has a redlock over them, on its own loop.
template <std::size_t Nodes>
class many_stores {
public:
    using seen = amux::redlock<scripted_node>;

    explicit many_stores(amux::scheduler& network) : network_{network}
    {
        for (std::size_t n = 0; n < Nodes; ++n)
            stores_.emplace_back(network);
    }

    template <class Decision>
    void decide(const Decision& d)
    {
        for (auto& s : stores_) {
            s.decide = [&s, d](const amux::testing::backend_call& c) {
                const auto way = d(c);
                if (!way || way->acts_after != course::never)
                    ++s.to_act[c.token];
                return way;
            };
        }
    }
    seen seen_on(amux::scheduler& loop)
    {
        std::vector<scripted_node> nodes;
        for (auto& s : stores_)
            nodes.emplace_back(s);
        return seen{std::move(nodes), loop, {.node_timeout = 60ms}};
    }
    bool knows(const std::string& key, const std::string& token)
    {
        const auto who = std::count_if(stores_.begin(), stores_.end(),
                                       [&](auto& s) { return s.holder(key) == token; });
        return static_cast<std::size_t>(who) > Nodes / 2;
    }
    /// Of the nodes, all of which have the lease, the one loses it that would be the first to end it: a majority keeps it for
    /// as long as it may be believed. Gives whether there is such a one.
    bool wipe(const std::string& key, const std::string& token)
    {
        scripted* first = nullptr;
        std::chrono::milliseconds least{};
        for (auto& s : stores_) {
            const auto found = s.look(key);
            if (!found || found->token != token || s.acted(token) < s.to_act[token])
                return false;
            if (!first || *found->remaining < least) {
                first = &s;
                least = *found->remaining;
            }
        }
        first->drop(key);
        return true;
    }
    std::size_t count() const { return sum(&scripted::count_all); }
    std::size_t in_flight() const { return sum(&scripted::in_flight); }
    std::size_t size() const { return sum(&scripted::size); }
    std::vector<const amux::testing::backend_call*> calls() const
    {
        std::vector<const amux::testing::backend_call*> all;
        for (const auto& s : stores_) {
            for (const auto& c : s.calls())
                all.push_back(&c);
        }
        return all;
    }

private:
    struct scripted : amux::testing::scripted_backend {
        using scripted_backend::scripted_backend;
        std::size_t count_all() const { return count(); }
        std::size_t in_flight() const { return scripted_backend::in_flight(); }
        std::size_t size() const { return scripted_backend::size(); }
        std::optional<amux::lease_info> look(const std::string& key)
        {
            next(amux::testing::operation::inspect, course::at_once());
            return inspect(key).await_resume();
        }

        std::size_t acted(const std::string& token) const
        {
            return static_cast<std::size_t>(std::count_if(
                calls().begin(), calls().end(),
                [&](const auto& c) { return c.token == token && c.acted.has_value(); }));
        }

        std::map<std::string, std::size_t>
            to_act; // by token: calls that are, or will be, carried out
    };

    std::size_t sum(std::size_t (scripted::*what)() const) const
    {
        std::size_t all = 0;
        for (const auto& s : stores_)
            all += (s.*what)();
        return all;
    }

    amux::scheduler& network_;
    std::deque<scripted> stores_;
};

} // namespace

TEST_CASE("redlock: whatever three nodes, their network and the clocks do, one process believes",
          "[redlock][random]")
{
    support::check_walks<many_stores<3>>({.wipes = true}, 500);
}

TEST_CASE("redlock: the same with five nodes", "[redlock][random]")
{
    support::check_walks<many_stores<5>>({.wipes = true}, 150);
}

TEST_CASE("redlock: contenders that split the vote do not keep each other out", "[redlock][random]")
{
    const std::size_t count = GENERATE(3u, 5u);
    const support::seeded_bits bits{count};
    support::redlock_crowd<scripted_node> all{count, 20};
    all.take_turns(20, 1);
    CHECK(all.served() == 20);
    CHECK(all.longest() < 1s);
}

TEST_CASE("redlock: contenders that have split the vote do not all come at once again",
          "[redlock][random]")
{
    // When they do, a grant costs each node 170 of them.
    const support::seeded_bits bits{7};
    support::redlock_crowd<scripted_node> all{5, 40};
    all.take_turns(60, 60);
    CHECK(all.served() == 60);
    CHECK(all.acquires() < 5 * 60 * 60);
}

TEST_CASE("redlock: with nodes that work everybody is served, and woken long before a poll",
          "[redlock][random]")
{
    walk_manners manners;
    manners.store_fails = false;
    manners.pauses = false;
    manners.poll = 1s;
    manners.patience = 120s;
    support::check_walks<many_stores<3>>(manners, 150);
}

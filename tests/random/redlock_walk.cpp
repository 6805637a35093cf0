// SPDX-License-Identifier: BSL-1.0
// Without this file two processes may believe in one lease after some mixture of answers, delays and pauses at several nodes.
#include "support/lease_walk.hpp"
#include "support/redlock_world.hpp"

#include <amux/distributed_lock.hpp>
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
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using support::course;
using support::redlock_world;
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

/// A process that wants the one key.
struct contender {
    explicit contender(redlock_world& w) : store{w.nodes(), w.loop}, locks{store, w.loop} {}
    amux::redlock<scripted_node> store;
    amux::distributed_lock<amux::redlock<scripted_node>&> locks;
};

amux::task<> take_turn(contender& c, amux::manual_event_loop& loop, int& served)
{
    auto held = co_await c.locks.acquire("k", {.max_wait = amux::forever});
    co_await loop.sleep_for(10ms);
    co_await held.release();
    ++served;
}

amux::task<> take_turns(contender& c, amux::manual_event_loop& loop, int& served, int enough)
{
    try {
        while (served < enough)
            co_await take_turn(c, loop, served);
    } catch (const amux::lock_closed_error&) { // others had enough
    }
}

amux::task<> leave(contender& c)
{
    co_await c.locks.drain(1s);
}

/// Processes that want one key, and stores that are a few milliseconds away.
struct crowd {
    crowd(std::size_t count, std::size_t processes) : w{count}
    {
        for (auto& s : w.stores) {
            s.decide = [this](const amux::testing::backend_call&) {
                const auto some = [this] { return 1ms * static_cast<int>(random() % 4); };
                const auto there = some();
                return std::optional{course::slow(there, some())};
            };
        }
        for (std::size_t n = 0; n < processes; ++n)
            contenders.emplace_back(w);
    }
    void go()
    {
        for (auto& c : contenders)
            w.loop.spawn(leave(c));
        w.pass(5s);
    }

    redlock_world w;
    std::mt19937 random{7};
    std::deque<contender> contenders;
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
    crowd all{count, 20};
    int served = 0;
    for (auto& c : all.contenders)
        all.w.loop.spawn(take_turn(c, all.w.loop, served));
    int longest = 0;
    for (int gap = 0, before = 0; served < 20 && longest < 5'000; ++gap) {
        all.w.pass(10ms);
        longest = (std::max)(longest, gap * 10);
        if (std::exchange(before, served) != served)
            gap = 0;
    }
    CHECK(served == 20);
    CHECK(longest < 1'000); // in ms of virtual time
    all.go();
}

TEST_CASE("redlock: contenders that have split the vote do not all come at once again",
          "[redlock][random]")
{
    // When they do, a grant costs each node 170 of them.
    const support::seeded_bits bits{7};
    crowd all{5, 40};
    int served = 0;
    for (auto& c : all.contenders)
        all.w.loop.spawn(take_turns(c, all.w.loop, served, 60));
    for (int ms = 0; ms < 10'000 && served < 60; ++ms) {
        all.w.loop.advance(1ms);
        all.w.loop.run_ready();
    }
    CHECK(served == 60);
    CHECK(all.w.calls(amux::testing::operation::acquire) < 5 * 60 * 60);
    all.go();
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

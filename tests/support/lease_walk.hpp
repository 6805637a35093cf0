// SPDX-License-Identifier: BSL-1.0
// Without this file no test has several processes, with clocks and pauses of their own, on one store that misbehaves.
#pragma once

#include <amux/distributed_lock.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/testing/history.hpp>
#include <amux/testing/scripted_backend.hpp>

#include "support/scale.hpp"
#include "support/seeded_bits.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace support {

using amux::testing::course;
using amux::testing::operation;
using std::chrono::milliseconds;
using namespace std::chrono_literals;

/// What makes a walk rough.
struct walk_manners {
    bool store_fails = true; // answers are lost, late, in doubt
    bool pauses = true; // a process stands still for longer than its leases live
    bool shortens = true; // leases are extended to a shorter ttl
    bool stops = true;
    bool waits_end = true; // `max_wait` may be short
    bool wipes = false; // in every other walk, nodes of a store lose what a majority of it keeps
    milliseconds poll = 40ms;
    milliseconds patience = 300s; // by then everybody has been served
};

/// What the processes of a walk share: one store that misbehaves, seen by each as a `Backend`.
template <class Backend>
class one_store {
public:
    using seen = Backend&;
    using decision = decltype(amux::testing::scripted_backend::decide);

    explicit one_store(amux::scheduler& network) : store_{network} {}

    void decide(decision d) { store_.decide = std::move(d); }
    seen seen_on(amux::scheduler&)
    {
        if constexpr (std::is_same_v<Backend, amux::testing::scripted_backend>)
            return store_;
        else
            return plain_;
    }
    bool knows(const std::string& key, const std::string& token)
    {
        return store_.holder(key) == token;
    }
    std::size_t count() const { return store_.count(); }
    std::size_t in_flight() const { return store_.in_flight(); }
    std::size_t size() const { return store_.size(); }
    std::vector<const amux::testing::backend_call*> calls() const
    {
        std::vector<const amux::testing::backend_call*> all;
        for (const auto& c : store_.calls())
            all.push_back(&c);
        return all;
    }

private:
    amux::testing::scripted_backend store_;
    amux::testing::plain_scripted_backend plain_{store_};
};

/// Several processes, each a `distributed_lock` on a loop of its own whose clock may go a little wrong and which may stand
/// still. Each has some coroutines that acquire, hold, extend and release leases. A history is kept of what they see.
template <class Store>
class lease_walk {
public:
    lease_walk(std::uint64_t seed, walk_manners manners) : random_{seed}, manners_{manners}
    {
        store_.decide([this](const amux::testing::backend_call& c) { return course_of(c); });
        manners_.wipes = manners_.wipes && one_in(2);
        keys_ = 1 + below(2);
        const std::size_t processes = 2 + below(3);
        for (std::size_t n = 0; n < processes; ++n) {
            const double rate = 0.996 + 0.008 * static_cast<double>(below(1'000)) / 1'000;
            amux::distributed_lock_options options;
            options.poll_interval = manners_.poll;
            options.local_turns = 1 + static_cast<unsigned>(below(5));
            if (manners_.poll > 1min)
                options.local_turns = 1'000'000; // whoever gives way to others waits for a poll
            processes_.push_back(std::make_unique<process>(store_, rate, options, n + 1));
        }
        for (auto& p : processes_) {
            for (std::size_t workers = 1 + below(3); workers > 0; --workers) {
                ++working_;
                p->loop.spawn(work(*p, workers));
            }
        }
    }

    /// Until everybody is done. Gives what went wrong; empty for nothing.
    std::string walk()
    {
        while (working_ != 0 && trouble_.empty()) {
            step();
            if (network_.now().time_since_epoch() > manners_.patience)
                return "somebody is not served: " + std::to_string(working_) + " still wait";
        }
        if (trouble_.empty())
            drain();
        const auto faults = seen.faults();
        if (trouble_.empty() && !faults.empty())
            trouble_ = faults.front();
        return trouble_;
    }

    amux::testing::history seen;
    std::size_t grants = 0;
    std::size_t losses = 0;
    std::size_t failures = 0;
    std::size_t most_wipes = 0; // of one lease
    std::size_t requests() const { return store_.count(); }

private:
    struct process {
        process(Store& s, double clock_rate, const amux::distributed_lock_options& o,
                std::size_t number)
            : rate{clock_rate},
              backend{s.seen_on(loop)},
              locks{backend, loop, o},
              name{"p" + std::to_string(number)}
        {}
        amux::manual_event_loop loop;
        double rate; // of its clock
        typename Store::seen backend;
        amux::distributed_lock<std::remove_reference_t<typename Store::seen>&> locks;
        std::string name;
        amux::clock::time_point stands_until{};
        bool drained = false;
    };

    /// A lease that is held, as far as its process knows.
    struct belief {
        process& where;
        std::string key;
        std::string call;
        const amux::acquired_lock& lease;
        amux::clock::time_point valid_until;
        bool given_back = false; // by who holds it
        bool over = false;
        std::size_t wipes = 0;
    };

    std::size_t below(std::size_t n)
    {
        return std::uniform_int_distribution<std::size_t>{0, n - 1}(random_);
    }
    milliseconds up_to(std::size_t ms)
    {
        return milliseconds{static_cast<milliseconds::rep>(below(ms + 1))};
    }
    bool one_in(std::size_t n) { return below(n) == 0; }

    std::optional<course> course_of(const amux::testing::backend_call& c)
    {
        const std::size_t what = below(100);
        if (c.op == operation::wait)
            return !manners_.store_fails || what < 80 ? course::late(up_to(10))
                   : what < 90 ? course::fails(amux::backend_error_kind::not_applied, up_to(50))
                               : course::held(); // told of nothing until it is stopped
        if (what < 40)
            return course::at_once();
        if (what < 80 || !manners_.store_fails)
            return course::slow(up_to(15), up_to(15));
        switch (what % 5) {
            case 0:
                return course::fails(amux::backend_error_kind::not_applied, up_to(100));
            case 1:
                return course::loses_reply(up_to(100));
            case 2:
                return course::is_silent(up_to(150));
            case 3:
                return course::acts_late(up_to(400), up_to(150));
            default:
                return course::slow(up_to(300), up_to(300));
        }
    }

    // In the time that all share.
    amux::clock::time_point shared(const process& p, amux::clock::time_point own) const
    {
        const auto left = std::chrono::duration<double, std::nano>{own - p.loop.now()} / p.rate;
        return network_.now() + std::chrono::floor<amux::clock::duration>(left);
    }

    void tell(amux::testing::history_event::kind what, const process& p, const std::string& key,
              const std::string& call)
    {
        amux::testing::history_event e;
        e.what = what;
        e.at = network_.now();
        e.process = p.name;
        e.key = key;
        e.call = call;
        seen.add(std::move(e));
    }
    void tell_belief(amux::testing::history_event::kind what, const belief& b)
    {
        amux::testing::history_event e;
        e.what = what;
        e.at = network_.now();
        e.process = b.where.name;
        e.key = b.key;
        e.call = b.call;
        if (what == kind::granted)
            e.fence = b.lease.fence();
        e.until = shared(b.where, b.valid_until);
        seen.add(std::move(e));
    }

    void step()
    {
        const auto d = one_in(20) ? up_to(120) : up_to(8);
        network_.advance(d);
        for (auto& p : processes_)
            p->loop.advance(std::chrono::duration_cast<amux::clock::duration>(
                std::chrono::duration<double, std::milli>(d) * p->rate));
        look(); // before anybody has had a chance to notice
        if (one_in(2))
            network_.run_ready();
        for (std::size_t n = processes_.size() * 2; n > 0; --n) {
            process& p = *processes_[below(processes_.size())];
            if (p.stands_until > network_.now())
                continue;
            if (manners_.pauses && one_in(400))
                p.stands_until = network_.now() + up_to(1'500);
            p.loop.run_ready();
            look();
            network_.run_ready();
            look();
        }
        if (manners_.stops && !stoppable_.empty() && one_in(60))
            stoppable_[below(stoppable_.size())]->request_stop();
        if (manners_.wipes)
            wipe();
    }

    // At every moment: one believer for a key, and the store agrees with him.
    void look()
    {
        for (belief* const b : beliefs_) {
            if (b->over || b->given_back)
                continue;
            b->over = !b->lease.is_held();
            if (b->over) {
                b->valid_until = (std::min)(b->valid_until, b->where.loop.now());
                tell_belief(kind::believes, *b);
                continue;
            }
            if (b->lease.valid_until() != b->valid_until) {
                b->valid_until = b->lease.valid_until();
                tell_belief(kind::believes, *b);
            }
            if (!store_.knows(b->key, b->lease.token()))
                fail(*b, "believes in a lease that the store does not know");
            for (belief* const other : beliefs_) {
                if (other != b && other->key == b->key && other->lease.is_held())
                    fail(*b, "is not the only one that believes");
            }
        }
    }

    // One node loses a lease that somebody believes in.
    void wipe()
    {
        if constexpr (requires(Store& s) { s.wipe("", ""); }) {
            for (belief* const b : beliefs_) {
                if (b->over || b->given_back || !store_.wipe(b->key, b->lease.token()))
                    continue;
                most_wipes = (std::max)(most_wipes, ++b->wipes);
            }
        }
    }

    void fail(const belief& b, const std::string& what)
    {
        if (!trouble_.empty())
            return;
        trouble_ = b.where.name + "'s call " + b.call + " for " + b.key + ' ' + what + " at " +
                   std::to_string(network_.now().time_since_epoch().count()) + "; requests:";
        for (const auto* call : store_.calls()) {
            const auto& c = *call;
            if (c.key != b.key || c.token != b.lease.token())
                continue;
            trouble_ += std::string{"\n    "} + to_string(c.op) + ", ttl " +
                        std::to_string(c.ttl.count()) + ", at " +
                        std::to_string(c.at.time_since_epoch().count());
            if (c.acted)
                trouble_ += ", acted " + std::to_string(c.acted->time_since_epoch().count());
            if (c.answered)
                trouble_ += ", over " + std::to_string(c.answered->time_since_epoch().count());
        }
    }

    amux::task<> work(process& p, std::size_t number)
    {
        for (int round = 0; round < 6; ++round) {
            const auto pause = up_to(60);
            co_await p.loop.sleep_for(pause);
            const std::string call = std::to_string(number) + "." + std::to_string(round);
            const std::string key = "key" + std::to_string(below(keys_));
            std::stop_source stop;
            stoppable_.push_back(&stop);
            tell(kind::asked, p, key, call);
            bool granted = false;
            try {
                co_await hold(p, key, call, stop.get_token(), granted);
            } catch (const amux::lock_error&) {
            }
            ++(granted ? grants : failures);
            if (!granted)
                tell(kind::failed, p, key, call);
            std::erase(stoppable_, &stop);
        }
        --working_;
    }

    amux::task<> hold(process& p, const std::string& key, const std::string& call,
                      std::stop_token stop, bool& granted)
    {
        amux::acquire_options options;
        options.ttl = 30ms + up_to(400);
        options.renew = one_in(2);
        options.max_wait = manners_.waits_end && one_in(3) ? up_to(300) : amux::forever;
        amux::acquired_lock held = co_await p.locks.acquire(key, options, stop);
        granted = true;
        struct registered {
            lease_walk& walk;
            belief self;
            ~registered()
            {
                std::erase(walk.beliefs_, &self);
                if (!self.given_back)
                    walk.tell(kind::ended, self.where, self.key, self.call);
            }
        } r{*this, {p, key, call, held, held.valid_until()}};
        beliefs_.push_back(&r.self);
        tell_belief(kind::granted, r.self);
        for (std::size_t n = below(6); n > 0 && held.is_held(); --n) {
            const auto pause = up_to(80);
            co_await p.loop.sleep_for(pause);
            if (one_in(4))
                co_await extend(held);
        }
        losses += held.is_held() ? 0 : 1;
        const std::size_t how = below(4);
        if (how == 0)
            co_return; // the handle's destructor
        if (how == 1 && !options.renew)
            co_await held.ended();
        r.self.given_back = true;
        tell(kind::ended, p, key, call);
        co_await held.release();
    }

    amux::task<> extend(amux::acquired_lock& held)
    {
        std::optional<milliseconds> ttl = 100ms + up_to(600);
        if (one_in(3))
            ttl.reset();
        else if (manners_.shortens && one_in(2))
            ttl = 12ms + up_to(80);
        try {
            co_await held.extend(ttl);
        } catch (const amux::lock_error&) {
        }
    }

    void drain()
    {
        for (auto& p : processes_) {
            p->loop.spawn([](process& self) -> amux::task<> {
                const bool done = co_await self.locks.drain(60s);
                self.drained = done;
            }(*p));
        }
        manners_.pauses = false;
        for (int n = 0; n < 1'000; ++n)
            step();
        for (auto& p : processes_) {
            if (!p->drained && trouble_.empty())
                trouble_ = p->name + " has something outstanding";
        }
        if (trouble_.empty() && store_.in_flight() != 0)
            trouble_ = "a request is in flight";
        if (trouble_.empty() && store_.size() != 0)
            trouble_ = "the store is not empty";
    }

    using kind = amux::testing::history_event::kind;

    std::mt19937_64 random_;
    walk_manners manners_;
    amux::manual_event_loop network_; // the store's clock is right
    Store store_{network_};
    std::size_t keys_ = 1;
    std::vector<std::unique_ptr<process>> processes_;
    std::vector<belief*> beliefs_;
    std::vector<std::stop_source*> stoppable_;
    std::size_t working_ = 0;
    std::string trouble_;
};

// AMUX_SEED=N replays one walk.
template <class Store>
void check_walks(const walk_manners& manners, int walks)
{
    const char* const replay = std::getenv("AMUX_SEED");
    std::uint64_t seed =
        replay ? std::strtoull(replay, nullptr, 10) : std::uint64_t{Catch::getSeed()} << 20;
    std::size_t grants = 0;
    std::size_t losses = 0;
    std::size_t failures = 0;
    std::size_t requests = 0;
    std::size_t wipes = 0;
    const int all = replay ? 1 : support::scaled(walks);
    for (int n = all; n > 0; --n, ++seed) {
        const support::seeded_bits bits{seed};
        auto made = std::make_unique<lease_walk<Store>>(seed, manners);
        lease_walk<Store>& w = *made;
        const std::string trouble = w.walk();
        if (!trouble.empty())
            made.release(); // coroutines wait in it
        INFO("AMUX_SEED=" << seed);
        REQUIRE(trouble == "");
        grants += w.grants;
        losses += w.losses;
        failures += w.failures;
        requests += w.requests();
        wipes = (std::max)(wipes, w.most_wipes);
    }
    INFO("grants " << grants << ", lost " << losses << ", not granted " << failures << ", requests "
                   << requests << ", most wipes of a lease " << wipes);
    CHECK(grants > 0);
    CHECK((!manners.wipes || all < 100 || wipes > 1)); // a second one: it was put back
}

} // namespace support

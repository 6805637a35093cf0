// SPDX-License-Identifier: BSL-1.0
// Without this file a request may be refused although nobody is in a deadlock, or a deadlock may stay unseen, and only
// particular programs would show it.
//
// Contexts ask, at random, for locks of several muxes. Who ever goes on is computed anew after each step, from what is
// held and waited for, by another method than the detector's: not as a search for a cycle, but as the smallest set of
// requests of which it can be shown that they end.
#include "support/growing_policy.hpp"
#include "support/request.hpp"
#include "support/scale.hpp"

#include <amux/asyncmux.hpp>
#include <amux/context.hpp>
#include <amux/deadlock_detector.hpp>
#include <amux/manual_event_loop.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <memory>
#include <random>
#include <stop_token>
#include <string>
#include <vector>

using namespace std::chrono_literals;

namespace {

constexpr int muxes = 3;
constexpr int keys = 3;
constexpr std::size_t most_actors = 9;

template <class Mux>
class deadlock_walk {
    /// A context, and what awaits it.
    struct actor {
        explicit actor(actor* p) : parent{p}, who{p ? &p->who : nullptr} {}
        actor* parent;
        amux::context who;
        int children = 0; // that it awaits
        bool waits = false;
    };

    using guard = typename Mux::guard;
    struct lock {
        actor* by; // null: nobody knows
        int mux;
        std::vector<int> keys; // none: all
        bool exclusive;
        bool limited;
        std::stop_source stop;
        std::unique_ptr<support::request<guard>> request;
        guard tried; // when nobody has awaited it
        bool held = false;
        bool ends = false; // as far as is shown
    };

public:
    explicit deadlock_walk(std::uint64_t seed) : random_{seed}
    {
        for (int i = 0; i != muxes; ++i)
            muxes_.emplace_back(amux::asyncmux_options{.deadlocks = &detector_});
        for (int i = 0; i != 4; ++i)
            actors_.emplace_back(nullptr);
    }
    deadlock_walk(const deadlock_walk&) = delete;
    deadlock_walk& operator=(const deadlock_walk&) = delete;
    ~deadlock_walk()
    {
        for (lock& l : locks_) {
            if (l.request)
                l.request->destroy();
        }
    }

    /// What went wrong; nothing: "".
    std::string step()
    {
        trouble_.clear();
        switch (below(16)) {
            case 0:
                return fork(), trouble_;
            case 1:
                join();
                break;
            case 2:
                stop_one();
                break;
            case 3:
                downgrade_one();
                break;
            case 4:
            case 5:
            case 6:
            case 7:
            case 8:
                release_one();
                break;
            case 9:
                try_one();
                break;
            case 10:
                loop_.advance(1ms);
                break;
            default:
                ask_one();
                break;
        }
        loop_.run_ready();
        look();
        show_ends();
        for (const lock& l : locks_) {
            if (!l.held && !l.limited && !l.ends && trouble_.empty())
                trouble_ = "a deadlock stays unseen";
        }
        return trouble_;
    }

    std::size_t refused = 0;
    std::size_t waited = 0;

private:
    int below(int n) { return std::uniform_int_distribution<int>{0, n - 1}(random_); }

    /// One that runs; null when none does.
    actor* runner()
    {
        std::vector<actor*> all;
        for (actor& a : actors_) {
            if (!a.waits && a.children == 0)
                all.push_back(&a);
        }
        return all.empty() ? nullptr : all[static_cast<std::size_t>(below(int(all.size())))];
    }

    /// One that is held by who runs, or by nobody known.
    lock* held_by_runner()
    {
        std::vector<lock*> all;
        for (lock& l : locks_) {
            if (l.held && (!l.by || (!l.by->waits && l.by->children == 0)))
                all.push_back(&l);
        }
        return all.empty() ? nullptr : all[static_cast<std::size_t>(below(int(all.size())))];
    }

    void fork()
    {
        actor* const parent = runner();
        if (!parent || actors_.size() + 2 > most_actors)
            return;
        for (int i = 0; i != 2; ++i)
            actors_.emplace_back(parent);
        parent->children = 2;
    }

    void join()
    {
        actor* const child = runner();
        if (!child || !child->parent)
            return;
        locks_.remove_if([child](const lock& l) { return l.by == child; });
        --child->parent->children;
        actors_.remove_if([child](const actor& a) { return &a == child; });
    }

    void stop_one()
    {
        for (lock& l : locks_) {
            if (!l.held && below(3) == 0)
                return void(l.stop.request_stop());
        }
    }

    void downgrade_one()
    {
        if (lock* const l = held_by_runner()) {
            (l->request ? l->request->guard() : l->tried).downgrade();
            l->exclusive = false;
        }
    }

    void release_one()
    {
        if (lock* const l = held_by_runner())
            locks_.remove_if([l](const lock& other) { return &other == l; });
    }

    lock chosen(actor* by)
    {
        lock l{by, below(muxes), {}, below(3) != 0, below(6) == 0, {}, nullptr, {}};
        for (int n = std::max(below(6) - 2, below(8) == 0 ? 0 : 1); n > 0; --n)
            l.keys.push_back(below(keys));
        return l;
    }

    void try_one()
    {
        lock l = chosen(nullptr);
        l.keys = {below(keys)};
        Mux& m = mux(l);
        l.tried = l.exclusive ? m.try_lock(l.keys[0]) : m.try_lock_shared(l.keys[0]);
        l.held = l.tried.owns_lock();
        if (l.held)
            locks_.push_back(std::move(l));
    }

    void ask_one()
    {
        actor* const by = runner();
        if (!by || locks_.size() > 20)
            return;
        locks_.push_back(chosen(by));
        lock& l = locks_.back();
        show_ends();
        const bool closes = !l.limited && !l.ends;
        l.request = request_for(l);
        by->waits = true;
        const bool found = l.request->state() == "threw";
        refused += found ? 1 : 0;
        waited += l.request->state() == "waits" ? 1 : 0;
        if (found && l.request->message().find("amux: deadlock: context") != 0)
            trouble_ = "another error: " + l.request->message();
        else if (found != closes)
            trouble_ =
                found ? "refused for nothing: " + l.request->message() : "a cycle was closed";
    }

    auto request_for(const lock& l)
    {
        using request = support::request<guard>;
        const support::asker as{&loop_, &l.by->who};
        Mux& m = mux(l);
        const std::stop_token stop = l.stop.get_token();
        const bool all = l.keys.empty();
        if (!l.limited && l.keys.size() > 1)
            return std::make_unique<request>(
                l.exclusive ? m.lock_all(l.keys, stop) : m.lock_all_shared(l.keys, stop), as);
        if (!l.limited && all)
            return std::make_unique<request>(l.exclusive ? m.lock(stop) : m.lock_shared(stop), as);
        if (!l.limited)
            return std::make_unique<request>(
                l.exclusive ? m.lock(l.keys[0], stop) : m.lock_shared(l.keys[0], stop), as);
        if (all)
            return std::make_unique<request>(
                l.exclusive ? m.try_lock_for(2ms, stop) : m.try_lock_shared_for(2ms, stop), as);
        return std::make_unique<request>(l.exclusive ? m.try_lock_all_for(l.keys, 2ms, stop)
                                                     : m.try_lock_all_shared_for(l.keys, 2ms, stop),
                                         as);
    }

    /// What has become of those that waited.
    void look()
    {
        for (auto l = locks_.begin(); l != locks_.end();) {
            const auto here = l++;
            if (here->held || here->request->state() == "waits")
                continue;
            here->by->waits = false;
            here->held = here->request->state() == "owns";
            if (!here->held)
                locks_.erase(here);
        }
    }

    static bool conflict(const lock& a, const lock& b)
    {
        if (a.mux != b.mux || (!a.exclusive && !b.exclusive))
            return false;
        const auto has = [&b](int k) {
            return std::find(b.keys.begin(), b.keys.end(), k) != b.keys.end();
        };
        return a.keys.empty() || b.keys.empty() || std::any_of(a.keys.begin(), a.keys.end(), has);
    }

    /// Of which it can be shown that they end, if who runs releases what it holds.
    void show_ends()
    {
        for (lock& l : locks_)
            l.ends = false;
        for (bool more = true; more;) {
            more = false;
            for (auto l = locks_.begin(); l != locks_.end(); ++l) {
                if (l->ends)
                    continue;
                l->ends = l->held ? goes_on(l->by) : l->limited || all_ahead_end(l);
                more = more || l->ends;
            }
        }
    }
    bool all_ahead_end(typename std::list<lock>::iterator l)
    {
        return std::all_of(locks_.begin(), l,
                           [&](const lock& ahead) { return ahead.ends || !conflict(ahead, *l); });
    }
    /// It, and whoever it awaits, waits for nothing that is not shown to end.
    bool goes_on(const actor* a)
    {
        return std::none_of(locks_.begin(), locks_.end(), [&](const lock& l) {
            return !l.held && !l.limited && !l.ends && l.by && is_awaited_by(a, l.by);
        });
    }
    static bool is_awaited_by(const actor* a, const actor* by)
    {
        while (by && by != a)
            by = by->parent;
        return a && by;
    }

    Mux& mux(const lock& l) { return *std::next(muxes_.begin(), l.mux); }

    std::mt19937_64 random_;
    amux::deadlock_detector detector_;
    std::list<Mux> muxes_;
    amux::manual_event_loop loop_;
    std::list<actor> actors_;
    std::list<lock> locks_; // held and waiting, in order of arrival
    std::string trouble_;
};

} // namespace

// A million steps: AMUX_TEST_SCALE=20. AMUX_SEED=N makes the walk of seed N the first one.
TEMPLATE_TEST_CASE("deadlock_detector: it refuses the request that closes a cycle, and no other",
                   "[deadlock][random]", amux::asyncmux<int>, amux::unsynchronized_asyncmux<int>)
{
    const char* const given = std::getenv("AMUX_SEED");
    std::uint64_t seed =
        given ? std::strtoull(given, nullptr, 10) : std::uint64_t{Catch::getSeed()} << 20;
    std::size_t refused = 0;
    std::size_t waited = 0;
    for (int n = support::scaled(50); n > 0; --n, ++seed) {
        deadlock_walk<TestType> walk{seed};
        std::string trouble;
        int steps = 0;
        while (trouble.empty() && ++steps != 1'000)
            trouble = walk.step();
        INFO("AMUX_SEED=" << seed << ", step " << steps);
        REQUIRE(trouble == "");
        refused += walk.refused;
        waited += walk.waited;
    }
    INFO("refused " << refused << " of " << waited << " that waited");
    CHECK((refused > 0 && waited > 0)); // where few contexts want few keys, most are refused
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a mistake between two threads is found only when a machine happens to run it.
#include "schedules/mux_program.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <utility>
#include <vector>

namespace {

using namespace schedules;

constexpr form x0 = form::x0, s0 = form::s0, x1 = form::x1, xw = form::xw, sw = form::sw,
               xa = form::xa;

using steps = std::vector<step>;
using forms = std::vector<form>;

constexpr int held = 0; // the request that is granted before the threads begin
constexpr int first_waiter = 1;
constexpr int second_waiter = 2;

/// What a thread may do, besides what it does with its own locks.
struct language {
    forms asks;
    forms attempts;
    steps once; // each at most once in a program
    bool stops_others = false; // the first request of the next thread
    bool same_place = false; // only thread 0 runs and destroys: it is the loop's
};

/// The requests of thread `t`.
int own(int t, int index)
{
    return 3 + 2 * t + index;
}

bool is_of_loop(verb v)
{
    return v == verb::run || v == verb::destroy;
}

/// Calls `f` with every sequence of `length` steps that thread `t` of `threads` may make.
template <class F>
void each_sequence(const language& l, int t, int threads, int length, steps& so_far, const F& f)
{
    const int index = static_cast<int>(so_far.size());
    if (index == length)
        return f(so_far);
    const auto with = [&](const step& s) {
        so_far.push_back(s);
        each_sequence(l, t, threads, length, so_far, f);
        so_far.pop_back();
    };
    const int id = own(t, index);
    for (const form how : l.asks)
        with({verb::ask, id, how});
    for (const form how : l.attempts)
        with({verb::attempt, id, how});
    for (const step& s : l.once) {
        if (std::count(so_far.begin(), so_far.end(), s) == 0 &&
            !(l.same_place && t != 0 && is_of_loop(s.what)))
            with(s);
    }
    if (l.stops_others)
        with({verb::stop, own((t + 1) % threads, 0)});
    if (index > 0 && so_far.back().what <= verb::attempt) {
        const step& before = so_far.back();
        with({verb::release, before.id});
        if (wants(before.how).mode == walks::lock_mode::exclusive)
            with({verb::downgrade, before.id});
    }
}

std::vector<steps> sequences(const language& l, int t, int threads, int length)
{
    std::vector<steps> all;
    steps so_far;
    each_sequence(l, t, threads, length, so_far, [&](const steps& s) { all.push_back(s); });
    return all;
}

bool has(const std::vector<steps>& threads, verb v, int id)
{
    return std::any_of(threads.begin(), threads.end(), [&](const steps& t) {
        return std::any_of(t.begin(), t.end(),
                           [&](const step& s) { return s.what == v && s.id == id; });
    });
}

/// Whether the threads of a program are worth a run.
bool makes_sense(const language& l, const mux_text& t)
{
    for (const step& s : l.once) {
        std::ptrdiff_t times = 0;
        for (const steps& thread : t.threads)
            times += std::count(thread.begin(), thread.end(), s);
        if (times > 1)
            return false;
    }
    for (std::size_t i = 0; i < t.threads.size(); ++i) {
        for (const step& s : t.threads[i]) {
            // Somebody asks for what is stopped.
            if (s.what == verb::stop && s.id >= own(0, 0) && !has(t.threads, verb::ask, s.id))
                return false;
        }
    }
    // With something held, somebody changes that.
    return t.before.empty() || has(t.threads, verb::release, held) ||
           has(t.threads, verb::downgrade, held) || has(t.threads, verb::stop, first_waiter) ||
           has(t.threads, verb::stop, second_waiter) ||
           has(t.threads, verb::destroy, first_waiter) ||
           has(t.threads, verb::destroy, second_waiter) || has(t.threads, verb::close, 0);
}

/// Runs all programs of two or three threads with so many steps each.
void run_all(explorer& e, const mux_text& start, const language& l, int threads, int length)
{
    std::vector<std::vector<steps>> of_thread;
    for (int t = 0; t < threads; ++t)
        of_thread.push_back(sequences(l, t, threads, length));
    mux_text text = start;
    const auto extend = [&](const auto& self, std::size_t t, std::size_t from) -> void {
        if (t == of_thread.size()) {
            if (makes_sense(l, text))
                e.run(*make_mux_program(text));
            return;
        }
        for (std::size_t i = from; i < of_thread[t].size(); ++i) {
            text.threads.push_back(of_thread[t][i]);
            // Threads that may do the same are exchanged for each other.
            self(self, t + 1, l.same_place && t == 0 ? 0 : i);
            text.threads.pop_back();
        }
    };
    extend(extend, 0, 0);
}

steps holding(form h, std::initializer_list<form> waiting, verb asked = verb::ask)
{
    steps before{{verb::ask, held, h}};
    int id = first_waiter;
    for (const form w : waiting)
        before.push_back({asked, id++, w});
    return before;
}

/// What is done to those who wait; with the loop's steps when they are on one.
language changes(place p, int waiting)
{
    language l;
    l.once = {{verb::release, held}, {verb::downgrade, held}, {verb::close}};
    l.same_place = p == place::loop;
    if (l.same_place)
        l.once.push_back({verb::run});
    for (int id = first_waiter; id < first_waiter + waiting; ++id) {
        l.once.push_back({verb::stop, id});
        if (l.same_place)
            l.once.push_back({verb::destroy, id});
    }
    return l;
}

constexpr place both_places[] = {place::thread, place::loop};

void one_waits(explorer& e, const std::vector<std::pair<form, form>>& starts, const forms& asks,
               int threads, int length)
{
    for (const place p : both_places) {
        language l = changes(p, 1);
        l.asks = asks;
        l.attempts = {x0};
        for (const auto& [h, w] : starts) {
            mux_text t;
            t.place = p;
            t.before = holding(h, {w});
            run_all(e, t, l, threads, length);
        }
    }
}

void two_wait(explorer& e, const forms& holders, const forms& waiters, int threads, int length)
{
    for (const place p : both_places) {
        for (const form h : holders) {
            for (const form w1 : waiters) {
                for (const form w2 : waiters) {
                    mux_text t;
                    t.place = p;
                    t.before = holding(h, {w1, w2});
                    run_all(e, t, changes(p, 2), threads, length);
                    t.keeps = true;
                    if (p == place::loop && length > 1)
                        run_all(e, t, changes(p, 2), threads, length);
                }
            }
        }
    }
}

const std::vector<std::pair<form, form>> on_a_key = {{x0, x0}, {x0, s0}, {x0, xw},
                                                     {x0, xa}, {s0, x0}, {s0, xw}};
const std::vector<std::pair<form, form>> on_the_mux = {{xw, x0}, {xw, s0}, {xw, xw},
                                                       {xw, sw}, {sw, x0}, {sw, xw}};

/// More forms of locks, with AMUX_WIDE in the environment.
bool is_wide()
{
    return std::getenv("AMUX_WIDE") != nullptr;
}

language nothing_is_held()
{
    language l;
    l.asks = {x0, s0, x1, xw, sw, xa};
    l.attempts = {x0, xw};
    l.once = {{verb::close}};
    l.stops_others = true;
    return l;
}

} // namespace

TEST_CASE("all schedules: two threads while nothing is held", "[schedules][mux]")
{
    explorer e;
    mux_text t;
    for (const int shards : {1, 2}) {
        t.shards = shards;
        run_all(e, t, nothing_is_held(), 2, 2);
    }
    CHECK((coverage::divided > 0 || !e.complete()));
    CHECK((e.counted().programs > 0 || !e.complete()));
}

TEST_CASE("all schedules: two threads while a key is held and somebody waits", "[schedules][mux]")
{
    explorer e;
    one_waits(e, on_a_key, is_wide() ? forms{x0, s0, x1, xw, sw, xa} : forms{x0, xw}, 2, 2);
    CHECK((e.counted().programs > 0 || !e.complete()));
}

TEST_CASE("all schedules: two threads while the whole mux is held and somebody waits",
          "[schedules][mux]")
{
    explorer e;
    one_waits(e, on_the_mux, is_wide() ? forms{x0, s0, xw, sw, xa} : forms{s0, xw}, 2, 2);
    CHECK((e.counted().programs > 0 || !e.complete()));
}

TEST_CASE("all schedules: two threads while two wait", "[schedules][mux]")
{
    explorer e;
    two_wait(e, {x0, xw}, is_wide() ? forms{x0, s0, xw, sw, xa} : forms{x0, s0, xw}, 2, 2);
    CHECK((coverage::taken_back > 0 || !e.complete()));
    CHECK((e.counted().programs > 0 || !e.complete()));
}

TEST_CASE("all schedules: three threads", "[schedules][mux]")
{
    explorer e;
    mux_text t;
    for (const int shards : {1, 2}) {
        t.shards = shards;
        run_all(e, t, nothing_is_held(), 3, 1);
    }
    one_waits(e, on_a_key, is_wide() ? forms{x0, s0, xw} : forms{xw}, 3, 1);
    one_waits(e, on_the_mux, is_wide() ? forms{x0, s0, sw} : forms{x0}, 3, 1);
    two_wait(e, {x0, xw}, is_wide() ? forms{x0, s0, xw, sw, xa} : forms{x0, xw}, 3, 1);
    CHECK((e.counted().programs > 0 || !e.complete()));
}

TEST_CASE("all schedules: a mux is destroyed as soon as nobody uses it", "[schedules][mux]")
{
    explorer e;
    for (const place p : both_places) {
        for (const form h : {x0, s0, xw}) {
            for (const form w : {x0, xw, xa}) {
                mux_text t;
                t.place = p;
                t.destroys = true;
                t.before = holding(h, {w});
                run_all(e, t, changes(p, 1), 2, 2);
                run_all(e, t, changes(p, 1), 3, 1);
                t.before = holding(h, {w, xw});
                run_all(e, t, changes(p, 2), 2, 2);
            }
        }
    }
    CHECK((coverage::destroyed > 0 || !e.complete()));
    CHECK((e.counted().programs > 0 || !e.complete()));
}

TEST_CASE("all schedules: time is over while a request waits", "[schedules][mux]")
{
    explorer e;
    for (const form h : {x0, s0, xw}) {
        for (const bool destroys : {false, true}) {
            mux_text t;
            t.place = place::loop;
            t.destroys = destroys;
            t.before = holding(h, {x0}, verb::ask_timed);
            language l = changes(t.place, 1);
            l.once.push_back({verb::ask_timed, second_waiter, x0});
            l.asks = {x0};
            run_all(e, t, l, 2, 2);
        }
    }
    CHECK((e.counted().programs > 0 || !e.complete()));
}

TEST_CASE("all schedules: as many wait as allowed", "[schedules][mux]")
{
    explorer e;
    language l = nothing_is_held();
    l.asks = {x0, xw};
    mux_text t;
    t.limited = true;
    run_all(e, t, l, 2, 2);
    one_waits(e, {{x0, x0}, {xw, x0}}, {x0, xw}, 2, 1);
    t.before = holding(x0, {});
    l.once.push_back({verb::release, held});
    l.once.push_back({verb::downgrade, held});
    run_all(e, t, l, 2, 2);
    CHECK((e.counted().programs > 0 || !e.complete()));
}

// SPDX-License-Identifier: BSL-1.0
// Without this file there are no long programs for the model and the locks to agree on.
#pragma once

#include "support/model_driver.hpp"
#include "support/scale.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <string>

namespace walks {

/// What random programs are made of.
struct mix {
    bool loops = true; // else every coroutine resumes in the call that lets it
    bool timed = true;
    bool reentrancy = true; // in half of them
    bool collisions = false;
    forms ways = forms::all;
};

class random_program {
public:
    random_program(std::uint64_t seed, const mix& m) : random_{seed}, mix_{m}
    {
        program_.prevent_reentrancy = mix_.reentrancy && chance(50);
        if (chance(25))
            program_.max_waiters = below(5);
        keys_ = 1 + static_cast<int>(below(most_keys));
        whole_ = any({0, 5, 20, 50});
        several_ = any({0, 10, 30, 70});
        shared_ = any({0, 30, 50, 80});
        crowd_ = any({3, 6, 12});
    }

    program make()
    {
        model now{program_.prevent_reentrancy, program_.max_waiters};
        const std::size_t length = 4 + below(45);
        while (program_.steps.size() < length) {
            const step s = next(now);
            if (!now.applies(s.what, s.id))
                continue;
            now.apply(s);
            program_.steps.push_back(s);
        }
        return program_;
    }

private:
    std::uint64_t below(std::uint64_t n) { return random_() % n; }
    bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }
    template <class T>
    T any(std::initializer_list<T> of)
    {
        return of.begin()[below(of.size())];
    }

    step next(const model& now)
    {
        step s;
        if (mix_.loops && !now.loops_idle() && chance(25)) {
            s.what = verb::run;
            s.id = static_cast<int>(below(loops));
        } else if (mix_.timed && chance(8)) {
            s.what = chance(60) ? verb::advance : verb::run;
            s.id = s.what == verb::advance ? 1 + static_cast<int>(below(3))
                                           : static_cast<int>(below(loops));
        } else if (mix_.collisions && chance(10)) {
            s.what = verb::collide;
        } else if (chance(1) && chance(50)) {
            s.what = verb::close;
        } else if (static_cast<int>(below(static_cast<std::uint64_t>(crowd_))) >= active(now)) {
            request(s, now);
        } else {
            s.what = any({verb::release, verb::release, verb::release, verb::stop, verb::destroy,
                          verb::downgrade, verb::move});
            s.id = static_cast<int>(below(static_cast<std::uint64_t>(now.requests())));
        }
        return s;
    }

    static int active(const model& now)
    {
        int n = 0;
        for (int id = 0; id < now.requests(); ++id)
            n += now.phase_of(id) != model::phase::ended ? 1 : 0;
        return n;
    }

    void request(step& s, const model& now)
    {
        s.id = now.requests();
        s.what = chance(15) ? verb::attempt : verb::ask;
        s.mode = chance(shared_) ? lock_mode::shared : lock_mode::exclusive;
        s.variant = static_cast<std::uint8_t>(below(6));
        choose_keys(s);
        if (s.what == verb::attempt)
            return;
        choose_coroutine(s);
        s.token = any({token::none, token::live, token::live});
        if (chance(3))
            s.token = token::stopped;
        if (program_.prevent_reentrancy && s.coroutine != coroutine::plain &&
            s.coroutine != coroutine::spawned && chance(60))
            s.context = static_cast<int>(below(contexts));
        s.in_frame = chance(50);
        if (chance(30))
            choose_then(s);
    }

    void choose_keys(step& s)
    {
        s.scope = chance(whole_) ? scope::whole : chance(several_) ? scope::range : scope::key;
        if (s.scope == scope::whole)
            return;
        s.key_count = s.scope == scope::key ? 1 : static_cast<std::uint8_t>(below(5));
        for (std::uint8_t& k : s.keys)
            k = static_cast<std::uint8_t>(below(static_cast<std::uint64_t>(keys_)));
        const bool can_be_listed =
            s.key_count == 2 || (s.key_count == 3 && mix_.ways == forms::all);
        if (s.scope == scope::range && can_be_listed && chance(50))
            s.scope = scope::listed;
    }

    void choose_coroutine(step& s)
    {
        const bool all = mix_.ways == forms::all;
        const bool may_be_timed = all ? s.scope != scope::listed : s.scope == scope::key;
        if (mix_.timed && may_be_timed && chance(30)) {
            s.limit = all && chance(50) ? limit::moment : limit::time;
            s.time = any({-1, 0, 1, 2, 2, 3, 5, 8, for_ever});
        }
        const auto some_loop = [this] {
            return mix_.loops ? static_cast<int>(below(loops + 1)) - 1 : nowhere;
        };
        s.coroutine = all ? any({coroutine::plain, coroutine::hooked, coroutine::task})
                          : any({coroutine::plain, coroutine::hooked});
        if (!all) {
            if (s.timed())
                s.coroutine = coroutine::hooked;
        } else if (s.coroutine != coroutine::task &&
                   (chance(30) || (s.timed() && s.coroutine == coroutine::plain))) {
            s.resume_on = some_loop();
        }
        if (s.coroutine != coroutine::plain)
            s.loop = some_loop();
        if (all && mix_.loops && s.resume_on == not_said && chance(10)) {
            s.coroutine = coroutine::spawned;
            s.loop = static_cast<int>(below(loops));
        }
    }

    void choose_then(step& s)
    {
        s.then = any({verb::release, verb::release, verb::release, verb::stop, verb::destroy,
                      verb::downgrade});
        s.then_id = s.id;
        if (s.then != verb::release || chance(30))
            s.then_id = std::max(0, s.id + 3 - static_cast<int>(below(8)));
        if (chance(2))
            s.then = verb::close;
    }

    std::mt19937_64 random_;
    mix mix_;
    program program_;
    int keys_;
    int whole_;
    int several_;
    int shared_;
    int crowd_;
};

/// Runs random programs. AMUX_SEED=N makes the program of seed N the first one.
template <class Mux, forms Forms>
void walk(mix m, int programs)
{
    m.ways = Forms;
    const char* const given = std::getenv("AMUX_SEED");
    const std::uint64_t first = given ? std::strtoull(given, nullptr, 10) : 1;
    const auto count = static_cast<std::uint64_t>(support::scaled(programs));
    for (std::uint64_t seed = first; seed != first + count; ++seed) {
        const program p = random_program{seed, m}.make();
        const checks c{.after_each_step = true, .tried_keys = most_keys, .finish = seed % 4 != 0};
        INFO("AMUX_SEED=" << seed << " begins with this program");
        const std::string trouble = run<Mux, Forms>(p, c);
        if (trouble.empty())
            continue;
        const program smallest =
            shrunk(p, [&c](const program& less) { return !run<Mux, Forms>(less, c).empty(); });
        FAIL("a smallest program that fails:\n" << report<Mux, Forms>(smallest, c));
    }
    SUCCEED();
}

} // namespace walks

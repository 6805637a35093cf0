// SPDX-License-Identifier: BSL-1.0
// Without this file a mistake that a few steps show is found only by luck.
#include "support/model_driver.hpp"
#include "support/scale.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace walks;

using one_shard = amux::asyncmux<int>; // it has many, and starts with one
using four_shards = amux::asyncmux<int, growing<4>>;

/// What a program is made of.
struct language {
    bool lock_all = false; // {k0, k1}
    bool on_loop = false; // coroutines resume on a loop, and `run` is a step
    bool close = false;
    bool collide = false; // the first step of each program: the mux grows at once
    int collide_later = 0; // or: the step before which it does
};

/// All programs of just so many steps. Of the keys, k0 is named first.
template <class Mux>
class every_program {
public:
    every_program(const language& l, int steps) : language_{l}, steps_{steps} {}

    /// How many there are; none more are run when one has failed.
    int run_all()
    {
        extend(model{false, static_cast<std::size_t>(-1)}, 0);
        return count_;
    }
    const std::string& failure() const { return failure_; }

private:
    void extend(const model& before, int requests)
    {
        if (static_cast<int>(program_.steps.size()) - extra_ == steps_)
            return check();
        const bool grows = language_.collide && steps_done() == language_.collide_later;
        if (grows) {
            program_.steps.push_back({.what = verb::collide});
            ++extra_;
        }
        for (const lock_mode mode : {lock_mode::shared, lock_mode::exclusive}) {
            for (int what = 0; what < (language_.lock_all ? 4 : 3); ++what)
                add_request(before, requests, mode, what);
        }
        for (int id = 0; id < requests; ++id) {
            const bool waits = before.phase_of(id) == model::phase::waiting;
            if (waits)
                add(before, requests, verb::stop, id);
            if (before.applies(verb::destroy, id))
                add(before, requests, verb::destroy, id);
            if (before.applies(verb::release, id))
                add(before, requests, verb::release, id);
            if (before.applies(verb::downgrade, id) && before.mode_of(id) == lock_mode::exclusive)
                add(before, requests, verb::downgrade, id);
        }
        if (!before.loops_idle())
            add(before, requests, verb::run, 0);
        if (language_.close && !before.closed())
            add(before, requests, verb::close, 0);
        if (grows) {
            program_.steps.pop_back();
            --extra_;
        }
    }

    int steps_done() const { return static_cast<int>(program_.steps.size()) - extra_; }

    void add_request(const model& before, int requests, lock_mode mode, int what)
    {
        step s;
        s.what = verb::ask;
        s.id = requests;
        s.mode = mode;
        s.token = token::live;
        if (language_.on_loop) {
            s.coroutine = coroutine::hooked;
            s.loop = 0;
        }
        if (what == 1 && !names_a_key(program_))
            return; // the same program with the keys exchanged
        s.scope = what == 2 ? scope::whole : what == 3 ? scope::listed : scope::key;
        s.key_count = what == 3 ? 2 : what == 2 ? 0 : 1;
        s.keys = {static_cast<std::uint8_t>(what == 1 ? 1 : 0), 1};
        add(before, requests + 1, s);
    }

    static bool names_a_key(const program& p)
    {
        return std::any_of(p.steps.begin(), p.steps.end(), [](const step& s) {
            return s.what == verb::ask && s.scope == scope::key;
        });
    }

    void add(const model& before, int requests, verb what, int id)
    {
        step s;
        s.what = what;
        s.id = id;
        add(before, requests, s);
    }

    void add(const model& before, int requests, const step& s)
    {
        if (!failure_.empty())
            return;
        model after = before;
        after.apply(s);
        program_.steps.push_back(s);
        extend(after, requests);
        program_.steps.pop_back();
    }

    void check()
    {
        ++count_;
        const checks c{.after_each_step = false, .tried_keys = 2};
        if (!run<Mux, forms::few>(program_, c).empty())
            failure_ = report<Mux, forms::few>(program_, c);
    }

    language language_;
    int steps_;
    int extra_ = 0;
    program program_;
    int count_ = 0;
    std::string failure_;
};

/// Short ones first, so that the first to fail is a smallest one.
template <class Mux>
void check_all(const language& l, int most_steps)
{
    for (int steps = 1; steps <= most_steps; ++steps) {
        every_program<Mux> all{l, steps};
        const int count = all.run_all();
        INFO(count << " programs of " << steps << " steps\n" << all.failure());
        REQUIRE(all.failure().empty());
        UNSCOPED_INFO(count << " programs of " << steps << " steps");
    }
    SUCCEED();
}

int steps(int most)
{
    const int percent = support::scaled(100);
    return percent < 20 ? most - 2 : percent < 50 ? most - 1 : percent < 1000 ? most : most + 1;
}

} // namespace

TEST_CASE("small programs: every one on two keys and the whole mux keeps the rule",
          "[asyncmux][random]")
{
    check_all<one_shard>({}, steps(6));
}

TEST_CASE("small programs: every one with requests for both keys keeps the rule",
          "[asyncmux][random]")
{
    check_all<one_shard>({.lock_all = true, .close = true}, steps(5));
}

TEST_CASE("small programs: every one whose coroutines resume on a loop keeps the rule",
          "[asyncmux][random]")
{
    check_all<one_shard>({.on_loop = true, .close = true}, steps(5));
}

TEST_CASE("small programs: every one keeps the rule with each key in its own shard",
          "[asyncmux][random]")
{
    noticed::grown = 0;
    check_all<four_shards>({.lock_all = true, .collide = true}, steps(5));
    CHECK(noticed::grown > 0);
}

TEST_CASE("small programs: every one keeps the rule when the mux grows in the middle of it",
          "[asyncmux][random]")
{
    const int most = steps(5);
    for (int when = 1; when < most; ++when) {
        noticed::grown = 0;
        check_all<four_shards>({.collide = true, .collide_later = when}, most);
        CHECK(noticed::grown > 0);
    }
}

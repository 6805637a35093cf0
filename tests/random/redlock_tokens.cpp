// SPDX-License-Identifier: BSL-1.0
// Without this file a token that is used again, while its last questions may still be carried out, may lose what it is granted.
#include "support/redlock_world.hpp"
#include "support/scale.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <utility>

using namespace std::chrono_literals;
using amux::backend_error_kind;
using amux::testing::course;
using amux::testing::operation;
using support::asked;
using support::milliseconds;
using time_point = amux::clock::time_point;

namespace {

struct question {
    operation op;
    milliseconds ttl;
    time_point started;
    int number; // of those with its token
    std::optional<asked<amux::unfenced_result>> grant{};
    std::optional<asked<bool>> flag{};

    std::string state() const { return grant ? grant->state() : flag->state(); }
    bool yes() { return grant ? grant->value().acquired : flag->value(); }
    time_point valid_until() const { return started + ttl - ttl / 100 - 2ms; }
};

/// Who uses one token all the time, and until when its lease is to be there.
struct holder {
    std::string token;
    time_point believed{};
    bool unwanted = true; // the last that was asked for it has failed, or was a release
    std::deque<question> open{};
    int questions = 0;
};

/// Two tokens and one key, over three nodes of which none does what it should.
class token_walk {
public:
    explicit token_walk(std::uint64_t seed) : random_{seed}
    {
        for (std::size_t n = 0; n != 3; ++n)
            world_.stores[n].decide = [this, n](const amux::testing::backend_call&) {
                return n == down_ ? course::fails(backend_error_kind::not_applied) : way();
            };
    }

    /// Much is asked, then nothing for a while, and again. Gives what is wrong; nothing when all is well.
    std::string walk()
    {
        for (int n = 0; n != 8 && trouble_.empty(); ++n) {
            down_ = below(4); // when one is, the others are a majority that bears no mistake
            for (int step = 0; step != 32; ++step) {
                if (below(4) == 0)
                    ask(holders_[below(4) == 0 ? 1 : 0]);
                pass();
            }
            constexpr int silences[] = {20, 100, 4'000};
            down_ = 3;
            quiet_ = true;
            const int silence = silences[below(3)];
            for (int step = 0; step != silence; ++step)
                pass();
            for (holder& h : holders_) {
                if (silence == 4'000 && h.unwanted && world_.held_by(h.token) != 0)
                    trouble_ = h.token + " is left";
            }
            quiet_ = false;
        }
        return trouble_;
    }

    int grants = 0;

private:
    std::optional<course> way()
    {
        if (quiet_)
            return course::at_once();
        const milliseconds some{below(300)};
        switch (below(10)) {
            case 0:
                return course::fails(backend_error_kind::not_applied, some);
            case 1:
                return course::fails(backend_error_kind::indeterminate, some);
            case 2:
                return course::loses_reply(some);
            case 3:
                return course::acts_late(10 * some, milliseconds{below(1'000)});
            case 4:
                return course::slow(some, milliseconds{below(300)});
            default:
                return course::slow(some / 100, some / 50);
        }
    }

    void ask(holder& h)
    {
        const operation asked = h.open.empty() ? operation::get : h.open.front().op;
        const bool alike = std::all_of(h.open.begin(), h.open.end(),
                                       [&](const question& q) { return q.op == asked; });
        if (!alike)
            return;
        const auto what = below(5);
        constexpr milliseconds ttls[] = {200ms, 1s, 5s, 1h};
        question q{operation::extend, ttls[below(4)], world_.loop.now(), ++h.questions};
        if (asked != operation::acquire && world_.loop.now() < h.believed && what < 3) {
            h.believed = (std::min)(h.believed, q.valid_until());
            q.flag.emplace(world_.extend(h.token, q.ttl));
        } else if (asked != operation::get && (asked != operation::acquire || what % 2 != 0)) {
            --h.questions;
            return;
        } else {
            h.believed = {};
            h.unwanted = true;
            q.op = what % 2 == 0 ? operation::acquire : operation::release;
            if (q.op == operation::acquire)
                q.grant.emplace(world_.acquire(h.token, q.ttl));
            else
                q.flag.emplace(world_.release(h.token));
        }
        h.open.push_back(std::move(q));
    }

    void hear(holder& h)
    {
        for (auto q = h.open.begin(); q != h.open.end();) {
            if (q->state() == "waits") {
                ++q;
                continue;
            }
            const bool newest = q->number == h.questions;
            const bool yes = q->state() == "done" && q->yes();
            const bool no = q->state() == "done" && !q->yes();
            if (yes && newest && q->op == operation::acquire) {
                h.believed = q->valid_until();
                h.unwanted = false;
                ++grants;
            } else if (yes && newest && q->op == operation::extend && h.believed != time_point{}) {
                h.believed = q->valid_until();
            } else if (no && (newest || q->op != operation::acquire)) {
                h.believed = {};
                h.unwanted = true;
            }
            q = h.open.erase(q);
        }
    }

    void pass()
    {
        world_.pass(10ms);
        for (holder& h : holders_) {
            hear(h);
            if (world_.loop.now() < h.believed && world_.held_by(h.token) < 2)
                trouble_ = h.token + " is believed, and not there";
        }
    }

    std::size_t below(std::size_t n) { return random_() % n; }

    std::mt19937_64 random_;
    support::redlock_world world_;
    holder holders_[2]{{"a"}, {"b"}};
    std::size_t down_ = 3; // none
    bool quiet_ = false;
    std::string trouble_;
};

} // namespace

// AMUX_SEED=N makes the walk of seed N the first one.
TEST_CASE("redlock: whatever was asked with a token before, what it is granted stays",
          "[redlock][random]")
{
    const char* const given = std::getenv("AMUX_SEED");
    std::uint64_t seed =
        given ? std::strtoull(given, nullptr, 10) : std::uint64_t{Catch::getSeed()} << 20;
    int grants = 0;
    const int walks = support::scaled(100);
    for (int n = walks; n > 0; --n, ++seed) {
        token_walk walk{seed};
        INFO("AMUX_SEED=" << seed);
        REQUIRE(walk.walk() == "");
        grants += walk.grants;
    }
    CHECK((grants > 0 || walks < 20)); // every other walk sees none
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a request could be carried out by the server after it was given up here.
#include <amux/detail/redis_clock.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <random>

using namespace std::chrono_literals;
using amux::detail::redis_clock;
using time_point = amux::clock::time_point;
using std::chrono::microseconds;

namespace {

/// A server whose clock is ahead of ours by so much, and what it shows at a time of ours.
struct server {
    microseconds ahead;
    microseconds shows(time_point t) const
    {
        return std::chrono::floor<microseconds>(t.time_since_epoch()) + ahead;
    }
};

} // namespace

TEST_CASE("redis_clock: nothing is known before the first reply", "[redis]")
{
    redis_clock c;
    CHECK(!c.known());
    c.learn(5s, time_point{1s}, time_point{2s});
    CHECK(c.known());
    c.forget();
    CHECK(!c.known());
}

TEST_CASE("redis_clock: a time is never reckoned later than it is", "[redis]")
{
    std::mt19937_64 random{7};
    const server s{1'700'000'000s + 123'457us};
    redis_clock c;
    time_point now{1000s};
    for (int n = 0; n != 10'000; ++n) {
        const auto part = [&random] { return std::chrono::nanoseconds{random() % 3'000'000}; };
        const time_point sent = now;
        const time_point there = sent + part();
        const time_point received = there + part();
        c.learn(s.shows(there), sent, received);
        now = received + part();
        REQUIRE(c.at(now) <= s.shows(now));
        // By the best of the replies so far it is not too early by more than the way of that one.
        REQUIRE(c.at(now) >= s.shows(now) - 3ms - 2us);
    }
}

TEST_CASE("redis_clock: the best reply counts, not the last one", "[redis]")
{
    const server s{100s};
    redis_clock c;
    c.learn(s.shows(time_point{10s}), time_point{10s}, time_point{10s + 10us});
    c.learn(s.shows(time_point{20s}), time_point{20s}, time_point{25s});
    CHECK(s.shows(time_point{30s}) - c.at(time_point{30s}) <= 12us);
}

TEST_CASE("redis_clock: a clock that was set is learned anew", "[redis]")
{
    const server before{3600s};
    const server after{GENERATE_COPY(0s, 7200s)};
    redis_clock c;
    c.learn(before.shows(time_point{10s}), time_point{10s}, time_point{10s + 1ms});
    c.learn(after.shows(time_point{20s}), time_point{20s}, time_point{20s + 1ms});
    CHECK(c.at(time_point{30s}) <= after.shows(time_point{30s}));
    CHECK(c.at(time_point{30s}) >= after.shows(time_point{30s}) - 2ms);
}

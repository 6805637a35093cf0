// SPDX-License-Identifier: BSL-1.0
// Without this file a deadline may be early, overflow into the past, or stand still while the machine sleeps.
#include <amux/clock.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <time.h>

using amux::clock;
using amux::detail::deadline_after;
using namespace std::chrono_literals;

static_assert(std::chrono::is_clock_v<amux::clock>);
static_assert(clock::is_steady);
static_assert(noexcept(clock::now()));

TEST_CASE("clock: it does not go back", "[clock]")
{
    auto before = clock::now();
    bool back = false;
    for (int i = 0; i < 10'000; ++i) {
        const auto now = clock::now();
        back |= now < before;
        before = now;
    }
    CHECK_FALSE(back);
}

#if defined(__linux__)
TEST_CASE("clock: on Linux it is the one that counts the time asleep", "[clock]")
{
    const auto boot_time = [] {
        timespec t{};
        clock_gettime(CLOCK_BOOTTIME, &t);
        return std::chrono::seconds{t.tv_sec} + std::chrono::nanoseconds{t.tv_nsec};
    };
    const auto before = boot_time();
    const auto now = clock::now().time_since_epoch();
    const auto after = boot_time();
    CHECK(before <= now);
    CHECK(now <= after);
}
#endif

TEST_CASE("clock: a deadline is not before the time that was asked for", "[clock]")
{
    const clock::time_point start{1h};
    CHECK(deadline_after(start, 5ms) == start + 5ms);
    using ticks_of_a_third = std::chrono::duration<std::int64_t, std::ratio<1, 3'000'000'000>>;
    CHECK(deadline_after(start, ticks_of_a_third{1}) == start + 1ns);
    CHECK(deadline_after(start, std::chrono::duration<double>{0.5e-9}) == start + 1ns);
}

TEST_CASE("clock: no time, a negative one and no number at all end at the start", "[clock]")
{
    const clock::time_point start{1h};
    CHECK(deadline_after(start, 0s) == start);
    CHECK(deadline_after(start, -1ns) == start);
    CHECK(deadline_after(start, std::chrono::hours::min()) == start);
    CHECK(deadline_after(start, std::chrono::duration<double>{std::nan("")}) == start);
}

TEST_CASE("clock: a time that does not fit never comes", "[clock]")
{
    const auto never = clock::time_point::max();
    CHECK(deadline_after(clock::now(), std::chrono::hours::max()) == never);
    CHECK(deadline_after(clock::now(), std::chrono::milliseconds::max()) == never);
    CHECK(deadline_after(clock::now(), std::chrono::nanoseconds::max()) == never);
    const std::chrono::duration<double> infinite{std::numeric_limits<double>::infinity()};
    CHECK(deadline_after(clock::now(), infinite) == never);
    CHECK(deadline_after(never, 1s) == never);
}

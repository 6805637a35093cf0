// SPDX-License-Identifier: BSL-1.0
// Without this file the times of a command under amuxctl are tested by waiting for them alone.
#include "ending.hpp"
#include "json.hpp"
#include "processes.hpp"
#include "words.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;
using amuxctl::ending;
using amuxctl::time_point;

constexpr time_point until{1000s};

} // namespace

TEST_CASE("amuxctl: SIGTERM, SIGKILL, the other process's SIGKILL and the end come in this order",
          "[amuxctl]")
{
    const auto kill_after = GENERATE(0s, 1s, 3s, 5s);
    const ending e{6s, kill_after};
    const time_point told = e.term_due(until);
    CHECK(told == until - 6s);
    CHECK(e.kill_due(told, until) == told + kill_after);
    CHECK(e.kill_due(told, until) < e.backstop_due(until));
    CHECK(e.backstop_due(until) < until);
}

TEST_CASE(
    "amuxctl: who is told late has less time, and who is told early no more than it asked for",
    "[amuxctl]")
{
    const ending e{6s, 2s};
    for (auto told = until - 30s; told < until + 30s; told += 500ms) {
        CHECK(e.kill_due(told, until) <= told + 2s);
        CHECK(e.kill_due(told, until) <= until - 4s);
    }
}

TEST_CASE("amuxctl: a lease that is found lost is backed up for no later than its time",
          "[amuxctl]")
{
    const ending e{6s, 2s};
    for (auto lost = until - 30s; lost < until + 30s; lost += 500ms) {
        CHECK(e.backstop_due_lost(lost, until) <= e.backstop_due(until));
        // The one in charge comes first, unless the time of both is up.
        CHECK((e.backstop_due_lost(lost, until) > e.kill_due(lost, until) || lost >= until - 4s));
    }
}

TEST_CASE("amuxctl: the times that are not given follow from the ttl and from each other",
          "[amuxctl]")
{
    amuxctl::request r;
    CHECK(r.times().stop_margin == 6s);
    CHECK(r.times().kill_after == 3s);
    r.ttl = 1s;
    CHECK(r.times().stop_margin == 200ms);
    r.stop_margin = 500ms;
    CHECK(r.times().kill_after == 250ms);
    r.kill_after = 0ms;
    CHECK(r.times().kill_after == 0ms);
}

TEST_CASE("amuxctl: a duration is a number and a unit, seconds without one", "[amuxctl]")
{
    using amuxctl::read_duration;
    CHECK(read_duration("5") == 5s);
    CHECK(read_duration("1.5s") == 1500ms);
    CHECK(read_duration("250ms") == 250ms);
    CHECK(read_duration("2m") == 2min);
    CHECK(read_duration("1h") == 1h);
    CHECK(read_duration("366d") == std::chrono::hours{366 * 24});
    CHECK(read_duration("0") == 0ms);
    CHECK(read_duration("0.0001ms") == 1ms); // not one attempt, but a short wait
    for (const char* const bad : {"", "s", "-1", "+1", "1 s", " 1", "1e3", "inf", "nan", "5y",
                                  "367d", "99999999999999999999999", "1.5.5s", "0x10", "1s1"})
        CHECK(read_duration(bad) == std::nullopt);
}

TEST_CASE("amuxctl: every byte has a place in JSON and on a terminal", "[amuxctl]")
{
    for (int first = 0; first < 256; ++first) {
        for (int second = 0; second < 256; ++second) {
            const std::string text{static_cast<char>(first), static_cast<char>(second)};
            const std::string plain = amuxctl::plain_text(text);
            const std::string json = amuxctl::json_text(text);
            for (const char c : plain + json)
                REQUIRE((static_cast<unsigned char>(c) >= 0x20 && c != 0x7F));
            REQUIRE(json.size() >= 3);
        }
    }
    CHECK(amuxctl::json_text("a\"\\\n\x7f") == R"("a\"\\\u000a\u007f")");
    CHECK(amuxctl::plain_text("a\"\\\n\x7f") == R"(a"\\x0a\x7f)");
    CHECK(amuxctl::plain_text("\xC2\x9B"
                              "31m") == R"(\xc2\x9b31m)"); // a control sequence, in one character
    CHECK(amuxctl::plain_text("\xE2\x80\xAE") ==
          R"(\xe2\x80\xae)"); // turns the order of reading round
    CHECK(amuxctl::json_text("\xED\xA0\x80") == R"("\ufffd\ufffd\ufffd")"); // half a surrogate pair
}

TEST_CASE("amuxctl: a process that ends while it is looked at is no trouble", "[amuxctl]")
{
    const pid_t breeder = fork();
    REQUIRE(breeder >= 0);
    setpgid(breeder, breeder); // 0 in the child: itself
    while (breeder ==
           0) { // some dozens at a time, which end one after the other, as they are looked at
        std::vector<pid_t> brood(50);
        for (pid_t& child : brood) {
            child = fork();
            while (child == 0)
                pause();
        }
        for (const pid_t child : brood) {
            kill(child, SIGKILL);
            waitpid(child, nullptr, 0);
        }
    }
    int trouble = 0;
    for (const auto end = std::chrono::steady_clock::now() + 1500ms;
         trouble == 0 && std::chrono::steady_clock::now() < end;) {
        try {
            amuxctl::all_processes();
            amuxctl::marked_processes{"AMUX_TOKENS", "none"}.running(0);
            amuxctl::descendants{breeder, {}}.none();
        } catch (...) {
            ++trouble;
        }
    }
    kill(-breeder, SIGKILL);
    waitpid(breeder, nullptr, 0);
    CHECK(trouble == 0);
}

TEST_CASE("amuxctl: who has got the number of another process does not get its signals",
          "[amuxctl]")
{
    const pid_t child = fork();
    if (child == 0)
        _exit(pause());
    REQUIRE(child > 0);
    amuxctl::process seen;
    const auto all = amuxctl::all_processes();
    REQUIRE(all);
    for (const amuxctl::process& p : *all)
        seen = p.id == child ? p : seen;
    REQUIRE(seen.id == child);
    amuxctl::process earlier = seen;
    --earlier.begun;
    amuxctl::send_signal(earlier, SIGHUP);
    amuxctl::send_signal(seen, SIGKILL);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WTERMSIG(status) == SIGKILL);
}

TEST_CASE("amuxctl: what cannot be killed is tried ever more rarely, until somebody new is there",
          "[amuxctl]")
{
    const auto start_dead = [] {
        const pid_t child = fork();
        if (child == 0)
            _exit(0);
        REQUIRE(child > 0);
        siginfo_t info{};
        REQUIRE(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
        return child;
    };
    const pid_t first = start_dead();
    amuxctl::descendants left{getpid(), {}};
    for (const auto pause : {50ms, 100ms, 200ms, 400ms, 800ms, 1000ms, 1000ms})
        CHECK(left.kill_all() == pause);
    const pid_t second = start_dead();
    CHECK(left.kill_all() == 50ms);
    CHECK(waitpid(first, nullptr, 0) == first);
    CHECK(waitpid(second, nullptr, 0) == second);
}

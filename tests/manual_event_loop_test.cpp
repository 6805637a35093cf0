// SPDX-License-Identifier: BSL-1.0
// Without this file the loop that other tests take their time from may move it, or run things, on its own account.
#include <amux/manual_event_loop.hpp>

#include <amux/task.hpp>

#include "support/node_recorder.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <stop_token>
#include <string>
#include <utility>

using amux::clock;
using amux::manual_event_loop;
using amux::task;
using support::calling;
using support::recorded;
using namespace std::chrono_literals;

namespace {

task<> sleep_and_write(manual_event_loop& loop, clock::duration d, std::string& log, char letter)
{
    co_await loop.sleep_for(d);
    log += letter;
}

} // namespace

TEST_CASE("manual_event_loop: time stands still until it is moved", "[manual_event_loop]")
{
    manual_event_loop loop;
    const auto start = loop.now();
    loop.run_ready();
    CHECK(loop.now() == start);
    loop.advance(90min);
    CHECK(loop.now() == start + 90min);
    loop.advance(-1s);
    CHECK(loop.now() == start + 90min);
    loop.advance(std::chrono::hours::max());
    CHECK(loop.now() == clock::time_point::max());
}

TEST_CASE("manual_event_loop: moving the time runs nothing", "[manual_event_loop]")
{
    manual_event_loop loop;
    std::string log;
    recorded a{'a', log};
    loop.schedule_at(loop.now() + 1s, a);
    loop.advance(2s);
    CHECK(log.empty());
    CHECK(loop.run_ready() == 1);
    CHECK(log == "a");
}

TEST_CASE("manual_event_loop: what is not due yet does not run", "[manual_event_loop]")
{
    manual_event_loop loop;
    std::string log;
    loop.spawn(sleep_and_write(loop, 10ms, log, 'a'));
    loop.run_ready();
    loop.advance(10ms - 1ns);
    CHECK(loop.run_ready() == 0);
    loop.advance(1ns);
    CHECK(loop.run_ready() == 1);
    CHECK(log == "a");
}

TEST_CASE("manual_event_loop: timers run by due time, equal ones in order of arming",
          "[manual_event_loop]")
{
    manual_event_loop loop;
    std::string log;
    loop.spawn(sleep_and_write(loop, 30ms, log, 'd'));
    loop.spawn(sleep_and_write(loop, 10ms, log, 'a'));
    loop.spawn(sleep_and_write(loop, 20ms, log, 'b'));
    loop.spawn(sleep_and_write(loop, 20ms, log, 'c'));
    loop.run_ready();
    loop.advance(1h);
    CHECK(loop.run_ready() == 4);
    CHECK(log == "abcd");
}

TEST_CASE("manual_event_loop: what is posted runs before what is due", "[manual_event_loop]")
{
    manual_event_loop loop;
    std::string log;
    recorded due{'d', log}, posted{'p', log};
    loop.schedule_at(loop.now(), due);
    loop.post(posted);
    loop.run_ready();
    CHECK(log == "pd");
}

TEST_CASE("manual_event_loop: what a timer makes ready runs before the timers of a later time",
          "[manual_event_loop]")
{
    manual_event_loop loop;
    std::string log;
    recorded posted{'p', log}, same_time{'s', log}, later{'l', log};
    calling first{[&] { loop.post(posted); }};
    loop.schedule_at(loop.now() + 1ms, first);
    loop.schedule_at(loop.now() + 1ms, same_time);
    loop.schedule_at(loop.now() + 2ms, later);
    loop.advance(2ms);
    CHECK(loop.run_ready() == 4);
    CHECK(log == "spl");
}

TEST_CASE("manual_event_loop: a timer that is armed when it is due already runs in the same call",
          "[manual_event_loop]")
{
    manual_event_loop loop;
    std::string log;
    loop.spawn(sleep_and_write(loop, 0ms, log, 'a'));
    CHECK(loop.run_ready() == 2);
    CHECK(log == "a");
}

TEST_CASE("manual_event_loop: time that a node moves on counts from the next call",
          "[manual_event_loop]")
{
    manual_event_loop loop;
    std::string log;
    recorded a{'a', log};
    calling moving{[&] { loop.advance(1s); }};
    loop.schedule_at(loop.now() + 1s, a);
    loop.post(moving);
    CHECK(loop.run_ready() == 1);
    CHECK(loop.run_ready() == 1);
    CHECK(log == "a");
}

TEST_CASE("manual_event_loop: schedule resumes in the next call, without a move of time",
          "[manual_event_loop]")
{
    manual_event_loop loop;
    int frames = 0;
    const auto count = [&]() -> task<> {
        for (int i = 0; i < 3; ++i) {
            ++frames;
            co_await loop.schedule();
        }
    };
    loop.spawn(count());
    for (int expected = 1; expected <= 3; ++expected) {
        CHECK(loop.run_ready() == 1);
        CHECK(frames == expected);
    }
    CHECK(loop.run_ready() == 1);
    CHECK(loop.run_ready() == 0);
}

TEST_CASE("manual_event_loop: a stop and the time that come together: the stop was there first",
          "[manual_event_loop]")
{
    manual_event_loop loop;
    std::stop_source source;
    int answer = -1;
    const auto sleeper = [&]() -> task<> {
        const bool up = co_await loop.sleep_for(10ms, source.get_token());
        answer = up ? 1 : 0;
    };
    loop.spawn(sleeper());
    loop.run_ready();
    SECTION("stop, then time")
    {
        source.request_stop();
        loop.advance(10ms);
        CHECK(loop.run_ready() == 1);
        CHECK(answer == 0);
    }
    SECTION("time, then stop, and nobody looked in between")
    {
        loop.advance(10ms);
        source.request_stop();
        CHECK(loop.run_ready() == 1);
        CHECK(answer == 0);
    }
    SECTION("the time was seen before the stop")
    {
        loop.advance(10ms);
        CHECK(loop.run_ready() == 1);
        source.request_stop();
        CHECK(loop.run_ready() == 0);
        CHECK(answer == 1);
    }
}

TEST_CASE("manual_event_loop: a stop from the timer before keeps the next sleeper from being late",
          "[manual_event_loop]")
{
    manual_event_loop loop;
    std::stop_source source;
    std::string log;
    const auto sleeper = [&]() -> task<> {
        const bool up = co_await loop.sleep_for(10ms, source.get_token());
        log += up ? 'u' : 's';
    };
    loop.spawn(sleeper());
    loop.run_ready();
    calling stopping{[&] { source.request_stop(); }};
    loop.schedule_at(loop.now() + 5ms, stopping);
    loop.advance(1h);
    CHECK(loop.run_ready() == 2);
    CHECK(log == "s");
}

TEST_CASE("manual_event_loop: sleep_until takes the time of the loop", "[manual_event_loop]")
{
    manual_event_loop loop;
    loop.advance(1h);
    bool up = false;
    const auto sleeper = [&]() -> task<> {
        const bool time_is_up = co_await loop.sleep_until(loop.now() + 1min);
        up = time_is_up;
    };
    loop.spawn(sleeper());
    loop.run_ready();
    loop.advance(59s);
    CHECK(loop.run_ready() == 0);
    loop.advance(1s);
    CHECK(loop.run_ready() == 1);
    CHECK(up);
}

TEST_CASE("manual_event_loop: a sleep of the greatest length never ends", "[manual_event_loop]")
{
    manual_event_loop loop;
    std::string log;
    const auto sleeper = [&]() -> task<> {
        co_await loop.sleep_for(std::chrono::hours::max());
        log += 'n';
    };
    loop.spawn(sleeper());
    loop.run_ready();
    loop.advance(std::chrono::hours{24 * 365 * 200});
    CHECK(loop.run_ready() == 0);
    CHECK(log.empty());
}

TEST_CASE("manual_event_loop: destroyed, it destroys its sleepers and resumes none",
          "[manual_event_loop]")
{
    std::string log;
    {
        manual_event_loop loop;
        loop.spawn(sleep_and_write(loop, 10ms, log, 'a'));
        loop.spawn(sleep_and_write(loop, 10ms, log, 'b'));
        loop.run_ready();
        loop.advance(1h);
    }
    CHECK(log.empty());
}

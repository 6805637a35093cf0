// SPDX-License-Identifier: BSL-1.0
// Without this file a loop may run things out of order, twice, too early, or never, or forget to stop.
#include <amux/event_loop.hpp>

#include <amux/detail/resume_queue.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>

#include "support/allocation_counter.hpp"
#include "support/foreign_coroutine.hpp"
#include "support/node_recorder.hpp"
#include "support/probe.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <coroutine>
#include <cstddef>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using amux::clock;
using amux::event_loop;
using amux::task;
using support::calling;
using support::recorded;
using namespace std::chrono_literals;

static_assert(!std::is_copy_constructible_v<event_loop> &&
              !std::is_move_constructible_v<event_loop>);
static_assert(std::is_base_of_v<amux::scheduler, event_loop>);

namespace {

task<> write(std::string& log, char letter)
{
    log += letter;
    co_return;
}

task<> write_twice(event_loop& loop, std::string& log, char letter)
{
    log += letter;
    co_await loop.schedule();
    log += letter;
}

} // namespace

TEST_CASE("event_loop: what is posted runs in order of posting", "[event_loop]")
{
    event_loop loop;
    std::string log;
    recorded a{'a', log}, b{'b', log}, c{'c', log};
    loop.post(a);
    loop.post(b);
    loop.post(c);
    CHECK(log.empty());
    CHECK(loop.run_ready() == 3);
    CHECK(log == "abc");
    CHECK(loop.run_ready() == 0);
}

TEST_CASE("event_loop: run_ready runs what is posted in the same frame", "[event_loop]")
{
    event_loop loop;
    std::string log;
    recorded b{'b', log};
    calling a{[&] { loop.post(b); }};
    loop.post(a);
    CHECK(loop.run_ready() == 2);
    CHECK(log == "b");
}

TEST_CASE("event_loop: a node may be posted again from its own run", "[event_loop]")
{
    struct again : amux::scheduler::node {
        again(event_loop& l, int n) noexcept : node{&run_once}, loop{l}, left{n} {}
        static void run_once(node& n) noexcept
        {
            auto& self = static_cast<again&>(n);
            if (--self.left != 0)
                self.loop.post(self);
        }
        event_loop& loop;
        int left;
    };
    event_loop loop;
    again node{loop, 5};
    loop.post(node);
    CHECK(loop.run_ready() == 5);
    CHECK(node.left == 0);
}

TEST_CASE("event_loop: schedule resumes in the next frame", "[event_loop]")
{
    event_loop loop;
    std::string log;
    loop.spawn(write_twice(loop, log, 'a'));
    loop.spawn(write_twice(loop, log, 'b'));
    CHECK(loop.run_ready() == 2);
    CHECK(log == "ab");
    loop.spawn(write(log, 'c')); // after those that wait for the frame already
    CHECK(loop.run_ready() == 3);
    CHECK(log == "ababc");
}

TEST_CASE("event_loop: schedule outside of a frame resumes in the next one, in order",
          "[event_loop]")
{
    event_loop loop;
    std::string log;
    recorded p{'p', log}, q{'q', log};
    loop.post(p);
    const auto hop = [&]() -> support::fire_and_forget {
        co_await loop.schedule();
        log += 'h';
    };
    hop();
    loop.post(q);
    CHECK(loop.run_ready() == 3);
    CHECK(log == "phq");
}

TEST_CASE("event_loop: in run, schedule resumes after everything that is ready, without end",
          "[event_loop]")
{
    event_loop loop;
    std::string log;
    const auto yielding = [&](char letter, int times) -> task<> {
        for (int i = 0; i < times; ++i) {
            log += letter;
            co_await loop.schedule();
        }
        if (letter == 'b')
            loop.stop();
    };
    loop.spawn(yielding('a', 2));
    loop.spawn(yielding('b', 3));
    loop.run();
    CHECK(log == "ababb");
}

TEST_CASE("event_loop: nodes that post each other without end keep nobody from his turn in run",
          "[event_loop]")
{
    event_loop loop;
    bool stopped = false;
    std::size_t rounds = 0;
    struct endless : amux::scheduler::node {
        endless(event_loop& l, bool& s, std::size_t& r) noexcept
            : node{&again}, loop{l}, stop{s}, rounds{r}
        {}
        static void again(node& n) noexcept
        {
            auto& self = static_cast<endless&>(n);
            ++self.rounds;
            if (!self.stop)
                self.loop.post(self);
        }
        event_loop& loop;
        bool& stop;
        std::size_t& rounds;
    } node{loop, stopped, rounds};
    const auto sleeper = [&]() -> task<> {
        co_await loop.schedule();
        co_await loop.sleep_for(1ms);
        stopped = true;
    };
    loop.post(node);
    loop.block_on(sleeper());
    CHECK(rounds > 1);
}

TEST_CASE("event_loop: run_for stops when the budget is spent and goes on in order", "[event_loop]")
{
    event_loop loop;
    std::string log;
    recorded a{'a', log}, b{'b', log}, c{'c', log};
    calling busy{[] {
        for (const auto end = clock::now() + 2ms; clock::now() < end;) {
        }
    }};
    loop.post(a);
    loop.post(busy);
    loop.post(b);
    loop.post(c);
    CHECK(loop.run_for(1ms) <= 2);
    CHECK(log.size() <= 1);
    CHECK(loop.run_for(0ms) == 0);
    CHECK(loop.run_for(-1h) == 0);
    loop.run_for(1h);
    CHECK(log == "abc");
}

TEST_CASE("event_loop: what run_for leaves comes before what waits for the next frame",
          "[event_loop]")
{
    event_loop loop;
    std::string log;
    const auto first = [&]() -> task<> {
        co_await loop.schedule();
        log += 's';
    };
    calling busy{[] {
        for (const auto end = clock::now() + 2ms; clock::now() < end;) {
        }
    }};
    recorded left{'l', log};
    loop.spawn(first());
    loop.post(busy);
    loop.post(left);
    const std::size_t ran = loop.run_for(1ms);
    CHECK(ran <= 2);
    CHECK(ran + loop.run_for(1h) + loop.run_for(1h) == 4);
    CHECK(log == "ls");
}

TEST_CASE("event_loop: run_for does not wait for timers", "[event_loop]")
{
    event_loop loop;
    std::string log;
    recorded late{'l', log};
    loop.schedule_at(clock::now() + 1h, late);
    CHECK(loop.run_for(1h) == 0);
    CHECK(loop.cancel(late));
}

TEST_CASE("event_loop: timers run by due time, equal ones in order of arming", "[event_loop]")
{
    event_loop loop;
    std::string log;
    recorded a{'a', log}, b{'b', log}, c{'c', log}, d{'d', log};
    const auto past = clock::now() - 1s;
    loop.schedule_at(past + 2ms, c);
    loop.schedule_at(past, a);
    loop.schedule_at(past + 2ms, d);
    loop.schedule_at(past + 1ms, b);
    CHECK(loop.run_ready() == 4);
    CHECK(log == "abcd");
}

TEST_CASE("event_loop: a node that is cancelled does not run, wherever it is queued",
          "[event_loop]")
{
    event_loop loop;
    std::string log;
    recorded a{'a', log}, b{'b', log}, c{'c', log};
    loop.post(a);
    loop.post(b);
    loop.schedule_at(clock::now() - 1s, c);
    CHECK(loop.cancel(a));
    CHECK(loop.cancel(c));
    CHECK_FALSE(loop.cancel(a));
    CHECK_FALSE(loop.cancel(c));
    CHECK(loop.run_ready() == 1);
    CHECK(log == "b");
}

TEST_CASE("event_loop: cancel says no for a node that runs, has run, or is not here",
          "[event_loop]")
{
    event_loop loop;
    event_loop other;
    std::string log;
    recorded never{'n', log}, elsewhere{'e', log};
    CHECK_FALSE(loop.cancel(never));
    other.post(elsewhere);
    CHECK_FALSE(loop.cancel(elsewhere));
    CHECK(other.cancel(elsewhere));

    struct itself : amux::scheduler::node {
        explicit itself(event_loop& l) noexcept : node{&ask}, loop{l} {}
        static void ask(node& n) noexcept
        {
            auto& self = static_cast<itself&>(n);
            self.cancelled = self.loop.cancel(n);
        }
        event_loop& loop;
        bool cancelled = true;
    } asking{loop};
    loop.schedule_at(clock::now(), asking);
    loop.run_for(1h);
    CHECK_FALSE(asking.cancelled);
    CHECK_FALSE(loop.cancel(asking));
}

TEST_CASE("event_loop: a timer that is due may cancel the other one that is due with it",
          "[event_loop]")
{
    event_loop loop;
    std::string log;
    recorded second{'s', log};
    bool cancelled = false;
    calling first{[&] { cancelled = loop.cancel(second); }};
    const auto past = clock::now() - 1s;
    loop.schedule_at(past, first);
    loop.schedule_at(past, second);
    CHECK(loop.run_ready() == 1);
    CHECK(cancelled);
    CHECK(log.empty());
}

TEST_CASE("event_loop: a stop before run makes it return at once, and is used up", "[event_loop]")
{
    event_loop loop;
    std::string log;
    recorded a{'a', log};
    loop.post(a);
    loop.stop();
    loop.stop();
    loop.run();
    CHECK(log.empty());

    calling stopping{[&] { loop.stop(); }};
    loop.post(stopping);
    loop.run();
    CHECK(log == "a");
}

TEST_CASE("event_loop: a stop from a node leaves what is behind it for the next run",
          "[event_loop]")
{
    event_loop loop;
    std::string log;
    recorded a{'a', log}, b{'b', log};
    calling stopping{[&] { loop.stop(); }};
    loop.post(a);
    loop.post(stopping);
    loop.post(b);
    loop.run();
    CHECK(log == "a");
    CHECK(loop.run_ready() == 1);
    CHECK(log == "ab");
}

TEST_CASE("event_loop: block_on gives the result, whatever else the loop has to do", "[event_loop]")
{
    event_loop loop;
    std::string log;
    loop.spawn(write_twice(loop, log, 'a'));
    const auto compute = [&]() -> task<int> {
        co_await loop.schedule();
        co_return 42;
    };
    CHECK(loop.block_on(compute()) == 42);
    CHECK(log == "aa");
}

TEST_CASE("event_loop: block_on throws what the task has thrown", "[event_loop]")
{
    event_loop loop;
    const auto fail = []() -> task<> {
        throw std::logic_error{"no"};
        co_return;
    };
    CHECK_THROWS_AS(loop.block_on(fail()), std::logic_error);
}

TEST_CASE("event_loop: a stop neither ends block_on nor is used up by it", "[event_loop]")
{
    event_loop loop;
    loop.stop();
    const auto sleep = [&]() -> task<bool> {
        const bool up = co_await loop.sleep_for(1ms);
        co_return up;
    };
    CHECK(loop.block_on(sleep()));
    std::string log;
    recorded a{'a', log};
    loop.post(a);
    loop.run(); // returns at once
    CHECK(log.empty());
    CHECK(loop.cancel(a));
}

TEST_CASE("event_loop: block_on inside a node runs the same loop", "[event_loop]")
{
    event_loop loop;
    std::string log;
    recorded behind{'b', log};
    calling nested{[&] {
        loop.block_on(write_twice(loop, log, 'n'));
        log += '.';
    }};
    loop.post(nested);
    loop.post(behind);
    CHECK(loop.run_ready() == 1); // the others were run by the inner call
    CHECK(log == "bnn.");
}

TEST_CASE("event_loop: a sleep ends by its time, not before", "[event_loop]")
{
    event_loop loop;
    const auto sleep = [&]() -> task<clock::duration> {
        const auto start = clock::now();
        const bool up = co_await loop.sleep_for(3ms);
        co_return up ? clock::now() - start : clock::duration::zero();
    };
    CHECK(loop.block_on(sleep()) >= 3ms);
}

TEST_CASE("event_loop: a sleep of no length gives its turn away and comes back", "[event_loop]")
{
    event_loop loop;
    std::string log;
    const auto sleeper = [&]() -> task<> {
        const bool up = co_await loop.sleep_until(clock::time_point{});
        const bool still = co_await loop.sleep_for(-1h);
        log += up && still ? 's' : '?';
    };
    recorded p{'p', log};
    loop.spawn(sleeper());
    loop.post(p);
    loop.block_on(write(log, 'b'));
    loop.run_for(1h);
    loop.run_for(1h);
    CHECK(log == "pbs");
}

TEST_CASE("event_loop: a sleep says whether it was stopped", "[event_loop]")
{
    event_loop loop;
    std::stop_source source;
    bool up = true;
    const auto sleeper = [&](std::stop_token stop) -> task<> {
        const bool time_is_up = co_await loop.sleep_for(1h, std::move(stop));
        up = time_is_up;
    };
    SECTION("while it sleeps")
    {
        loop.spawn(sleeper(source.get_token()));
        loop.run_ready();
        source.request_stop();
        CHECK(up);
        CHECK(loop.run_ready() == 1);
        CHECK_FALSE(up);
    }
    SECTION("beforehand")
    {
        source.request_stop();
        loop.block_on(sleeper(source.get_token()));
        CHECK_FALSE(up);
    }
    SECTION("by a node that is due with it")
    {
        const auto both = [&]() -> task<> {
            source.request_stop();
            const bool time_is_up =
                co_await loop.sleep_until(clock::time_point{}, source.get_token());
            up = time_is_up;
        };
        loop.block_on(both());
        CHECK_FALSE(up);
    }
}

TEST_CASE("event_loop: a stop after the sleep has ended changes nothing", "[event_loop]")
{
    event_loop loop;
    std::stop_source source;
    int resumed = 0;
    const auto sleeper = [&]() -> task<> {
        const bool up = co_await loop.sleep_for(1ms, source.get_token());
        resumed += up ? 1 : 100;
        co_await loop.sleep_for(1ms);
    };
    calling late{[&] { source.request_stop(); }};
    const auto until = [&]() -> task<> {
        co_await sleeper();
        loop.post(late);
        co_await loop.schedule();
    };
    loop.block_on(until());
    CHECK(resumed == 1);
    CHECK(loop.run_ready() == 0);
}

TEST_CASE("event_loop: a coroutine that is destroyed in its sleep leaves nothing behind",
          "[event_loop]")
{
    event_loop loop;
    std::stop_source source;
    const auto sleeper = [&]() -> support::hooked_coroutine {
        co_await loop.sleep_for(1h, source.get_token());
    };
    SECTION("asleep")
    {
        auto s = sleeper();
        s.start(&loop);
    }
    SECTION("stopped, and not resumed yet")
    {
        auto s = sleeper();
        s.start(&loop);
        source.request_stop();
    }
    SECTION("never begun")
    {
        auto s = sleeper();
    }
    CHECK(loop.run_ready() == 0);
    source.request_stop();
    CHECK(loop.run_ready() == 0);
}

TEST_CASE("event_loop: a sleep that nobody awaits arms nothing", "[event_loop]")
{
    event_loop loop;
    {
        const auto never_awaited = loop.sleep_for(0ms);
    }
    CHECK(loop.run_ready() == 0);
}

TEST_CASE("event_loop: a coroutine that is destroyed between two frames leaves nothing behind",
          "[event_loop]")
{
    event_loop loop;
    const auto hop = [&]() -> support::hooked_coroutine { co_await loop.schedule(); };
    {
        auto h = hop();
        h.start(&loop);
    }
    CHECK(loop.run_ready() == 0);
}

TEST_CASE(
    "event_loop: a coroutine that is destroyed while it waits for the next frame leaves "
    "nothing behind",
    "[event_loop]")
{
    event_loop loop;
    const auto hop = [&]() -> support::hooked_coroutine { co_await loop.schedule(); };
    calling inside{[&] {
        auto h = hop();
        h.start(&loop); // it is kept for the frame after this one
    }};
    loop.post(inside);
    CHECK(loop.run_ready() == 1);
    CHECK(loop.run_ready() == 0);
}

TEST_CASE("event_loop: a pump inside a resumed coroutine runs what is queued behind that coroutine",
          "[event_loop]")
{
    // Coroutines without a scheduler are resumed by the thread that lets them go on, through a queue of that thread.
    event_loop loop;
    bool ran = false;
    support::gate gate;
    calling behind{[&] { gate.open(); }};
    calling pumping{[&] {
        const auto wait = [&]() -> task<> {
            co_await gate;
            ran = true;
        };
        loop.block_on(wait());
    }};
    amux::detail::resume_queue::push(pumping);
    amux::detail::resume_queue::push(behind);
    amux::detail::resume_queue::drain();
    CHECK(ran);
}

TEST_CASE("event_loop: posting, timers, sleeping and hopping allocate nothing", "[event_loop]")
{
    event_loop loop;
    std::string log;
    log.reserve(100);
    recorded a{'a', log}, b{'b', log};
    std::size_t within = 0;
    const auto coroutine = [&](std::stop_token stop) -> task<> {
        const std::size_t before = support::allocations();
        co_await loop.schedule();
        co_await loop.sleep_for(1us);
        co_await loop.sleep_for(1us, std::move(stop));
        within = support::allocations() - before;
    };
    std::stop_source source;
    task<> work = coroutine(source.get_token());
    const std::size_t before = support::allocations();
    loop.post(a);
    loop.schedule_at(clock::now(), b);
    loop.block_on(std::move(work));
    CHECK(within == 0);
    CHECK(support::allocations() == before);
    CHECK(log == "ab");
}

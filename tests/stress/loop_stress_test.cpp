// SPDX-License-Identifier: BSL-1.0
// Without this file a loop may sleep over a post, miss a stop, or resume a sleeper twice, once in 10^5 times.
#include <amux/event_loop.hpp>
#include <amux/loop_thread.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>
#include <amux/task_group.hpp>
#include <amux/when_all.hpp>

#include "support/allocation_counter.hpp"
#include "support/foreign_coroutine.hpp"
#include "support/node_recorder.hpp"
#include "support/scale.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

using amux::event_loop;
using amux::loop_thread;
using amux::sync_wait;
using amux::task;
using support::calling;
using support::scaled;
using namespace std::chrono_literals;

namespace {

/// Some time, from nothing to a few microseconds, so that two threads meet at another point in each round.
class jitter {
public:
    explicit jitter(unsigned salt) : random_{Catch::getSeed() + salt} {}

    void operator()()
    {
        for (unsigned i = random_() % 2048; i != 0; --i)
            sink_.store(i, std::memory_order_relaxed);
    }

private:
    std::minstd_rand random_;
    std::atomic<unsigned> sink_{0};
};

void wait_until(const std::atomic<int>& value, int expected)
{
    for (int spins = 0; value.load() != expected; ++spins) {
        if (spins >= 1000)
            std::this_thread::yield();
    }
}

struct end_of_thread {
    std::thread& t;
    ~end_of_thread() { t.join(); }
};

} // namespace

TEST_CASE("event_loop: no post is slept over", "[stress]")
{
    const int rounds = scaled(100'000);
    event_loop loop;
    std::atomic<int> ran{0};
    calling counting{[&] {
        if (++ran == rounds)
            loop.stop();
    }};
    std::thread poster{[&] {
        jitter wait{1};
        for (int i = 0; i < rounds; ++i) {
            wait_until(ran, i);
            wait();
            loop.post(counting);
        }
    }};
    const end_of_thread end{poster};
    loop.run(); // hangs when a post is lost
    CHECK(ran == rounds);
}

TEST_CASE("event_loop: no timer that is armed on another thread is slept over", "[stress]")
{
    const int rounds = scaled(20'000);
    event_loop loop;
    std::atomic<int> ran{0};
    calling far{[] {}};
    loop.schedule_at(loop.now() + 1h, far);
    calling counting{[&] {
        if (++ran == rounds)
            loop.stop();
    }};
    std::thread arming{[&] {
        jitter wait{2};
        for (int i = 0; i < rounds; ++i) {
            wait_until(ran, i);
            wait();
            loop.schedule_at(loop.now() + std::chrono::microseconds{i % 8}, counting);
        }
    }};
    const end_of_thread end{arming};
    loop.run();
    CHECK(ran == rounds);
    CHECK(loop.cancel(far));
}

TEST_CASE("event_loop: every stop ends one run, before it, within it, from whatever thread",
          "[stress]")
{
    const int rounds = scaled(100'000);
    event_loop loop;
    std::atomic<int> round{0};
    std::atomic<int> stopped{0};
    std::thread stopper{[&] {
        jitter wait{3};
        for (int i = 1; i <= rounds; ++i) {
            wait_until(round, i);
            wait();
            loop.stop();
            stopped = i;
        }
    }};
    const end_of_thread end{stopper};
    jitter wait{4};
    calling stop_from_node{[&] { loop.stop(); }};
    for (int i = 1; i <= rounds; ++i) {
        round = i;
        wait();
        if (i % 4 == 0)
            wait_until(stopped, i);
        loop.run();
        wait_until(stopped, i);
        if (i % 8 == 0) {
            loop.post(stop_from_node);
            loop.run();
        }
    }
    CHECK(stopped == rounds);
}

TEST_CASE("event_loop: a sleep whose time and whose stop come together ends once", "[stress]")
{
    const int rounds = scaled(20'000);
    loop_thread thread;
    std::atomic<int> ended{0};
    std::atomic<int> time_up{0};
    jitter wait{5};
    for (int i = 0; i < rounds; ++i) {
        std::stop_source source;
        const std::chrono::microseconds length{i % 16};
        const auto sleeper = [&]() -> support::fire_and_forget {
            const bool up = co_await thread.loop().sleep_for(length, source.get_token());
            time_up += up ? 1 : 0;
            ++ended;
        };
        sleeper(); // its await begins here, off the loop
        wait();
        source.request_stop();
        wait_until(ended, i + 1);
    }
    CHECK(ended == rounds);
    CHECK(time_up <= rounds);
}

TEST_CASE("event_loop: a million timers, armed and cancelled, need no memory and never run",
          "[stress]")
{
    const int rounds = scaled(1'000'000);
    constexpr std::size_t at_a_time = 1000;
    event_loop loop;
    int late = 0;
    struct timer : amux::scheduler::node {
        explicit timer(int& l) noexcept : node{&count}, ran{l} {}
        static void count(node& n) noexcept { ++static_cast<timer&>(n).ran; }
        int& ran;
    };
    std::vector<std::unique_ptr<timer>> timers;
    for (std::size_t i = 0; i < at_a_time; ++i)
        timers.push_back(std::make_unique<timer>(late));

    std::minstd_rand random{Catch::getSeed()};
    const auto now = loop.now();
    const std::size_t before = support::allocations();
    bool refused = false;
    for (int i = 0; i < rounds; ++i) {
        timer& t = *timers[random() % at_a_time];
        loop.cancel(t);
        loop.schedule_at(now + 1h + std::chrono::nanoseconds{random()}, t);
    }
    for (const auto& t : timers) {
        loop.cancel(*t);
        refused |= loop.cancel(*t);
    }
    CHECK(support::allocations() == before);
    CHECK_FALSE(refused);
    CHECK(loop.run_ready() == 0);
    CHECK(late == 0);
}

TEST_CASE("sync_wait: the coroutine ends on another thread, and the loop is gone at once",
          "[stress]")
{
    const int rounds = scaled(50'000);
    loop_thread other;
    const auto move_over = [&](int i) -> task<int> {
        co_await other.loop().schedule();
        co_return i;
    };
    int wrong = 0;
    for (int i = 0; i < rounds; ++i)
        wrong += sync_wait(move_over(i)) == i ? 0 : 1;
    CHECK(wrong == 0);
}

TEST_CASE("task: its end and the return of its start meet on two threads", "[stress]")
{
    // The child goes to the other thread and may end there before its start has returned here.
    const int rounds = scaled(100'000);
    loop_thread other;
    const auto child = [&](int i) -> task<int> {
        co_await other.loop().schedule();
        co_return i;
    };
    event_loop loop;
    const auto parent = [&]() -> task<int> {
        int wrong = 0;
        for (int i = 0; i < rounds; ++i) {
            const int got = co_await child(i);
            wrong += got == i ? 0 : 1;
            if (i % 4 == 0)
                co_await loop.schedule();
        }
        co_return wrong;
    };
    CHECK(loop.block_on(parent()) == 0);
}

TEST_CASE("when_all: the last of many tasks that end on two threads lets it go on, once",
          "[stress]")
{
    const int rounds = scaled(3'000);
    loop_thread a;
    loop_thread b;
    const auto child = [](event_loop& loop, int i) -> task<int> {
        co_await loop.schedule();
        if (i == 7)
            throw i;
        co_return i;
    };
    const auto parent = [&](bool fails) -> task<int> {
        std::vector<task<int>> tasks;
        for (int i = 0; i < 16; ++i)
            tasks.push_back(child(i % 2 == 0 ? a.loop() : b.loop(), fails || i != 7 ? i : 100));
        int sum = 0;
        try {
            const std::vector<int> results = co_await amux::when_all(std::move(tasks));
            for (const int r : results)
                sum += r;
        } catch (int error) {
            sum = -error;
        }
        co_return sum;
    };
    int wrong = 0;
    for (int i = 0; i < rounds; ++i)
        wrong += sync_wait(parent(i % 2 == 0)) == (i % 2 == 0 ? -7 : 213) ? 0 : 1;
    CHECK(wrong == 0);
}

TEST_CASE("task_group: tasks that are spawned and end on several threads are all joined, once",
          "[stress]")
{
    const int rounds = scaled(2'000);
    loop_thread where;
    loop_thread elsewhere;
    std::atomic<int> ran{0};
    const auto leaf = [&]() -> task<> {
        co_await elsewhere.loop().schedule();
        ++ran;
    };
    const auto branch = [&](amux::task_group& group) -> task<> {
        co_await elsewhere.loop().schedule();
        group.spawn(leaf());
        ++ran;
    };
    const auto parent = [&]() -> task<> {
        amux::task_group group{where.loop()};
        for (int i = 0; i < 8; ++i)
            group.spawn(branch(group));
        co_await group.join();
    };
    for (int i = 0; i < rounds; ++i)
        sync_wait(parent());
    CHECK(ran == rounds * 16);
}

TEST_CASE("spawn: tasks that are spawned from several threads all run", "[stress]")
{
    const int rounds = scaled(20'000);
    event_loop loop;
    int ran = 0; // only the loop's thread touches it
    const auto count = [&]() -> task<> {
        if (++ran == 3 * rounds)
            loop.stop();
        co_return;
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < rounds; ++i)
                loop.spawn(count());
        });
    }
    loop.run();
    for (std::thread& t : threads)
        t.join();
    CHECK(ran == 3 * rounds);
}

TEST_CASE("manual_event_loop: posts, sleeps and moves of time from other threads all arrive",
          "[stress]")
{
    const int rounds = scaled(20'000);
    amux::manual_event_loop loop;
    int woken = 0; // only the thread that runs the loop touches it
    std::atomic<bool> armed{false};
    const auto sleeper = [&](int i) -> support::fire_and_forget {
        co_await loop.sleep_for(std::chrono::microseconds{i % 10});
        ++woken;
    };
    std::thread arming{[&] {
        for (int i = 0; i < rounds; ++i) {
            sleeper(i);
            loop.advance(1us);
        }
        armed = true;
    }};
    while (!armed)
        loop.run_ready();
    arming.join();
    loop.advance(1s);
    loop.run_ready();
    CHECK(woken == rounds);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a group may be joined too early, forget a task or its error, or leave tasks without a home.
#include <amux/task_group.hpp>

#include <amux/asyncmux.hpp>
#include <amux/event_loop.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>

#include "support/allocation_counter.hpp"
#include "support/death.hpp"
#include "support/foreign_coroutine.hpp"
#include "support/probe.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

using amux::manual_event_loop;
using amux::task;
using amux::task_group;
using namespace std::chrono_literals;

namespace {

task<> note(std::string& log, char letter)
{
    log += letter;
    co_return;
}

task<> sleep_and_write(manual_event_loop& loop, int ms, std::string& log, char letter)
{
    co_await loop.sleep_for(std::chrono::milliseconds{ms});
    log += letter;
}

task<> fail_after(manual_event_loop& loop, int ms)
{
    co_await loop.sleep_for(std::chrono::milliseconds{ms});
    throw ms;
}

/// Somebody's own loop: it knows of no roots, and runs a node when it is told to.
class by_hand : public amux::scheduler {
public:
    void post(node& n) noexcept override { posted_ = &n; }
    void schedule_at(time_point, node& n) noexcept override { posted_ = &n; }
    bool cancel(node&) noexcept override { return false; }
    time_point now() const noexcept override { return {}; }

    void run() { std::exchange(posted_, nullptr)->run(); }

private:
    node* posted_ = nullptr;
};

task<> join(task_group& group, std::string& log)
{
    co_await group.join();
    log += '.';
}

} // namespace

TEST_CASE("task_group: join waits for every task", "[task_group]")
{
    manual_event_loop loop;
    task_group group{loop};
    std::string log;
    group.spawn(sleep_and_write(loop, 2, log, 'b'));
    group.spawn(sleep_and_write(loop, 1, log, 'a'));
    loop.spawn(join(group, log));
    loop.run_ready();
    loop.advance(1ms);
    loop.run_ready();
    CHECK(log == "a");
    loop.advance(1ms);
    loop.run_ready();
    CHECK(log == "ab.");
}

TEST_CASE("task_group: the tasks begin on the scheduler, not in the call", "[task_group]")
{
    manual_event_loop loop;
    task_group group{loop};
    std::string log;
    group.spawn(note(log, 'a'));
    CHECK(log.empty());
    loop.spawn(join(group, log));
    loop.run_ready();
    CHECK(log == "a.");
}

TEST_CASE("task_group: joining an unused one, or one whose tasks have ended, does not wait",
          "[task_group]")
{
    manual_event_loop loop;
    task_group group{loop};
    std::string log;
    const auto root = [&]() -> support::fire_and_forget {
        co_await group.join();
        log += '.';
    };
    root();
    CHECK(log == ".");
    group.spawn(note(log, 'a'));
    loop.run_ready();
    root();
    CHECK(log == ".a.");
}

TEST_CASE("task_group: a task may spawn into it while it is joined", "[task_group]")
{
    manual_event_loop loop;
    task_group group{loop};
    std::string log;
    const auto parent = [&]() -> task<> {
        co_await loop.sleep_for(1ms);
        group.spawn(sleep_and_write(loop, 1, log, 'c'));
        log += 'p';
    };
    group.spawn(parent());
    loop.spawn(join(group, log));
    for (int i = 0; i < 3; ++i) {
        loop.run_ready();
        loop.advance(1ms);
    }
    CHECK(log == "pc.");
}

TEST_CASE("task_group: join throws the first error in time, after all have ended", "[task_group]")
{
    manual_event_loop loop;
    task_group group{loop};
    std::string log;
    int caught = 0;
    group.spawn(fail_after(loop, 2));
    group.spawn(fail_after(loop, 1));
    group.spawn(sleep_and_write(loop, 3, log, 'c'));
    const auto joiner = [&]() -> task<> {
        try {
            co_await group.join();
        } catch (int ms) {
            caught = ms;
        }
    };
    loop.spawn(joiner());
    loop.run_ready();
    loop.advance(2ms);
    loop.run_ready();
    CHECK(caught == 0);
    loop.advance(1ms);
    loop.run_ready();
    CHECK(caught == 1);
    CHECK(log == "c");
}

TEST_CASE("task_group: once joined it is as new", "[task_group]")
{
    manual_event_loop loop;
    task_group group{loop};
    std::string log;
    const auto joiner = [&]() -> task<> {
        group.spawn(fail_after(loop, 0));
        try {
            co_await group.join();
        } catch (int) {
            log += 'e';
        }
        group.spawn(note(log, 'a'));
        co_await group.join();
        log += '.';
    };
    loop.spawn(joiner());
    loop.run_ready();
    CHECK(log == "ea.");
}

TEST_CASE("task_group: a task has the group's scheduler and a context without a parent",
          "[task_group]")
{
    manual_event_loop loop;
    manual_event_loop other;
    support::place mine;
    support::place found;
    const auto child = [&]() -> task<> { found = co_await support::my_place{}; };
    const auto parent = [&]() -> task<> {
        mine = co_await support::my_place{};
        task_group group{other};
        group.spawn(child());
        co_await group.join();
    };
    loop.spawn(parent());
    loop.run_ready();
    other.run_ready();
    loop.run_ready();
    CHECK(found.where == &other);
    CHECK(found.context != 0);
    CHECK(found.context != mine.context);
    CHECK(found.parent == 0);
}

TEST_CASE("task_group: the one that joins resumes on its own scheduler", "[task_group]")
{
    manual_event_loop mine;
    manual_event_loop theirs;
    task_group group{theirs};
    std::string log;
    group.spawn(note(log, 'a'));
    mine.spawn(join(group, log));
    mine.run_ready();
    theirs.run_ready();
    CHECK(log == "a");
    CHECK(mine.run_ready() == 1);
    CHECK(log == "a.");
}

TEST_CASE("task_group: without a scheduler the one that joins resumes where the last task ends",
          "[task_group]")
{
    manual_event_loop loop;
    task_group group{loop};
    std::string log;
    group.spawn(note(log, 'a'));
    const auto root = [&]() -> support::fire_and_forget {
        co_await group.join();
        log += '.';
    };
    root();
    CHECK(loop.run_ready() == 1);
    CHECK(log == "a.");
}

TEST_CASE("task_group: a task that has ended leaves nothing, before the join", "[task_group]")
{
    manual_event_loop loop;
    task_group group{loop};
    std::string log;
    log.reserve(10'000);
    bool gone = false;
    const auto keep = [](support::flag_on_destruction) -> task<> { co_return; };
    group.spawn(keep(support::flag_on_destruction{gone}));
    loop.run_ready();
    CHECK(gone);
    const auto before = support::live_allocations();
    for (int i = 0; i < 1000; ++i) {
        group.spawn(note(log, 'a'));
        loop.run_ready();
    }
    CHECK(support::live_allocations() == before);
    loop.spawn(join(group, log));
    loop.run_ready();
}

TEST_CASE("task_group: what a task refers to outlives it: its frame is gone when join returns",
          "[task_group]")
{
    bool gone = false;
    bool gone_at_join = false;
    const auto keep = [](support::flag_on_destruction) -> task<> { co_return; };
    const auto parent = [&](manual_event_loop& loop) -> task<> {
        task_group group{loop};
        group.spawn(keep(support::flag_on_destruction{gone}));
        co_await group.join();
        gone_at_join = gone;
    };
    manual_event_loop loop;
    loop.spawn(parent(loop));
    loop.run_ready();
    CHECK(gone_at_join);
}

TEST_CASE("task_group: destroyed before it is joined, it ends the program with a message",
          "[task_group][death]")
{
    const std::string running = support::death_of([] {
        manual_event_loop loop;
        std::string log;
        task_group group{loop};
        group.spawn(note(log, 'a'));
    });
    CHECK(running.starts_with("amux: a task_group is destroyed before it is joined\n"));
    const std::string ended = support::death_of([] {
        manual_event_loop loop;
        std::string log;
        task_group group{loop};
        group.spawn(note(log, 'a'));
        loop.run_ready();
    });
    CHECK(ended == running);
    const std::string elsewhere = support::death_of([] {
        by_hand loop;
        std::string log;
        task_group group{loop};
        group.spawn(note(log, 'a'));
    });
    CHECK(elsewhere == running);
}

TEST_CASE("task_group: one that joins without a scheduler is destroyed before its turn comes",
          "[task_group]")
{
    by_hand loop;
    std::string log;
    task_group group{loop};
    group.spawn(note(log, 'a'));
    const auto joins = [&]() -> support::hooked_coroutine {
        co_await group.join();
        log += '.';
    };
    std::optional<support::hooked_coroutine> joiner{joins()};
    joiner->start(nullptr);
    // Inside a coroutine that was resumed by a release, so that what is resumed next waits for its end.
    amux::asyncmux<int> mux;
    auto holder = mux.try_lock(1);
    const auto ends_it = [&]() -> support::fire_and_forget {
        const auto guard = co_await mux.lock(1);
        loop.run();
        log += 'b';
        joiner.reset();
    };
    ends_it();
    holder.unlock();
    CHECK(log == "ab");
}

TEST_CASE("task_group: two that join at a time end the program with a message",
          "[task_group][death]")
{
    const std::string said = support::death_of([] {
        manual_event_loop loop;
        std::string log;
        task_group group{loop};
        group.spawn(sleep_and_write(loop, 1, log, 'a'));
        loop.spawn(join(group, log));
        loop.spawn(join(group, log));
        loop.run_ready();
    });
    CHECK(said.starts_with("amux: a task_group is joined by two coroutines at a time\n"));
}

TEST_CASE("task_group: a loop that dies takes groups with it that were not joined yet",
          "[task_group]")
{
    bool gone[2] = {};
    auto loop = std::make_unique<manual_event_loop>();
    const auto child = [&](support::flag_on_destruction) -> task<> {
        co_await loop->sleep_for(1h);
    };
    const auto parent = [&](bool joins) -> task<> {
        task_group group{*loop};
        group.spawn(child(support::flag_on_destruction{gone[0]}));
        co_await loop->schedule();
        group.spawn(child(support::flag_on_destruction{gone[1]})); // posted, not begun
        if (!joins)
            co_await loop->sleep_for(1h);
        co_await group.join();
    };
    for (const bool joins : {true, false}) {
        gone[0] = gone[1] = false;
        loop = std::make_unique<manual_event_loop>();
        loop->spawn(parent(joins));
        loop->run_ready();
        loop->run_ready();
        loop.reset();
        CHECK(gone[0]);
        CHECK(gone[1]);
    }
}

TEST_CASE("task_group: a loop that dies may take a group before the coroutine that joins it",
          "[task_group]")
{
    auto loop = std::make_unique<manual_event_loop>();
    task_group* shared = nullptr;
    const auto child = [&]() -> task<> { co_await loop->sleep_for(1h); };
    const auto owner = [&]() -> task<> {
        task_group group{*loop};
        group.spawn(child());
        shared = &group;
        co_await loop->sleep_for(1h);
    };
    bool gone = false;
    const auto joiner = [&](support::flag_on_destruction) -> task<> { co_await shared->join(); };
    loop->spawn(owner());
    loop->run_ready();
    loop->spawn(joiner(support::flag_on_destruction{gone}));
    loop->run_ready();
    loop.reset();
    CHECK(gone);
}

TEST_CASE(
    "task_group: one that joins is destroyed after the last task has ended, and never resumed",
    "[task_group]")
{
    manual_event_loop mine;
    manual_event_loop theirs;
    std::string log;
    task_group group{theirs};
    group.spawn(note(log, 'a'));
    const auto joiner = [&]() -> support::hooked_coroutine {
        co_await group.join();
        log += '.';
    };
    {
        auto j = joiner();
        j.start(&mine);
        theirs.run_ready();
    }
    CHECK(mine.run_ready() == 0);
    CHECK(log == "a");
}

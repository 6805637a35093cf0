// SPDX-License-Identifier: BSL-1.0
// Without this file tasks that end, sleep and lock on several threads meet only as a machine happens to run them.
#include "schedules/explorer.hpp"
#include "schedules/frame.hpp"
#include "schedules/policy.hpp"

#include <amux/asyncmux.hpp>
#include <amux/event_loop.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>
#include <amux/task_group.hpp>
#include <amux/when_all.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <chrono>
#include <coroutine>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

namespace {

using namespace schedules;
using namespace std::chrono_literals;

/// Thread 0 runs a loop on which a coroutine sleeps; another thread stops the sleep. The coroutine begins on the loop or
/// on a thread of its own, and may be destroyed on the loop.
class sleeper final : public program {
public:
    sleeper(bool begins_elsewhere, bool is_destroyed)
        : begins_elsewhere_{begins_elsewhere}, is_destroyed_{is_destroyed}
    {}

    int threads() const override { return begins_elsewhere_ ? 3 : 2; }
    std::string text() const override
    {
        return std::string{"a sleep that begins "} +
               (begins_elsewhere_ ? "on another thread" : "on its loop") +
               (is_destroyed_ ? ", and is destroyed" : "");
    }

    void begin() override
    {
        loop_.emplace();
        stop_.emplace();
        starter_.emplace(*this, &starter::start);
        ender_.emplace(*this, &starter::end);
        answer_.reset();
        asleep_ = gone_ = false;
        if (!begins_elsewhere_)
            loop_->post(*starter_);
        if (is_destroyed_)
            loop_->post(*ender_);
    }

    void run(int t) override
    {
        if (t == 0)
            return loop_->run();
        if (t == 1)
            stop_->request_stop();
        else
            start();
    }

    void end() override
    {
        require(answer_.has_value() != gone_, "a sleep has not one end");
        loop_.reset();
        stop_.reset();
        frame.require_untouched("a coroutine that was gone has been written to");
    }

    watched_memory frame;

private:
    struct starter : amux::scheduler::node {
        starter(sleeper& s, function f) noexcept : node{f}, self{s} {}
        static void start(node& n) noexcept { static_cast<starter&>(n).self.start(); }
        static void end(node& n) noexcept { static_cast<starter&>(n).self.destroy(); }
        sleeper& self;
    };

    void start()
    {
        const coroutine c = sleep(*this);
        handle_ = c.frame;
        asleep_ = true;
        c.frame.resume();
    }

    static coroutine sleep(sleeper& self)
    {
        self.due_ = amux::clock::now() + 10ms;
        const bool is_up = co_await self.loop_->sleep_until(self.due_, self.stop_->get_token());
        point("a coroutine goes on");
        self.woke(is_up);
    }

    void woke(bool is_up)
    {
        require(thread() == 0, "a sleeper wakes elsewhere than on its loop");
        require(!gone_ && !answer_, "a sleeper wakes twice, or after its end");
        require(is_up ? amux::clock::now() >= due_ : stop_->stop_requested(),
                "a sleeper wakes for no reason");
        answer_ = is_up;
        loop_->stop();
    }

    /// On the loop; once the coroutine sleeps, and if it still does.
    void destroy()
    {
        if (begins_elsewhere_ || !asleep_ || answer_)
            return;
        gone_ = true;
        handle_.destroy();
        loop_->stop();
    }

    const bool begins_elsewhere_;
    const bool is_destroyed_;
    std::optional<amux::event_loop> loop_;
    std::optional<std::stop_source> stop_;
    std::optional<starter> starter_;
    std::optional<starter> ender_;
    std::coroutine_handle<> handle_;
    amux::clock::time_point due_{};
    std::optional<bool> answer_;
    bool asleep_ = false;
    bool gone_ = false;
};

/// Tasks that end on other threads, each on a loop that runs there; thread 0 waits for them.
class tasks final : public program {
public:
    tasks(bool in_group, int loops) : in_group_{in_group}, others_{loops} {}

    int threads() const override { return 1 + others_; }
    std::string text() const override
    {
        return std::string{in_group_ ? "a task_group" : "when_all"} + " whose tasks end on " +
               std::to_string(others_) + " other threads";
    }

    void begin() override
    {
        for (auto& l : loops_)
            l.emplace();
        ended_ = 0;
        joined_ = false;
    }

    void run(int t) override
    {
        const auto number = static_cast<std::size_t>(t);
        if (t != 0)
            return loops_[number]->run();
        loops_[0]->block_on(in_group_ ? join() : all());
        joined_ = true;
        for (int other = 1; other <= others_; ++other)
            loops_[static_cast<std::size_t>(other)]->stop();
    }

    void end() override
    {
        require(joined_, "the tasks are not waited for");
        for (auto& l : loops_)
            l.reset();
    }

private:
    amux::task<> move_to(std::size_t loop)
    {
        co_await loops_[loop]->schedule();
        require(thread() == static_cast<int>(loop), "a task is on another thread");
        point("a task goes on");
        ++ended_;
    }

    amux::task<> join()
    {
        amux::task_group group{*loops_[0]};
        group.spawn(move_to(1));
        group.spawn(move_to(others_ == 1 ? 1 : 2));
        co_await group.join();
        require(thread() == 0, "who joins goes on elsewhere");
        require(ended_ == 2, "a task is joined that has not ended");
    }

    amux::task<> all()
    {
        co_await amux::when_all(move_to(1), move_to(others_ == 1 ? 1 : 2));
        require(ended_ == 2, "a task is waited for that has not ended");
    }

    const bool in_group_;
    const int others_;
    std::array<std::optional<amux::event_loop>, 3> loops_;
    int ended_ = 0;
    bool joined_ = false;
};

/// Threads that block until they have a lock of the same mux, each with a loop of its own.
class lockers final : public program {
public:
    lockers(int threads, bool timed, bool shared)
        : threads_{threads}, timed_{timed}, shared_{shared}
    {}

    int threads() const override { return threads_; }
    std::string text() const override
    {
        return std::to_string(threads_) + " threads that sync_wait for a lock" +
               (timed_ ? ", the last for a time" : "") +
               (shared_ ? ", the first a shared one" : "");
    }

    void begin() override
    {
        mux_watcher::now = nullptr;
        mux_.emplace();
        inside_ = {};
        got_ = 0;
    }

    void run(int t) override
    {
        if (timed_ && t == threads_ - 1) {
            auto g = amux::sync_wait(mux_->try_lock_for(0, 10ms));
            require(g.owns_lock() || now() >= 10'000'000, "a time-out is early");
            if (g)
                hold(false);
        } else if (shared_ && t == 0) {
            const auto g = amux::sync_wait(mux_->lock_shared(0));
            hold(true);
        } else {
            const auto g = amux::sync_wait(mux_->lock(0));
            hold(false);
        }
    }

    void end() override
    {
        require(got_ == threads_ || (timed_ && got_ == threads_ - 1), "a lock was not given");
        require(mux_->tracked_keys() == 0, "a key is tracked at the end");
        mux_.reset();
    }

private:
    void hold(bool is_shared)
    {
        require(inside_[0] == 0 && (is_shared || inside_[1] == 0), "two hold what one can");
        ++inside_[is_shared ? 1 : 0];
        point("holds");
        --inside_[is_shared ? 1 : 0];
        ++got_;
    }

    const int threads_;
    const bool timed_;
    const bool shared_;
    std::optional<amux::asyncmux<int, explored<2>>> mux_;
    std::array<int, 2> inside_{}; // exclusive, shared
    int got_ = 0;
};

} // namespace

TEST_CASE("all schedules: a sleep is stopped by another thread", "[schedules][task]")
{
    explorer e{3};
    for (const bool begins_elsewhere : {false, true}) {
        for (const bool is_destroyed : {false, true}) {
            sleeper p{begins_elsewhere, is_destroyed};
            e.run(p);
        }
    }
    CHECK((e.counted().programs > 0 || !e.complete()));
}

TEST_CASE("all schedules: tasks end on other threads than they are waited for", "[schedules][task]")
{
    explorer e{3};
    for (const bool in_group : {false, true}) {
        for (const int loops : {1, 2}) {
            tasks p{in_group, loops};
            e.run(p);
        }
    }
    CHECK((e.counted().programs > 0 || !e.complete()));
}

TEST_CASE("all schedules: threads block until they have a lock", "[schedules][task]")
{
    explorer e{3};
    for (const int threads : {2, 3}) {
        for (const bool timed : {false, true}) {
            for (const bool shared : {false, true}) {
                lockers p{threads, timed, shared};
                e.run(p);
            }
        }
    }
    CHECK((e.counted().programs > 0 || !e.complete()));
}

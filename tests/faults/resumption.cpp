// SPDX-License-Identifier: BSL-1.0
// Without this file a waiter may wake at the wrong place, under an internal lock, or on an ever deeper stack.
#include "support/death.hpp"
#include "support/request.hpp"
#include "support/scale.hpp"

#include <amux/asyncmux.hpp>
#include <amux/event_loop.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <stop_token>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::asyncmux;
using support::journal;
using support::request;
using guard = asyncmux<>::guard;

TEST_CASE("asyncmux: a waiter resumes where resume_on says, whatever its promise says",
          "[asyncmux][resume]")
{
    amux::manual_event_loop own;
    amux::manual_event_loop other;
    asyncmux<> mux;
    request holder{mux.lock("k")};
    request waiter{mux.lock("k").resume_on(other), {.where = &own}};
    holder.unlock();
    own.run_ready();
    CHECK(waiter.state() == "waits");
    other.run_ready();
    CHECK(waiter.state() == "owns");
}

TEST_CASE("asyncmux: a null scheduler falls through to the next place", "[asyncmux][resume]")
{
    amux::scheduler* const none = nullptr;
    amux::manual_event_loop own;
    asyncmux<> mux;
    request holder{mux.lock("k")};
    request on_own{mux.lock("k").resume_on(none), {.where = &own}};
    request inside{mux.lock("k").resume_on(none)};
    holder.unlock();
    CHECK(on_own.state() == "waits");
    own.run_ready();
    CHECK(on_own.state() == "owns");
    on_own.unlock();
    CHECK(inside.state() == "owns");
}

TEST_CASE("asyncmux: a lock that is granted at once does not hop", "[asyncmux][resume]")
{
    const bool detects = GENERATE(false, true);
    amux::manual_event_loop loop;
    asyncmux<> mux{{.prevent_reentrancy = detects}};
    request one{mux.lock("k").resume_on(loop), {.where = &loop}};
    request several{mux.lock_all("a", "b").resume_on(loop), {.where = &loop}};
    request timed{mux.try_lock_for("t", 1s).resume_on(loop), {.where = &loop}};
    CHECK(one.state() == "owns");
    CHECK(several.state() == "owns");
    CHECK(timed.state() == "owns");
    CHECK(loop.run_ready() == 0);
}

TEST_CASE("asyncmux: without a scheduler a waiter runs inside the call that lets it in",
          "[asyncmux][resume]")
{
    asyncmux<> mux;
    std::stop_source stop;
    guard holder = mux.try_lock("k");
    request waiter{mux.lock_shared("k", stop.get_token())};
    request behind{mux.lock_shared("k")};
    SECTION("unlock")
    {
        holder.unlock();
        CHECK(waiter.state() == "owns");
    }
    SECTION("the destructor of a guard")
    {
        {
            guard ends = std::move(holder);
        }
        CHECK(waiter.state() == "owns");
    }
    SECTION("move assignment")
    {
        holder = {};
        CHECK(waiter.state() == "owns");
    }
    SECTION("downgrade")
    {
        holder.downgrade();
        CHECK(waiter.state() == "owns");
    }
    SECTION("request_stop")
    {
        stop.request_stop();
        CHECK(waiter.state() == "stopped");
        CHECK(behind.state() == "waits");
    }
    SECTION("close")
    {
        mux.close();
        CHECK(waiter.state() == "closed");
    }
}

namespace {

/// Uses every member of the mux from inside a resumption.
support::fire_and_forget calls_back(asyncmux<>& mux, int& steps)
{
    guard g = co_await mux.lock("k");
    steps += mux.tracked_keys() == 1 ? 1 : 0;
    steps += mux.snapshot().keys.at(0).holders == 1 ? 1 : 0;
    steps += mux.try_lock("k") ? 0 : 1;
    steps += mux.try_lock("other") ? 1 : 0;
    guard other = co_await mux.lock_all("a", "b");
    g.downgrade();
    g.unlock();
    g = co_await mux.lock("k");
    ++steps;
}

} // namespace

TEST_CASE("asyncmux: a resumed waiter may use the same mux in every way", "[asyncmux][resume]")
{
    asyncmux<> mux;
    int steps = 0;
    request holder{mux.lock("k")};
    calls_back(mux, steps);
    holder.unlock();
    CHECK(steps == 5);
    CHECK(mux.tracked_keys() == 0);
}

namespace {

support::fire_and_forget measures_depth(asyncmux<>& mux, int& depth, int& deepest)
{
    guard g = co_await mux.lock("k");
    deepest = std::max(deepest, ++depth);
    g.unlock(); // lets the next one in, who must not run inside this
    --depth;
}

} // namespace

TEST_CASE("asyncmux: a waiter that releases does not run the next one on top of itself",
          "[asyncmux][resume]")
{
    asyncmux<> mux;
    int depth = 0;
    int deepest = 0;
    request holder{mux.lock("k")};
    for (int i = 0; i != 10; ++i)
        measures_depth(mux, depth, deepest);
    holder.unlock();
    CHECK(depth == 0);
    CHECK(deepest == 1);
    CHECK(mux.tracked_keys() == 0);
}

namespace {

amux::task<int> locks_once_more(asyncmux<>& mux)
{
    guard g = co_await mux.lock("other");
    co_return 7;
}

/// Blocks its thread, inside a resumption, on what only a resumption queued behind it can release.
support::fire_and_forget pumps(asyncmux<>& mux, int& result)
{
    guard g = co_await mux.lock_shared("k");
    result = amux::sync_wait(locks_once_more(mux));
}

support::fire_and_forget releases_other(asyncmux<>& mux, guard& other)
{
    guard g = co_await mux.lock_shared("k");
    other.unlock();
}

} // namespace

TEST_CASE("asyncmux: a loop run inside a resumption runs what is queued behind it",
          "[asyncmux][resume]")
{
    asyncmux<> mux;
    int result = 0;
    guard other = mux.try_lock("other");
    guard holder = mux.try_lock("k");
    pumps(mux, result);
    releases_other(mux, other);
    holder.unlock();
    CHECK(result == 7);
    CHECK(mux.tracked_keys() == 0);
}

namespace {

struct rethrows {
    struct promise_type {
        rethrows get_return_object() const noexcept { return {}; }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const { throw; }
    };
};

rethrows throws_after_the_lock(asyncmux<>& mux)
{
    guard g = co_await mux.lock("k");
    throw std::runtime_error{"left"};
}

} // namespace

TEST_CASE("asyncmux: an exception that leaves a resumed coroutine ends the program",
          "[asyncmux][resume]")
{
    const std::string end = support::death_of([] {
        asyncmux<> mux;
        guard holder = mux.try_lock("k");
        throws_after_the_lock(mux);
        try {
            holder.unlock();
        } catch (...) {
            std::fputs("caught", stderr);
        }
    });
    CHECK_THAT(end, !Catch::Matchers::StartsWith("survived"));
}

namespace {

/// A port as a user writes one: it only queues in `post`, and runs when it is told to.
class own_scheduler : public amux::scheduler {
public:
    explicit own_scheduler(bool honest = true) : honest_{honest} {}
    void post(node& n) noexcept override { queue_.push_back(&n); }
    void schedule_at(time_point due, node& n) noexcept override
    {
        n.due = due;
        timers_.push_back(&n);
    }
    bool cancel(node& n) noexcept override
    {
        return std::erase(queue_, &n) + std::erase(timers_, &n) != 0 && honest_;
    }
    time_point now() const noexcept override { return now_; }

    int run(std::chrono::milliseconds passed = {})
    {
        now_ += passed;
        for (node* n : std::vector(timers_)) {
            if (n->due <= now_) {
                std::erase(timers_, n);
                queue_.push_back(n);
            }
        }
        int count = 0;
        while (!queue_.empty()) {
            node* const n = queue_.front();
            queue_.erase(queue_.begin());
            n->run();
            ++count;
        }
        return count;
    }
    bool armed() const { return !timers_.empty(); }

private:
    std::vector<node*> queue_;
    std::vector<node*> timers_;
    time_point now_{};
    const bool honest_; // what `cancel` answers
};

} // namespace

TEST_CASE("asyncmux: a scheduler of the user's own runs waiters, timers and cancellations",
          "[asyncmux][resume]")
{
    own_scheduler mine;
    asyncmux<> mux;
    std::stop_source stop;
    request holder{mux.lock("k")};
    request granted{mux.try_lock_for("k", 10ms), {.where = &mine}};
    request expires{mux.lock_all("k", "l", stop.get_token()).resume_on(mine)};
    request times_out{mux.try_lock_for("k", 20ms), {.where = &mine}};
    holder.unlock();
    CHECK(granted.state() == "waits");
    CHECK(mine.run() == 1);
    CHECK(granted.state() == "owns");
    CHECK(mine.run(15ms) == 0); // the timer of the granted one is gone
    mine.run(5ms);
    CHECK(times_out.state() == "empty");
    CHECK_FALSE(mine.armed());
    stop.request_stop();
    CHECK(expires.state() == "waits");
    mine.run();
    CHECK(expires.state() == "stopped");
}

TEST_CASE("asyncmux: a scheduler whose cancel always says no holds up no destructor for ever",
          "[asyncmux][resume]")
{
    const bool granted = GENERATE(false, true);
    own_scheduler liar{false};
    asyncmux<> mux;
    request holder{mux.lock("k")};
    request told{mux.lock("k"), {.where = &liar}};
    request next{mux.lock("j")};
    if (granted)
        holder.unlock();
    else
        mux.close();
    told.destroy();
    CHECK(liar.run() == 0);
    next.unlock();
    if (!granted)
        holder.unlock();
    CHECK(mux.tracked_keys() == 0);
}

namespace {

/// Awaits through a layer that has forgotten the type of the promise, as some frameworks do.
template <class Awaiter>
struct erased {
    Awaiter& inner;
    bool await_ready() { return inner.await_ready(); }
    bool await_suspend(std::coroutine_handle<> h) { return inner.await_suspend(h); }
    auto await_resume() { return inner.await_resume(); }
};
support::fire_and_forget awaits_erased(asyncmux<>& mux, bool& owns)
{
    auto awaiter = mux.lock("k").operator co_await();
    guard g = co_await erased<decltype(awaiter)>{awaiter};
    owns = g.owns_lock();
}

} // namespace

TEST_CASE("asyncmux: behind a type-erased handle a waiter resumes in the releasing call",
          "[asyncmux][resume]")
{
    asyncmux<> mux{{.prevent_reentrancy = true}};
    bool owns = false;
    guard holder = mux.try_lock("k");
    awaits_erased(mux, owns);
    CHECK_FALSE(owns);
    holder.unlock();
    CHECK(owns);
}

TEST_CASE("asyncmux: a task waits on the loop that runs it, and so does what it awaits",
          "[asyncmux][resume]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    journal log;
    struct {
        amux::task<> inner(asyncmux<>& m, journal& l, const char* name)
        {
            guard g = co_await m.lock("k");
            l.emplace_back(name);
        }
        amux::task<> outer(asyncmux<>& m, journal& l, const char* name)
        {
            co_await inner(m, l, name);
        }
    } tasks;
    guard holder = mux.try_lock("k");
    loop.spawn(tasks.outer(mux, log, "first"));
    loop.spawn(tasks.inner(mux, log, "second"));
    loop.run_ready();
    holder.unlock();
    CHECK(log.empty());
    CHECK(loop.run_ready() == 2);
    CHECK(log == journal{"first", "second"});
}

namespace {

amux::task<> locks_often(asyncmux<int>& mux, int rounds)
{
    for (int i = 0; i != rounds; ++i) {
        auto one = co_await mux.lock(i);
        auto timed = co_await mux.try_lock_for(-1, 1h);
        auto set = co_await mux.lock_all_shared(-2, -3);
        const int inner = co_await mux.with_lock(int{-4}, [&] { return i; });
        if (inner != i || !timed)
            throw std::runtime_error{"a free lock was refused"};
    }
}

} // namespace

TEST_CASE("asyncmux: a coroutine that never has to wait locks a million times on one stack",
          "[asyncmux][resume]")
{
    const bool detects = GENERATE(false, true);
    asyncmux<int> mux{{.prevent_reentrancy = detects}};
    amux::sync_wait(locks_often(mux, support::scaled(detects ? 100000 : 1000000)));
    CHECK(mux.tracked_keys() == 0);
}

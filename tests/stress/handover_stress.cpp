// SPDX-License-Identifier: BSL-1.0
// Without this file faults that readers/writer locks and async semaphores have had elsewhere may be ours, once in 10^5
// times: a reader that holds alone, a try that disturbs others, a wake-up that two wakers leave to each other.
#include "support/partner.hpp"
#include "support/request.hpp"
#include "support/scale.hpp"

#include <amux/asyncmux.hpp>
#include <amux/event_loop.hpp>
#include <amux/loop_thread.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::asyncmux;
using support::fire_and_forget;
using support::outcome;
using support::partner;
using support::request;
using support::scaled;
using support::waits;
using guard = asyncmux<int>::guard;

namespace {

/// Takes the lock and keeps it.
template <class Operation>
fire_and_forget keeps(Operation asked, guard& slot, std::atomic<int>& in)
{
    guard g = co_await std::move(asked);
    slot = std::move(g);
    ++in;
}

/// A thread that does one thing without a pause, as long as it lives.
class pest {
public:
    template <class F>
    explicit pest(F work)
        : thread_{[this, work] {
              while (!ended_.load(std::memory_order_relaxed)) {
                  work();
                  begun_.store(true, std::memory_order_relaxed);
              }
          }}
    {
        while (!begun_.load(std::memory_order_relaxed))
            std::this_thread::yield();
    }
    ~pest()
    {
        ended_ = true;
        thread_.join();
    }

private:
    std::atomic<bool> begun_{false};
    std::atomic<bool> ended_{false};
    std::thread thread_;
};

} // namespace

// Seen in Windows' SRWLOCK, under std::shared_mutex: a writer leaves while several readers arrive, one of them gets in,
// and the others wait until it goes.
TEST_CASE("asyncmux: readers that arrive while a writer leaves all hold at the same time",
          "[asyncmux][stress]")
{
    enum class leaves { unlock, downgrade, stop };
    const auto how = GENERATE(leaves::unlock, leaves::downgrade, leaves::stop);
    asyncmux<int> mux;
    std::array<guard, 2> readers;
    std::atomic<int> in{0};
    partner first{[&] { keeps(mux.lock_shared(1), readers[0], in); }};
    partner second{[&] { keeps(mux.lock_shared(), readers[1], in); }};
    for (int i = 0, rounds = scaled(30000); i != rounds; ++i) {
        std::stop_source stop;
        outcome end;
        long data = 0;
        guard holder = how == leaves::stop ? mux.try_lock_shared(1) : mux.try_lock(1);
        if (how == leaves::stop)
            waits(mux.lock(1, stop.get_token()), end, data);
        in = 0;
        first.race([&] {
            second.race([&] {
                if (how == leaves::unlock)
                    holder.unlock();
                else if (how == leaves::downgrade)
                    holder.downgrade();
                else
                    stop.request_stop();
            });
        });
        REQUIRE(in == 2);
        readers = {};
    }
}

// std::shared_mutex::try_lock may fail although the lock is free; amux says that it does not.
TEST_CASE("asyncmux: a try for what is free does not fail because others are at work",
          "[asyncmux][stress]")
{
    asyncmux<int> mux;
    const guard third = mux.try_lock(3); // so that whoever wants everything fails
    const pest other{[&] {
        static_cast<void>(mux.try_lock(2));
        static_cast<void>(mux.try_lock());
        static_cast<void>(mux.try_lock_all(2, 3));
    }};
    int failed = 0;
    for (int i = 0, rounds = scaled(3000000); i != rounds; ++i)
        failed += mux.try_lock(1) ? 0 : 1;
    CHECK(failed == 0);
}

// Seen in locks whose try adds itself to a counter and takes itself away again: for a moment others fail, too. And in
// glibc 2.25 to 2.29: one that fails beside a reader leaves a flag behind, and a later reader sleeps for ever.
TEST_CASE("asyncmux: a try that fails is not seen by others, not even for a moment",
          "[asyncmux][stress]")
{
    asyncmux<int> mux;
    const guard reader = mux.try_lock_shared(1);
    int failed = 0;
    {
        const pest writer{[&] {
            static_cast<void>(mux.try_lock(1));
            static_cast<void>(mux.try_lock());
            static_cast<void>(mux.try_lock_all(2, 1));
        }};
        for (int i = 0, rounds = scaled(1000000); i != rounds; ++i) {
            outcome end;
            long data = 0;
            failed += mux.try_lock_shared(1) ? 0 : 1;
            failed += mux.try_lock_shared() ? 0 : 1;
            waits(mux.lock_shared(1), end, data);
            REQUIRE(end.over()); // it had nothing to wait for
        }
    }
    CHECK(failed == 0);
    CHECK(mux.snapshot().keys.size() == 1);
}

// Seen in java.util.concurrent's Semaphore: of two releases at one moment each takes the other for the one that goes on
// waking, and some who could run sleep.
TEST_CASE("asyncmux: two releases at the same moment let in everybody whom they held back",
          "[asyncmux][stress]")
{
    asyncmux<int> mux;
    guard theirs;
    std::array<guard, 7> got;
    std::atomic<int> in{0};
    partner releaser{[&] { theirs.unlock(); }};
    for (int i = 0, rounds = scaled(30000); i != rounds; ++i) {
        guard ours = mux.try_lock(1);
        theirs = mux.try_lock(2);
        in = 0;
        keeps(mux.lock_shared(1), got[0], in);
        keeps(mux.lock_all_shared(2, 1), got[1], in);
        keeps(mux.lock_shared(2), got[2], in);
        keeps(mux.lock_shared(), got[3], in);
        keeps(mux.lock_all_shared(1, 2, 3), got[4], in);
        keeps(mux.lock_shared(1), got[5], in);
        keeps(mux.lock_shared(3), got[6], in);
        releaser.race([&] { ours.unlock(); });
        REQUIRE(in == 7);
        got = {};
    }
    CHECK(mux.tracked_keys() == 0);
}

// Seen in a timer that meets a release and a cancellation: two of them believe that the request is theirs to end.
TEST_CASE("asyncmux: of a grant, a stop and a time-out at one moment exactly one happens",
          "[asyncmux][stress]")
{
    amux::manual_event_loop loop;
    asyncmux<int> mux;
    guard holder;
    std::stop_source stop;
    partner releaser{[&] { holder.unlock(); }};
    partner stopper{[&] { stop.request_stop(); }};
    for (int i = 0, rounds = scaled(30000); i != rounds; ++i) {
        stop = std::stop_source{};
        holder = mux.try_lock(1);
        request timed{mux.try_lock_for(1, 1ms, stop.get_token()), {.where = &loop}};
        request behind{mux.lock(1), {.where = &loop}};
        releaser.race([&] {
            stopper.race([&] {
                loop.advance(1ms);
                loop.run_ready();
            });
        });
        loop.run_ready();
        if (timed.state() == "owns") {
            REQUIRE(behind.state() == "waits");
            timed.unlock();
            loop.run_ready();
        } else {
            REQUIRE(timed.state() == "empty");
        }
        REQUIRE(behind.state() == "owns");
    }
    CHECK(mux.tracked_keys() == 0);
}

// Seen in an async mutex in which the second of two neighbours that are cancelled takes the lock for free.
TEST_CASE("asyncmux: two neighbours are stopped while the lock is released, and the third gets it",
          "[asyncmux][stress]")
{
    asyncmux<int> mux;
    std::array<std::stop_source, 2> stops;
    partner first_stopper{[&] { stops[0].request_stop(); }};
    partner second_stopper{[&] { stops[1].request_stop(); }};
    for (int i = 0, rounds = scaled(30000); i != rounds; ++i) {
        stops = {};
        std::array<outcome, 3> ends;
        long data = 0;
        guard holder = mux.try_lock(1);
        waits(mux.lock(1, stops[0].get_token()), ends[0], data);
        waits(mux.lock(1, stops[1].get_token()), ends[1], data);
        waits(mux.lock(1), ends[2], data);
        const bool released = i % 2 == 0;
        first_stopper.race([&] {
            second_stopper.race([&] {
                if (released)
                    holder.unlock();
            });
        });
        REQUIRE(ends[0].once());
        REQUIRE(ends[1].once());
        REQUIRE(ends[2].over() == released);
        if (!released)
            holder.unlock();
        REQUIRE(ends[2].granted == 1);
        REQUIRE(data == ends[0].granted + ends[1].granted + 1);
    }
}

namespace {

amux::task<> locks_once(asyncmux<int>& mux)
{
    auto g = co_await mux.lock(1);
}

} // namespace

// Seen in asynchronous locks whose hand-over goes to a loop that just ends: the lock is gone with it.
TEST_CASE("asyncmux: a loop that ends at the moment of a grant hands the lock on",
          "[asyncmux][stress]")
{
    amux::loop_thread alive;
    asyncmux<int> mux;
    guard holder;
    partner releaser{[&] { holder.unlock(); }};
    for (int i = 0, rounds = scaled(3000); i != rounds; ++i) {
        holder = mux.try_lock(1);
        auto dies = std::make_unique<amux::loop_thread>();
        dies->loop().spawn(locks_once(mux));
        while (mux.snapshot().keys.at(0).waiters == 0)
            std::this_thread::yield();
        outcome next;
        long data = 0;
        waits(mux.lock(1).resume_on(alive.loop()), next, data);
        releaser.race([&] { dies.reset(); });
        next.wait();
        REQUIRE(next.granted == 1);
        const guard last = amux::sync_wait(mux.lock(1)); // after it has given it back
    }
}

namespace {

amux::task<> locks_everything(asyncmux<int>& mux, int rounds)
{
    for (int i = 0; i != rounds; ++i) {
        auto one = co_await mux.lock(1);
        one.downgrade();
        one.unlock();
        auto two = co_await mux.lock_all_shared(1, 2);
        two.unlock();
        auto whole = co_await mux.lock();
    }
}

} // namespace

// Seen in observers that walk the queue, or read several counters, while a hand-over is under way.
TEST_CASE("asyncmux: a snapshot shows one moment, whatever is under way", "[asyncmux][stress]")
{
    const int rounds = scaled(200000);
    asyncmux<int> mux;
    std::atomic<int> running{2};
    std::array<std::thread, 2> threads;
    for (std::thread& t : threads) {
        t = std::thread{[&] {
            amux::sync_wait(locks_everything(mux, rounds));
            --running;
        }};
    }
    int wrong = 0;
    const auto look = [&wrong](const amux::lock_counts& c) {
        wrong += c.holders > 2 || c.waiters > 2 || c.granted_not_resumed > c.holders;
        wrong += c.holders > 1 && c.mode == amux::lock_mode::exclusive;
    };
    while (running != 0) {
        const auto seen = mux.snapshot();
        look(seen.whole);
        for (const auto& key : seen.keys) {
            look(key);
            const bool both = key.holders != 0 && seen.whole.holders != 0;
            wrong += both || key.holders + key.waiters == 0;
        }
    }
    for (std::thread& t : threads)
        t.join();
    CHECK(wrong == 0);
    CHECK(mux.snapshot().keys.empty());
}

// SPDX-License-Identifier: BSL-1.0
// Without this file two threads may meet inside a lock, lose a wake-up or touch what the other has destroyed.
#include "support/foreign_coroutine.hpp"
#include "support/partner.hpp"
#include "support/request.hpp"
#include "support/scale.hpp"

#include <amux/asyncmux.hpp>
#include <amux/event_loop.hpp>
#include <amux/loop_thread.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>
#include <amux/when_all.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
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

TEST_CASE("asyncmux: of a grant and a stop at the same moment exactly one happens",
          "[asyncmux][stress]")
{
    const bool on_loop = GENERATE(false, true);
    amux::loop_thread there;
    amux::scheduler* const where = on_loop ? &there.loop() : nullptr;
    asyncmux<int> mux;
    std::stop_source stop;
    long data = 0;
    long granted = 0;
    partner stopper{[&] { stop.request_stop(); }};
    const int rounds = scaled(on_loop ? 20000 : 100000);
    for (int i = 0; i != rounds; ++i) {
        stop = std::stop_source{};
        outcome first;
        outcome second;
        auto holder = mux.try_lock(1);
        waits(mux.lock(1, stop.get_token()).resume_on(where), first, data);
        waits(mux.lock(1).resume_on(where), second, data);
        stopper.race([&] { holder.unlock(); });
        first.wait();
        second.wait();
        REQUIRE(first.once());
        REQUIRE(second.granted.load() == 1);
        granted += first.granted.load();
        auto last = amux::sync_wait(mux.lock(1)); // after all that the two have done
        REQUIRE(data == granted + i + 1);
    }
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: a stop at the very moment of the request is not lost", "[asyncmux][stress]")
{
    asyncmux<int> mux;
    std::stop_source stop;
    long data = 0;
    auto holder = mux.try_lock(1);
    partner stopper{[&] { stop.request_stop(); }};
    for (int i = 0, rounds = scaled(100000); i != rounds; ++i) {
        stop = std::stop_source{};
        outcome end;
        const auto token = stop.get_token();
        stopper.race([&] { waits(mux.lock(1, token), end, data); });
        REQUIRE(end.refused.load() == 1);
    }
    CHECK(data == 0);
    CHECK(mux.snapshot().keys.at(0).waiters == 0);
}

TEST_CASE("asyncmux: two releases at the same moment grant once", "[asyncmux][stress]")
{
    const bool whole = GENERATE(false, true);
    asyncmux<int> mux;
    asyncmux<int>::guard theirs;
    long data = 0;
    partner releaser{[&] { theirs.unlock(); }};
    const int rounds = scaled(50000);
    for (int i = 0; i != rounds; ++i) {
        outcome end;
        auto ours = whole ? mux.try_lock(1) : mux.try_lock_shared(1);
        theirs = whole ? mux.try_lock(2) : mux.try_lock_shared(1);
        if (whole)
            waits(mux.lock(), end, data);
        else
            waits(mux.lock(1), end, data);
        REQUIRE(end.granted.load() == 0);
        releaser.race([&] { ours.unlock(); });
        REQUIRE(end.granted.load() == 1);
    }
    CHECK(data == rounds);
    CHECK(mux.try_lock());
}

TEST_CASE("asyncmux: the last release of a key races with a new request for it",
          "[asyncmux][stress]")
{
    asyncmux<int> mux;
    long data = 0;
    long tried = 0;
    partner other{[&] {
        if (auto g = mux.try_lock(1)) {
            ++data;
            ++tried;
        }
    }};
    const int rounds = scaled(100000);
    for (int i = 0; i != rounds; ++i) {
        outcome end;
        other.race([&] { waits(mux.lock(1), end, data); });
        REQUIRE(end.granted.load() == 1);
    }
    CHECK(data == rounds + tried);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: a waiting coroutine is destroyed at the moment of its grant",
          "[asyncmux][stress]")
{
    amux::manual_event_loop loop;
    asyncmux<int> mux;
    asyncmux<int>::guard holder;
    partner releaser{[&] { holder.unlock(); }};
    for (int i = 0, rounds = scaled(50000); i != rounds; ++i) {
        holder = mux.try_lock(1);
        std::optional<request<asyncmux<int>::guard>> doomed;
        doomed.emplace(mux.try_lock_for(1, 1h), support::asker{.where = &loop});
        request next{mux.lock(1), {.where = &loop}};
        releaser.race([&] { doomed.reset(); });
        loop.run_ready();
        REQUIRE(next.state() == "owns");
    }
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: close at the moment of a request, a release or a stop strands nobody",
          "[asyncmux][stress]")
{
    std::unique_ptr<asyncmux<int>> mux;
    partner closer{[&] { mux->close(); }};
    for (int i = 0, rounds = scaled(20000); i != rounds; ++i) {
        mux = std::make_unique<asyncmux<int>>();
        std::array<outcome, 4> ends;
        std::stop_source stop;
        long data = 0;
        auto holder = mux->try_lock(1);
        waits(mux->lock(1, stop.get_token()), ends[0], data);
        waits(mux->lock_all(1, 2), ends[1], data);
        waits(mux->lock(), ends[2], data);
        closer.race([&] {
            if (i % 2 == 0)
                stop.request_stop();
            waits(mux->lock(1), ends[3], data);
            holder.unlock();
        });
        for (const outcome& end : ends)
            REQUIRE(end.once());
        REQUIRE(mux->tracked_keys() == 0);
    }
}

namespace {

/// Divides itself at the first lock.
struct divided : amux::multi_threaded {
    struct mutex : amux::detail::spin_lock {
        bool try_lock() noexcept { return false; }
    };
    static constexpr unsigned collisions_to_grow = 1;
    static constexpr std::size_t shards = 8;
};

template <class Mux>
fire_and_forget destroys_mux(std::unique_ptr<Mux>& mux, amux::scheduler* where, outcome& end)
{
    {
        auto whole = co_await mux->lock().resume_on(where);
    }
    mux.reset();
    ++end.granted;
}

template <class Mux>
void destroy_while_released(bool on_loop)
{
    amux::loop_thread there;
    std::unique_ptr<Mux> mux;
    typename Mux::guard theirs;
    partner releaser{[&] { theirs.unlock(); }};
    for (int i = 0, rounds = scaled(20000); i != rounds; ++i) {
        mux = std::make_unique<Mux>();
        auto ours = mux->try_lock(1);
        theirs = mux->try_lock_all(2, 3, 4, 5);
        outcome end;
        destroys_mux(mux, on_loop ? &there.loop() : nullptr, end);
        releaser.race([&] { ours.unlock(); });
        end.wait();
        REQUIRE(mux == nullptr);
    }
}

} // namespace

TEST_CASE("asyncmux: a resumed waiter destroys the mux while a releaser is on its way out",
          "[asyncmux][stress]")
{
    const bool on_loop = GENERATE(true, false); // or inside one of the two releases
    destroy_while_released<asyncmux<int>>(on_loop);
    destroy_while_released<asyncmux<int, divided>>(on_loop);
}

namespace {

/// Runs on whatever thread resumes it, and writes down which that is.
fire_and_forget notes_thread(asyncmux<int>& mux, int key, std::thread::id& where)
{
    auto g = co_await mux.lock(key);
    where = std::this_thread::get_id();
}

/// Releases before and after it has changed threads. A compiler that kept the address of a thread's queue across the
/// suspension would resume the second waiter in the wrong one, or never.
amux::task<> releases_on_two_threads(asyncmux<int>& mux, amux::event_loop& other,
                                     std::array<std::thread::id, 2>& where)
{
    auto first = mux.try_lock(1);
    auto second = mux.try_lock(2);
    notes_thread(mux, 1, where[0]);
    notes_thread(mux, 2, where[1]);
    first.unlock();
    co_await other.schedule();
    second.unlock();
}

} // namespace

TEST_CASE("asyncmux: a waiter without a scheduler resumes on the thread that releases, now",
          "[asyncmux][stress]")
{
    amux::loop_thread there;
    asyncmux<int> mux;
    for (int i = 0, rounds = scaled(2000); i != rounds; ++i) {
        std::array<std::thread::id, 2> where;
        amux::sync_wait(releases_on_two_threads(mux, there.loop(), where));
        REQUIRE(where[0] == std::this_thread::get_id());
        REQUIRE(where[1] != std::this_thread::get_id());
        REQUIRE(where[1] != std::thread::id{});
    }
}

TEST_CASE("asyncmux: what a pool thread releases resumes in the game thread's frame",
          "[asyncmux][stress]")
{
    amux::event_loop game;
    asyncmux<int> mux;
    asyncmux<int>::guard theirs;
    partner pool{[&] { theirs.unlock(); }};
    for (int i = 0, rounds = scaled(20000); i != rounds; ++i) {
        theirs = mux.try_lock(1);
        bool in_frame = false;
        int frames = 0;
        const auto plays = [&]() -> amux::task<> {
            auto g = co_await mux.lock(1);
            frames += in_frame ? 1 : -1;
        };
        game.spawn(plays());
        game.run_ready();
        pool.race([&] {
            in_frame = true;
            game.run_ready();
            in_frame = false;
        });
        in_frame = true;
        game.run_ready();
        REQUIRE(frames == 1);
    }
}

namespace {

fire_and_forget watches_other(asyncmux<int>& mux, amux::scheduler& where, std::stop_token own,
                              std::stop_token other, outcome& end)
{
    bool called = false;
    const auto note = [&called] { called = true; };
    std::optional<std::stop_callback<decltype(note)>> callback;
    callback.emplace(std::move(other), note);
    try {
        auto g = co_await mux.lock(1, std::move(own)).resume_on(where);
    } catch (const amux::lock_cancelled_error&) {
    }
    callback.reset(); // waits for the other thread if that is just calling it
    ++end.refused;
}

} // namespace

TEST_CASE(
    "asyncmux: two that are stopped at the same moment may each drop a callback on the other's "
    "token",
    "[asyncmux][stress]")
{
    amux::loop_thread there;
    amux::loop_thread elsewhere;
    asyncmux<int> mux;
    auto holder = mux.try_lock(1);
    std::stop_source theirs;
    partner stopper{[&] { theirs.request_stop(); }};
    for (int i = 0, rounds = scaled(10000); i != rounds; ++i) {
        theirs = std::stop_source{};
        std::stop_source ours;
        outcome a;
        outcome b;
        watches_other(mux, there.loop(), theirs.get_token(), ours.get_token(), a);
        watches_other(mux, elsewhere.loop(), ours.get_token(), theirs.get_token(), b);
        stopper.race([&] { ours.request_stop(); });
        a.wait();
        b.wait();
    }
}

namespace {

/// What the locks of a key protect: plain data, and counters that order nothing.
struct cell {
    std::atomic<int> inside{0}; // a reader counts 1, a writer `writer`
    long value = 0;
    static constexpr int writer = 1000;
};

/// Several threads, each with a loop, lock everything in every way.
template <class Mux>
class crowd {
public:
    static constexpr int keys = 4;
    static constexpr int coroutines = 3; // a thread

    explicit crowd(int rounds, amux::asyncmux_options options = {})
        : rounds_{rounds}, muxes_{Mux{options}, Mux{options}}
    {}

    /// Gives the number of mistakes seen.
    int run(int threads)
    {
        std::vector<std::thread> all;
        for (int t = 0; t != threads; ++t)
            all.emplace_back([this, t] { amux::sync_wait(work_side_by_side(t)); });
        std::thread stopper{[this] { stop_at_random(); }};
        for (auto& t : all)
            t.join();
        ended_ = true;
        stopper.join();
        long sum = 0;
        for (const auto& c : cells_)
            sum += c.value;
        if (sum != writes_ || muxes_[0].tracked_keys() + muxes_[1].tracked_keys() != 0)
            ++mistakes_;
        return mistakes_;
    }

private:
    using guard = typename Mux::guard;

    struct stoppable {
        std::mutex mutex;
        std::stop_source source;
        std::stop_token fresh()
        {
            const std::lock_guard lock{mutex};
            source = std::stop_source{};
            return source.get_token();
        }
        std::stop_source current()
        {
            const std::lock_guard lock{mutex};
            return source;
        }
    };

    amux::task<> work_side_by_side(int thread)
    {
        std::vector<amux::task<>> tasks;
        for (int i = 0; i != coroutines; ++i)
            tasks.push_back(work(static_cast<unsigned>(thread * coroutines + i)));
        co_await amux::when_all(std::move(tasks));
    }

    amux::task<> work(unsigned number)
    {
        std::minstd_rand random{number + 1};
        stoppable& slot = stops_[number % stops_.size()];
        for (int i = 0; i != rounds_; ++i) {
            Mux& mux = muxes_[random() % 2];
            cell* const cells = cells_.data() + (&mux - muxes_.data()) * keys;
            const int k = static_cast<int>(random() % keys);
            const int l = static_cast<int>(random() % keys);
            const bool shared = random() % 3 != 0;
            const unsigned what = random() % 16;
            unsigned covers = 1u << k; // a bit a key
            guard g;
            try {
                std::stop_token stop;
                if (random() % 4 == 0)
                    stop = slot.fresh();
                if (what == 0) {
                    covers = 15;
                    g = shared ? mux.try_lock_shared() : mux.try_lock();
                } else if (what == 1) {
                    covers = 15;
                    auto asked = shared ? mux.lock_shared(stop) : mux.lock(stop);
                    guard got = co_await std::move(asked);
                    g = std::move(got);
                } else if (what < 4) {
                    covers |= 1u << l;
                    auto asked =
                        shared ? mux.lock_all_shared(l, k, stop) : mux.lock_all(l, k, stop);
                    guard got = co_await std::move(asked);
                    g = std::move(got);
                } else if (what < 6) {
                    g = shared ? mux.try_lock_shared(k) : mux.try_lock(k);
                } else if (what < 9) {
                    const auto limit = std::chrono::microseconds{random() % 50};
                    auto asked = shared ? mux.try_lock_shared_for(k, limit, stop)
                                        : mux.try_lock_for(k, limit, stop);
                    guard got = co_await std::move(asked);
                    g = std::move(got);
                } else {
                    auto asked = shared ? mux.lock_shared(k, stop) : mux.lock(k, stop);
                    guard got = co_await std::move(asked);
                    g = std::move(got);
                }
            } catch (const amux::lock_cancelled_error&) {
            }
            if (!g)
                continue;
            if (!shared) {
                for_each(cells, covers, [this](cell& c) { write(c); });
                if (random() % 4 == 0) {
                    for_each(cells, covers, [](cell& c) { enter(c, 1 - cell::writer); });
                    g.downgrade();
                    for_each(cells, covers, [this](cell& c) { read(c); });
                    for_each(cells, covers, [](cell& c) { enter(c, -1); });
                } else {
                    for_each(cells, covers, [](cell& c) { enter(c, -cell::writer); });
                }
            } else {
                for_each(cells, covers, [](cell& c) { enter(c, 1); });
                for_each(cells, covers, [this](cell& c) { read(c); });
                for_each(cells, covers, [](cell& c) { enter(c, -1); });
            }
        }
    }

    template <class F>
    static void for_each(cell* cells, unsigned covers, F f)
    {
        for (unsigned k = 0; k != keys; ++k) {
            if (covers & (1u << k))
                f(cells[k]);
        }
    }
    static int enter(cell& c, int by) { return c.inside.fetch_add(by, std::memory_order_relaxed); }
    void write(cell& c)
    {
        if (enter(c, cell::writer) != 0)
            ++mistakes_;
        ++c.value;
        writes_.fetch_add(1, std::memory_order_relaxed);
    }
    void read(const cell& c)
    {
        // A read of `value`, for the thread sanitizer.
        if (c.inside.load(std::memory_order_relaxed) >= cell::writer || c.value < 0)
            ++mistakes_;
    }

    void stop_at_random()
    {
        std::minstd_rand random{7};
        while (!ended_) {
            stops_[random() % stops_.size()].current().request_stop();
            std::this_thread::yield();
        }
    }

    int rounds_;
    std::array<Mux, 2> muxes_;
    std::array<cell, 2 * keys> cells_;
    std::array<stoppable, 9> stops_;
    std::atomic<long> writes_{0};
    std::atomic<int> mistakes_{0};
    std::atomic<bool> ended_{false};
};

/// Divides itself while it is in use.
struct soon_divided : amux::multi_threaded {
    static constexpr unsigned collisions_to_grow = 2;
};

} // namespace

TEST_CASE("asyncmux: threads that lock in every way never meet inside a lock", "[asyncmux][stress]")
{
    CHECK(crowd<asyncmux<int>>{scaled(20000)}.run(3) == 0);
    CHECK(crowd<asyncmux<int>>{scaled(20000), {.prevent_reentrancy = true}}.run(3) == 0);
    CHECK(crowd<asyncmux<int, divided>>{scaled(20000)}.run(3) == 0);
}

TEST_CASE("asyncmux: a mux that divides itself while many lock loses none of them",
          "[asyncmux][stress]")
{
    for (int i = 0, rounds = scaled(300); i != rounds; ++i)
        REQUIRE(crowd<asyncmux<int, soon_divided>>{100}.run(3) == 0);
}

namespace {

amux::task<> asks_while_parent_changes(asyncmux<int>& mux, amux::event_loop& there, int rounds)
{
    co_await there.schedule();
    for (int i = 0; i != rounds; ++i) {
        try {
            auto g = co_await mux.lock(1);
        } catch (const amux::reentrant_lock_error& e) {
            if (e.held_mode() == amux::lock_mode::shared)
                break;
        }
    }
}

amux::task<> downgrades(asyncmux<int>::guard& g, amux::event_loop& here)
{
    co_await here.schedule();
    g.downgrade();
}

amux::task<> holds_meanwhile(asyncmux<int>& mux, amux::event_loop& here, amux::event_loop& there)
{
    auto g = co_await mux.lock(1);
    (void)co_await amux::when_all(asks_while_parent_changes(mux, there, 1000), downgrades(g, here));
}

} // namespace

TEST_CASE("reentrancy: a lock is downgraded on one thread while a child asks on another",
          "[asyncmux][stress]")
{
    amux::loop_thread here;
    amux::loop_thread there;
    asyncmux<int> mux{{.prevent_reentrancy = true}};
    for (int i = 0, rounds = scaled(500); i != rounds; ++i)
        amux::sync_wait(holds_meanwhile(mux, here.loop(), there.loop()));
    CHECK(mux.tracked_keys() == 0);
}

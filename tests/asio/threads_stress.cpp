// SPDX-License-Identifier: BSL-1.0
// Without this file a lock may be lost only where a grant, a cancellation and the end of a context meet on several threads.
#include "asio/support/library.hpp"
#include "support/scale.hpp"

#include <amux/amux.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using int_mux = amux::asyncmux<int>;
using int_guard = int_mux::guard;

namespace {

/// Counts up by what is not atomic, so that two in the lock lose counts, and are a race for the thread sanitizer.
asio::awaitable<void> count_up(int_mux& mux, int& counter, int rounds)
{
    for (int i = 0; i != rounds; ++i) {
        const auto guard = co_await mux.lock(0);
        const int seen = counter;
        if (i % 16 == 0)
            co_await asio::post(asio::use_awaitable);
        counter = seen + 1;
    }
}

/// Who is inside of each key: nobody, readers, or -1 for a writer.
class ledger {
public:
    static constexpr int keys = 3;

    void enter(int key, amux::lock_mode mode)
    {
        std::atomic<int>& in = inside_[static_cast<std::size_t>(key)];
        if (mode == amux::lock_mode::shared) {
            wrong_ = wrong_ || in.fetch_add(1) < 0 || written(key) < 0;
        } else {
            wrong_ = wrong_ || in.exchange(-1) != 0;
            ++written(key); // a race for the thread sanitizer, if a reader is here
        }
    }
    void stay_to_read(int key) { inside_[static_cast<std::size_t>(key)] = 1; }
    void leave(int key, amux::lock_mode mode)
    {
        std::atomic<int>& in = inside_[static_cast<std::size_t>(key)];
        if (mode == amux::lock_mode::shared)
            wrong_ = wrong_ || in.fetch_sub(1) <= 0;
        else
            wrong_ = wrong_ || in.exchange(0) != -1;
    }
    bool is_wrong() const { return wrong_; }

private:
    int& written(int key) { return written_[static_cast<std::size_t>(key)]; }

    std::array<std::atomic<int>, keys> inside_{};
    std::array<int, keys> written_{};
    std::atomic<bool> wrong_{false};
};

/// Asks again and again, on a strand, in one form or another, and is cancelled there by its slot, or by its token on any
/// thread, while others release.
class asks_at_random {
public:
    asks_at_random(asio::thread_pool& pool, int_mux& mux, ledger& l, int rounds, unsigned seed)
        : pool_{pool},
          strand_{asio::make_strand(pool)},
          mux_{mux},
          ledger_{l},
          left_{rounds},
          random_{seed}
    {}

    void begin()
    {
        asio::post(strand_, [this] { ask(); });
    }

    int got = 0;
    int cancelled = 0;
    int others = 0;

private:
    bool one_in(unsigned n) { return random_() % n == 0; }

    void ask()
    {
        if (left_-- == 0)
            return;
        std::stop_source stop;
        if (one_in(3))
            asio::post(pool_, [stop]() mutable { stop.request_stop(); });
        if (one_in(2)) {
            const auto emit = [this] { signal_.emit(asio::cancellation_type::terminal); };
            asio::post(pool_, [this, emit] { asio::post(strand_, emit); });
        }
        const auto told = [this](std::exception_ptr e, int_guard g) { take(e, std::move(g)); };
        auto there =
            asio::bind_cancellation_slot(signal_.slot(), asio::bind_executor(strand_, told));
        const int key = static_cast<int>(random_() % ledger::keys);
        first_ = key;
        last_ = key;
        const std::stop_token t = stop.get_token();
        switch (random_() % 6) {
            case 0:
                return mux_.lock_shared(key, t)(std::move(there));
            case 1:
                return mux_.try_lock_for(key, 1ms * (random_() % 3), t)(std::move(there));
            case 2:
                last_ = ledger::keys - 1;
                return mux_.lock_all(keys_from(first_), t)(std::move(there));
            case 3:
                first_ = 0;
                last_ = ledger::keys - 1;
                return mux_.lock_shared(t)(std::move(there));
            case 4:
                first_ = 0;
                last_ = ledger::keys - 1;
                if (one_in(4))
                    return mux_.lock(t)(std::move(there));
                return mux_.lock_all_shared(keys_from(first_), t)(std::move(there));
            default:
                return mux_.lock(key, t)(std::move(there));
        }
    }

    static std::vector<int> keys_from(int first)
    {
        std::vector<int> keys;
        for (int k = first; k != ledger::keys; ++k)
            keys.push_back(k);
        return keys;
    }

    void take(const std::exception_ptr& e, int_guard g)
    {
        ++(g && !e ? got : !g ? cancelled : others);
        held_ = std::move(g);
        if (!held_)
            return ask();
        for (int k = first_; k <= last_; ++k)
            ledger_.enter(k, held_.mode());
        if (one_in(4))
            asio::post(strand_, [this] { let_go(); });
        else
            let_go();
    }

    void let_go()
    {
        if (held_.mode() == amux::lock_mode::exclusive && one_in(4)) {
            for (int k = first_; k <= last_; ++k)
                ledger_.stay_to_read(k);
            held_.downgrade();
        }
        for (int k = first_; k <= last_; ++k)
            ledger_.leave(k, held_.mode());
        held_ = {};
        ask();
    }

    asio::thread_pool& pool_;
    asio::strand<asio::thread_pool::executor_type> strand_;
    asio::cancellation_signal signal_;
    int_mux& mux_;
    ledger& ledger_;
    int left_;
    std::minstd_rand random_;
    int_guard held_;
    int first_ = 0; // of the keys that are asked for
    int last_ = 0;
};

} // namespace

TEST_CASE("asio threads: coroutines of a pool that share a lock count right", "[asio][stress]")
{
    asio::thread_pool pool{3};
    int_mux mux;
    int counter = 0;
    const int rounds = support::scaled(3'000);
    for (int i = 0; i != 8; ++i) {
        if (i % 2 == 0)
            asio::co_spawn(pool, count_up(mux, counter, rounds), asio::detached);
        else
            asio::co_spawn(asio::make_strand(pool), count_up(mux, counter, rounds), asio::detached);
    }
    pool.join();
    CHECK(counter == 8 * rounds);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio threads: on a pool, each request is granted or cancelled, and none is lost",
          "[asio][stress]")
{
    asio::thread_pool pool{3};
    int_mux mux;
    ledger inside;
    const int rounds = support::scaled(5'000);
    std::deque<asks_at_random> workers;
    for (unsigned i = 1; i != 6; ++i)
        workers.emplace_back(pool, mux, inside, rounds, i).begin();
    pool.join();
    int ended = 0;
    for (const asks_at_random& w : workers) {
        ended += w.got + w.cancelled;
        CHECK(w.got > 0);
        CHECK(w.others == 0);
    }
    CHECK(ended == 5 * rounds);
    CHECK_FALSE(inside.is_wrong());
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio threads: a stop from another thread and the grant: one of them wins, once",
          "[asio][stress]")
{
    int_mux mux;
    asio::io_context io;
    enum class kind : std::uint8_t { forever, timed, with_slot };
    const auto what = GENERATE(kind::forever, kind::timed, kind::with_slot);
    const int rounds = support::scaled(5'000);
    std::atomic<int> round{0};
    std::atomic<int> done{0};
    std::stop_source stop;
    std::jthread stopper{[&] {
        for (int i = 1; i <= rounds; ++i) {
            while (round.load() < i)
                std::this_thread::yield();
            stop.request_stop();
            done = i;
        }
    }};
    int granted = 0;
    int calls = 0;
    for (int i = 1; i <= rounds; ++i) {
        stop = {};
        auto guard = mux.try_lock(0);
        const auto handler = [&](std::exception_ptr, int_guard g) {
            ++calls;
            granted += g ? 1 : 0;
        };
        auto there = asio::bind_executor(io, handler);
        const std::stop_token token = stop.get_token();
        asio::cancellation_signal signal;
        if (i % 2 == 0)
            round = i; // it may be stopped while it begins
        if (what == kind::forever)
            mux.lock(0, token)(there);
        else if (what == kind::timed)
            mux.try_lock_for(0, 10min, token)(there);
        else
            mux.lock(0, token)(asio::bind_cancellation_slot(signal.slot(), there));
        round = i;
        if (i % 4 == 1)
            std::this_thread::yield();
        if (i % 8 == 1)
            signal.emit(asio::cancellation_type::terminal);
        guard.unlock();
        support::run(io);
        while (done.load() < i)
            std::this_thread::yield();
        if (calls != i || mux.tracked_keys() != 0)
            break;
    }
    round = rounds;
    CHECK(calls == rounds);
    CHECK(granted <= rounds);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio threads: the context of waiters ends while another thread releases",
          "[asio][stress][lifetime]")
{
    int_mux mux;
    const int rounds = support::scaled(3'000);
    std::atomic<int> round{0};
    std::atomic<int> done{0};
    int_guard held;
    std::stop_source stop;
    std::jthread releaser{[&] {
        for (int i = 1; i <= rounds; ++i) {
            while (round.load() < i)
                std::this_thread::yield();
            if (i % 3 == 0)
                stop.request_stop();
            held = {};
            done = i;
        }
    }};
    int calls = 0;
    for (int i = 1; i <= rounds; ++i) {
        stop = {};
        held = mux.try_lock(0);
        {
            asio::io_context io;
            const auto handler = [&](std::exception_ptr, int_guard) { ++calls; };
            auto there = asio::bind_executor(io, handler);
            if (i % 4 < 2) { // who releases lets both in
                mux.lock_shared(0)(there);
                mux.lock_shared(0)(asio::bind_executor(asio::io_context::strand{io}, handler));
            }
            mux.lock(0, stop.get_token())(there);
            mux.try_lock_for(0, 10min, stop.get_token())(there);
            mux.lock(0)(asio::bind_executor(asio::make_strand(io), handler));
            mux.lock(0)(there);
            round = i;
            if (i % 2 == 0)
                std::this_thread::yield();
        }
        while (done.load() < i)
            std::this_thread::yield();
        if (mux.tracked_keys() != 0)
            break;
    }
    round = rounds;
    CHECK(calls == 0);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio threads: a handler may destroy the mux while the one who released is still leaving",
          "[asio][stress][lifetime]")
{
    asio::thread_pool pool{1};
    std::atomic<int> gone{0};
    const int rounds = support::scaled(5'000);
    for (int i = 1; i <= rounds; ++i) {
        std::optional<int_mux> mux{std::in_place};
        auto guard = mux->try_lock(0);
        const auto handler = [&](const std::exception_ptr&, int_guard g) {
            g.unlock();
            mux.reset();
            gone = i;
        };
        mux->lock(0)(asio::bind_executor(pool, handler));
        guard.unlock();
        while (gone.load() != i)
            std::this_thread::yield();
        if (mux)
            break;
    }
    CHECK(gone == rounds);
}

TEST_CASE("asio threads: leases are taken in turns by coroutines of a pool",
          "[asio][stress][lease]")
{
    asio::thread_pool pool{2};
    amux::asio_scheduler loop{pool.get_executor()};
    amux::memory_backend store;
    amux::distributed_lock locks{store, loop, {.local_turns = 1'000'000}}; // nobody else wants any
    int counter = 0;
    const int rounds = support::scaled(200);
    const auto work = [&]() -> asio::awaitable<void> {
        for (int i = 0; i != rounds; ++i) {
            auto lease = co_await locks.acquire("k", {.ttl = 1min, .max_wait = 5min});
            ++counter;
            co_await lease.release();
        }
    };
    for (int i = 0; i != 4; ++i)
        asio::co_spawn(pool, work(), asio::detached);
    pool.join();
    CHECK(counter == 4 * rounds);
}

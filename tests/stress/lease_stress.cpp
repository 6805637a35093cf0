// SPDX-License-Identifier: BSL-1.0
// Without this file a lease that is asked for, renewed, stopped and destroyed on different threads may race, once in 10^4 times.
#include "support/scale.hpp"

#include <amux/distributed_lock.hpp>
#include <amux/loop_thread.hpp>
#include <amux/memory_backend.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <coroutine>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::acquire_result;
using amux::acquired_lock;
using amux::sync_wait;
using amux::task;
using support::scaled;
using milliseconds = std::chrono::milliseconds;

namespace {

/// A thread that does what it is given, in order, until it is destroyed; then what is left.
class worker {
public:
    worker() : thread_{[this] { run(); }} {}
    worker(const worker&) = delete;
    worker& operator=(const worker&) = delete;
    ~worker()
    {
        {
            const std::lock_guard lock{mutex_};
            ends_ = true;
        }
        more_.notify_one();
        thread_.join();
    }

    void give(std::function<void()> job)
    {
        {
            const std::lock_guard lock{mutex_};
            jobs_.push_back(std::move(job));
        }
        more_.notify_one();
    }

private:
    void run()
    {
        std::unique_lock lock{mutex_};
        for (;;) {
            more_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
            if (jobs_.empty())
                return;
            const std::function<void()> job = std::move(jobs_.front());
            jobs_.pop_front();
            lock.unlock();
            job();
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable more_;
    std::deque<std::function<void()>> jobs_;
    bool ends_ = false;
    std::thread thread_; // the last: it uses the rest
};

/// A store behind a thread of its own, on which every operation is carried out and answered.
class threaded_backend {
public:
    explicit threaded_backend(amux::memory_backend& store) : store_{store} {}

    template <class F>
    class operation {
    public:
        operation(worker& w, F f) : worker_{w}, f_{std::move(f)} {}
        bool await_ready() const noexcept { return false; }
        [[gnu::noinline]] void await_suspend(std::coroutine_handle<> h)
        {
            worker_.give([this, h] {
                result_ = f_();
                h.resume();
            });
        }
        auto await_resume() { return std::move(result_); }

    private:
        worker& worker_;
        F f_;
        decltype(std::declval<F&>()()) result_{};
    };

    auto acquire(std::string_view key, std::string_view token, milliseconds ttl)
    {
        return on_thread([=, this] { return store_.acquire(key, token, ttl).await_resume(); });
    }
    auto extend(std::string_view key, std::string_view token, milliseconds ttl)
    {
        return on_thread([=, this] { return store_.extend(key, token, ttl).await_resume(); });
    }
    auto release(std::string_view key, std::string_view token)
    {
        return on_thread([=, this] { return store_.release(key, token).await_resume(); });
    }
    auto get(std::string_view key)
    {
        return on_thread([=, this] { return store_.get(key).await_resume(); });
    }

private:
    template <class F>
    operation<F> on_thread(F f)
    {
        return {worker_, std::move(f)};
    }

    amux::memory_backend& store_;
    worker worker_;
};

static_assert(amux::fencing_backend<threaded_backend>);

/// Counts what the hooks are told.
struct counts {
    std::atomic<int> acquired{0};
    std::atomic<int> released{0};
    std::atomic<int> lost{0};
    std::atomic<int> errors{0};

    amux::lock_hooks hooks()
    {
        const auto adds = [](std::atomic<int>& n) {
            return [&n](const amux::lock_event&) { n.fetch_add(1, std::memory_order_relaxed); };
        };
        amux::lock_hooks h;
        h.on_acquire = adds(acquired);
        h.on_release = adds(released);
        h.on_lost = adds(lost);
        h.on_error = adds(errors);
        return h;
    }
};

struct joined {
    std::vector<std::thread> threads;
    ~joined()
    {
        for (std::thread& t : threads)
            t.join();
    }
};

constexpr amux::distributed_lock_options quick{
    .default_ttl = 60s, .max_wait = 150s, .poll_interval = 2ms};

/// What the threads of the first test do, each with its share of the rounds.
template <class First, class Second>
class lease_crowd {
public:
    lease_crowd(First& first, Second& second) : first_{first}, second_{second} {}

    void run(unsigned salt, int rounds)
    {
        std::minstd_rand random{Catch::getSeed() + salt};
        for (int i = 0; i < rounds; ++i) {
            if (random() % 2 == 0)
                one_round(first_, random);
            else
                one_round(second_, random);
        }
    }

    std::array<int, 3> sums{}; // each under the lease of its key
    std::atomic<int> plain{0};
    std::atomic<int> granted{0};
    std::atomic<int> stopped{0};
    std::atomic<int> refused{0};
    std::atomic<int> surprises{0};

private:
    template <class Locks>
    void one_round(Locks& locks, std::minstd_rand& random)
    {
        const std::size_t k = random() % sums.size();
        const std::string key{static_cast<char>('a' + k)};
        const amux::acquire_options options{.renew = random() % 2 == 0};
        try {
            switch (random() % 4) {
                case 0: {
                    auto add = [&](acquired_lock&) { ++sums[k]; };
                    sync_wait(locks.with_lock(key, add, options));
                    break;
                }
                case 1: {
                    acquired_lock l = sync_wait(locks.acquire(key, options));
                    ++sums[k];
                    if (random() % 2 == 0 && !sync_wait(l.release()))
                        surprises.fetch_add(1);
                    break;
                }
                case 2: {
                    auto l =
                        std::make_shared<acquired_lock>(sync_wait(locks.acquire(key, options)));
                    ++sums[k];
                    elsewhere_.give([dies = std::move(l)]() mutable { dies.reset(); });
                    break;
                }
                default:
                    with_stop(locks, key, options, random);
                    return;
            }
            plain.fetch_add(1);
            granted.fetch_add(1);
        } catch (const std::exception&) {
            surprises.fetch_add(1);
        }
    }

    template <class Locks>
    void with_stop(Locks& locks, const std::string& key, const amux::acquire_options& options,
                   std::minstd_rand& random)
    {
        auto source = std::make_shared<std::stop_source>();
        elsewhere_.give([source] { source->request_stop(); });
        try {
            if (random() % 2 == 0) {
                const std::optional<acquired_lock> l =
                    sync_wait(locks.try_acquire(key, options, source->get_token()));
                (l ? granted : refused).fetch_add(1);
            } else {
                const acquired_lock l = sync_wait(locks.acquire(key, options, source->get_token()));
                granted.fetch_add(1);
            }
        } catch (const amux::lock_cancelled_error&) {
            stopped.fetch_add(1);
        }
    }

    First& first_;
    Second& second_;
    worker elsewhere_; // handles are destroyed there, and stops requested
};

} // namespace

TEST_CASE("lease: threads, two locks on one store, and every sum is exact", "[stress][lease]")
{
    constexpr int threads = 4;
    const int rounds = scaled(1'000);
    amux::memory_backend store;
    counts told;
    std::array<int, 3> sums{};
    int total = 0;
    {
        threaded_backend far{store};
        amux::loop_thread one;
        amux::loop_thread two;
        amux::distributed_lock first{store, one.loop(), quick, told.hooks()};
        amux::distributed_lock second{far, two.loop(), quick, told.hooks()};
        int plain = 0;
        {
            lease_crowd all{first, second};
            {
                joined running;
                for (unsigned t = 0; t < threads; ++t)
                    running.threads.emplace_back([&all, t, rounds] { all.run(t, rounds); });
            }
            CHECK(all.surprises.load() == 0);
            CHECK(all.granted + all.stopped + all.refused == threads * rounds);
            sums = all.sums;
            plain = all.plain.load();
            total = all.granted.load();
        }
        CHECK(sums[0] + sums[1] + sums[2] == plain);
        const bool first_done = sync_wait(first.drain(60s));
        const bool second_done = sync_wait(second.drain(60s));
        CHECK(first_done);
        CHECK(second_done);
    }
    CHECK(store.size() == 0);
    CHECK(told.acquired.load() >=
          total); // one that was stopped on its way to its holder was told, too
    CHECK(told.released.load() + told.lost.load() == told.acquired.load());
}

TEST_CASE("lease: a lock dies on another thread than its loop's, with releases on their way",
          "[stress][lease]")
{
    const int rounds = scaled(2'000);
    amux::memory_backend store;
    threaded_backend far{store};
    amux::loop_thread thread;
    std::atomic<int> told{0};
    amux::lock_hooks hooks;
    hooks.on_release = [&](const amux::lock_event&) { ++told; };
    int stuck = 0;
    for (int i = 0; i < rounds; ++i) {
        {
            amux::distributed_lock near_locks{store, thread.loop(), quick, hooks};
            amux::distributed_lock far_locks{far, thread.loop(), quick, hooks};
            std::stop_source stop;
            std::vector<acquired_lock> held;
            for (const char* key : {"a", "b", "c"}) {
                held.push_back(sync_wait(near_locks.acquire(key, stop.get_token())));
                const std::string other = key + std::to_string(i);
                held.push_back(sync_wait(far_locks.acquire(other, {.renew = true})));
            }
            if (i % 3 == 0)
                stop.request_stop();
            held.clear();
        }
        for (const char* key : {"a", "b", "c"})
            stuck += store.get(key).await_resume().has_value();
    }
    CHECK(stuck == 0); // the releases were sent by the destructors, or by a stop that came before
    CHECK(told.load() <= rounds * 6);
}

TEST_CASE("lease: drain gives up while answers come in", "[stress][lease]")
{
    const int rounds = scaled(1'000);
    amux::memory_backend store;
    threaded_backend far{store};
    amux::loop_thread thread;
    int drained = 0;
    for (int i = 0; i < rounds; ++i) {
        amux::distributed_lock locks{far, thread.loop(), quick};
        {
            const acquired_lock a = sync_wait(locks.acquire("a" + std::to_string(i)));
            const acquired_lock b = sync_wait(locks.acquire("b" + std::to_string(i)));
        }
        drained += sync_wait(locks.drain(0ms));
    }
    CHECK(drained <= rounds);
}

TEST_CASE("lease: its observers may be asked while it is renewed, and ends", "[stress][lease]")
{
    const int rounds = scaled(200);
    amux::memory_backend store;
    amux::loop_thread thread;
    amux::distributed_lock locks{store, thread.loop(), quick};
    std::atomic<int> wrong{0};
    for (int i = 0; i < rounds; ++i) {
        std::stop_source stop;
        acquired_lock l = sync_wait(locks.acquire(
            "k", {.ttl = 60s, .renew = true, .renew_interval = 1ms}, stop.get_token()));
        const acquired_lock& shared = l;
        std::atomic<bool> over{false};
        {
            joined readers;
            for (int t = 0; t < 2; ++t) {
                readers.threads.emplace_back([&] {
                    const std::stop_token lost = shared.lost_token();
                    auto last = shared.valid_until();
                    while (!over.load()) {
                        const auto until = shared.valid_until();
                        wrong += until < last;
                        last = until;
                        const bool was_held = shared.is_held();
                        if (!was_held && shared.is_held())
                            ++wrong;
                        if (shared.remaining() > 60s)
                            ++wrong;
                    }
                    wrong += !lost.stop_requested();
                });
            }
            std::this_thread::sleep_for(3ms);
            stop.request_stop();
            wrong += sync_wait(l.ended()).reason != amux::end_reason::aborted;
            over = true;
        }
    }
    CHECK(wrong.load() == 0);
    CHECK(store.size() == 0);
}

TEST_CASE("lease: with a loop of its own it is renewed while its holder computes",
          "[stress][lease]")
{
    std::atomic<int> renewed{0};
    amux::memory_backend store;
    amux::loop_thread thread;
    amux::lock_hooks hooks;
    hooks.on_renew = [&](const amux::lock_event&) { ++renewed; };
    amux::distributed_lock locks{store, thread.loop(), {}, hooks};
    const acquired_lock l =
        sync_wait(locks.acquire("k", {.ttl = 60s, .renew = true, .renew_interval = 10ms}));
    const auto until = l.valid_until();
    for (const auto end = amux::clock::now() + 50s; renewed < 3 && amux::clock::now() < end;) {
    }
    CHECK(l.is_held());
    CHECK(l.valid_until() > until);
}

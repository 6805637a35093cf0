// SPDX-License-Identifier: BSL-1.0
// The figures of "Rejected ideas" in docs/design.md: each idea, as small as it can be, beside what amux does instead.
// tests/benchmarks/rejected_ideas.py builds it in the ways that matter, runs it, and prints the table.
#include "support/allocation_counter.hpp"

#include <amux/amux.hpp>
#include <amux/testing/scripted_backend.hpp>

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

namespace {

using namespace std::chrono_literals;

// Idea: a mutex for each key, made on demand in a map.

template <class Key>
class map_of_mutexes {
    struct slot {
        std::mutex mutex;
        int users = 0;
    };

public:
    void lock_and_unlock(const Key& key)
    {
        slot* s = nullptr;
        {
            const std::lock_guard l{mutex_};
            s = &slots_[key];
            ++s->users;
        }
        s->mutex.lock();
        s->mutex.unlock();
        const std::lock_guard l{mutex_};
        if (--s->users == 0)
            slots_.erase(key);
    }

private:
    std::mutex mutex_;
    std::unordered_map<Key, slot> slots_;
};

// Idea: std::mutex inside; and many shards from the start.

struct with_std_mutex : amux::multi_threaded {
    using mutex = std::mutex;
};

/// Pretends once to be contended, so that the mux divides itself.
class pretender : public amux::detail::spin_lock {
public:
    static inline bool pretends = false;
    bool try_lock() noexcept { return !std::exchange(pretends, false) && spin_lock::try_lock(); }
};
struct dividing : amux::multi_threaded {
    using mutex = pretender;
    static constexpr unsigned collisions_to_grow = 1;
};

/// The C library's mutexes are cheaper in a process that has one thread only.
class second_thread {
public:
    ~second_thread()
    {
        done_ = true;
        done_.notify_one();
        thread_.join();
    }

private:
    std::atomic<bool> done_{false};
    std::thread thread_{[this] { done_.wait(false); }};
};

template <class Mux, class Key>
void lock_a_key(long n, const Key& key)
{
    Mux mux;
    for (long i = 0; i != n; ++i)
        static_cast<void>(mux.try_lock(key).owns_lock());
}

template <class Mux>
void lock_all_keys(long n, bool divided)
{
    Mux mux;
    pretender::pretends = divided;
    static_cast<void>(mux.try_lock(1).owns_lock());
    for (long i = 0; i != n; ++i)
        static_cast<void>(mux.try_lock().owns_lock());
}

bool lock(std::string_view which, long n)
{
    const second_thread other;
    const std::string key = "a key of some length, as they come from a request";
    if (which == "ours")
        lock_a_key<amux::asyncmux<>>(n, key);
    else if (which == "ours_int")
        lock_a_key<amux::asyncmux<int>>(n, 1);
    else if (which == "ours_single")
        lock_a_key<amux::unsynchronized_asyncmux<>>(n, key);
    else if (which == "std_mutex")
        lock_a_key<amux::asyncmux<std::string, with_std_mutex>>(n, key);
    else if (which == "whole")
        lock_all_keys<amux::asyncmux<int, dividing>>(n, false);
    else if (which == "whole_divided")
        lock_all_keys<amux::asyncmux<int, dividing>>(n, true);
    else if (which == "map" || which == "map_int") {
        map_of_mutexes<std::string> map;
        map_of_mutexes<int> ints;
        for (long i = 0; i != n; ++i)
            which == "map" ? map.lock_and_unlock(key) : ints.lock_and_unlock(1);
    } else {
        return false;
    }
    return true;
}

// Idea: a waiter is a callback on the heap.

class callback_mutex {
public:
    struct state {
        std::coroutine_handle<> handle;
        bool granted = false;
    };
    struct waiter {
        callback_mutex& m;
        std::shared_ptr<state> shared{}; // so that a stop could find it
        bool await_ready() const noexcept { return !std::exchange(m.held_, true); }
        void await_suspend(std::coroutine_handle<> h)
        {
            shared = std::make_shared<state>();
            shared->handle = h;
            m.waiters_.push_back([s = shared] {
                s->granted = true;
                s->handle.resume();
            });
        }
        void await_resume() const noexcept {}
    };

    waiter lock() noexcept { return {*this}; }
    void unlock()
    {
        if (waiters_.empty())
            return void(held_ = false);
        const auto next = std::move(waiters_.front());
        waiters_.pop_front();
        next();
    }

private:
    bool held_ = false;
    std::list<std::function<void()>> waiters_; // from which a stop could take it out
};

/// Waits, again and again: with two of them somebody always does.
template <class Lock>
amux::task<> wait_often(Lock lock, amux::manual_event_loop& loop, long& left)
{
    while (--left > 0)
        co_await lock(loop);
}

struct ask_ours {
    amux::asyncmux<int>& mux;
    amux::task<> operator()(amux::manual_event_loop& loop) const
    {
        auto g = co_await mux.lock(1);
        co_await loop.schedule();
    }
};
struct ask_callbacks {
    callback_mutex& mux;
    amux::task<> operator()(amux::manual_event_loop& loop) const
    {
        co_await mux.lock();
        co_await loop.schedule();
        mux.unlock();
    }
};

bool wait(std::string_view which, long n)
{
    amux::asyncmux<int> ours;
    callback_mutex callbacks;
    amux::manual_event_loop loop;
    long left = 1'000 + n;
    if (which == "ours") {
        loop.spawn(wait_often(ask_ours{ours}, loop, left));
        loop.spawn(wait_often(ask_ours{ours}, loop, left));
    } else if (which == "callbacks") {
        loop.spawn(wait_often(ask_callbacks{callbacks}, loop, left));
        loop.spawn(wait_often(ask_callbacks{callbacks}, loop, left));
    } else {
        return false;
    }
    while (left > n) // until it is warm
        loop.run_ready();
    const std::size_t before = support::allocations();
    while (left > 0)
        loop.run_ready();
    // A task for each wait is the measuring loop's own.
    const std::size_t made = support::allocations() - before;
    const std::size_t tasks = static_cast<std::size_t>(n);
    std::printf("%.2f\n",
                made > tasks ? static_cast<double>(made - tasks) / static_cast<double>(n) : 0.0);
    return true;
}

// Idea: whoever comes first takes a free lock, and who waits is told that it may be free (barging).

class barging_mutex {
public:
    struct waiter {
        barging_mutex& m;
        std::coroutine_handle<> handle{};
        bool await_ready() const noexcept { return !std::exchange(m.held_, true); }
        void await_suspend(std::coroutine_handle<> h)
        {
            handle = h;
            m.waiting_.push_back(this);
        }
        void await_resume() const noexcept {}
    };

    explicit barging_mutex(amux::manual_event_loop& loop) : loop_{loop} {}
    waiter lock() noexcept { return {*this}; }
    void unlock()
    {
        held_ = false;
        if (!waiting_.empty())
            loop_.spawn(try_again(*this));
    }

private:
    static amux::task<> try_again(barging_mutex& m)
    {
        if (!m.waiting_.empty() && !std::exchange(m.held_, true)) {
            waiter* const w = m.waiting_.front();
            m.waiting_.pop_front();
            w->handle.resume();
        }
        co_return;
    }

    amux::manual_event_loop& loop_;
    std::deque<waiter*> waiting_;
    bool held_ = false;
};

amux::task<> barge(barging_mutex& m, amux::manual_event_loop& loop, int& turns, int limit)
{
    while (turns != limit) {
        co_await m.lock();
        ++turns;
        co_await loop.schedule();
        m.unlock(); // and asks again at once
    }
}

amux::task<> queue(amux::asyncmux<int>& m, amux::manual_event_loop& loop, int& turns, int limit)
{
    while (turns != limit) {
        auto g = co_await m.lock(1);
        ++turns;
        co_await loop.schedule();
    }
}

void turns()
{
    constexpr int limit = 1'000;
    int busy = 0;
    int patient = 0;
    {
        amux::manual_event_loop loop;
        barging_mutex m{loop};
        loop.spawn(barge(m, loop, busy, limit));
        loop.spawn(barge(m, loop, patient, limit));
        while (busy != limit)
            loop.run_ready();
    }
    std::printf("barging %d of %d\n", patient, busy + patient);
    busy = patient = 0;
    {
        amux::asyncmux<int> m;
        amux::manual_event_loop loop;
        loop.spawn(queue(m, loop, busy, limit / 2));
        loop.spawn(queue(m, loop, patient, limit / 2));
        while (busy + patient != limit)
            loop.run_ready();
    }
    std::printf("ours %d of %d\n", patient, busy + patient);
}

// Idea: every coroutine that waits for a lease asks the store itself.

using plain_locks = amux::distributed_lock<amux::testing::plain_scripted_backend&>;

amux::task<> wait_for_lease(plain_locks& locks, bool& waits)
{
    try {
        static_cast<void>(co_await locks.acquire("k", {.max_wait = 10s}));
    } catch (const amux::lock_wait_timeout_error&) {
        waits = false;
    }
}

std::size_t questions(int locks, int waiters_each)
{
    amux::manual_event_loop loop;
    amux::testing::scripted_backend store{loop};
    store.keep_no_log();
    amux::testing::plain_scripted_backend plain{store};
    store.usurp("k", "somebody else", 60s);
    std::deque<plain_locks> all;
    bool waits = true;
    for (int i = 0; i != locks; ++i) {
        plain_locks& l = all.emplace_back(plain, loop);
        for (int w = 0; w != waiters_each; ++w)
            loop.spawn(wait_for_lease(l, waits));
    }
    while (waits) {
        loop.run_ready();
        loop.advance(1ms);
    }
    loop.run_ready();
    return store.count(amux::testing::operation::acquire);
}

void bytes()
{
    using shards = amux::detail::shard_set<std::string, amux::multi_threaded>;
    std::printf("%zu %zu\n", sizeof(amux::asyncmux<>),
                sizeof(amux::asyncmux<>) - sizeof(shards::shard) +
                    shards::most * sizeof(shards::lone_shard));
}

} // namespace

int main(int argc, char** argv)
{
    const std::string_view idea = argc > 1 ? argv[1] : "";
    const std::string_view which = argc > 2 ? argv[2] : "";
    const long n = argc > 2 ? std::atol(argv[argc - 1]) : 0;
    bool known = true;
    if (idea == "lock")
        known = lock(which, n);
    else if (idea == "wait")
        known = wait(which, n);
    else if (idea == "turns")
        turns();
    else if (idea == "bytes")
        bytes();
    else if (idea == "store")
        std::printf("%zu %zu\n", questions(1, 1'000), questions(1'000, 1));
    else
        known = false;
    if (!known)
        std::fprintf(stderr, "usage: see tests/benchmarks/rejected_ideas.py\n");
    return known ? 0 : 2;
}

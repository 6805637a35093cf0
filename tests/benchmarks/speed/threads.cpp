// SPDX-License-Identifier: BSL-1.0
// Without this file it would not be known what threads cost each other.
//
// Two threads, no priorities: each counts its processor time in short windows, and keeps those without a context switch
// in which the other one got half to twice as far. What is left is the time while both ran.
#include "rows.hpp"

#include "coroutines.hpp"
#include "floors.hpp"
#include "foreign.hpp"
#include "muxes.hpp"
#include "peers.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include <sched.h>
#include <sys/resource.h>

namespace bench {

namespace {

using key = std::int64_t;
using keys = std::vector<key>;

class meter {
    static constexpr std::uint64_t window = 1'000;

public:
    void beside(const meter& other) noexcept { other_ = &other; }
    /// After each operation.
    void tick()
    {
        const std::uint64_t n = progress_.load(std::memory_order_relaxed) + 1;
        progress_.store(n, std::memory_order_relaxed);
        if (n % window == 0)
            end_window();
    }
    void begin()
    {
        others_ = other_->progress_.load(std::memory_order_relaxed);
        switches_ = switches();
        since_ = thread_time();
    }
    const std::vector<double>& kept() const noexcept { return kept_; }
    /// From any thread.
    std::size_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

private:
    void keep_window(double each)
    {
        kept_.push_back(each);
        count_.store(kept_.size(), std::memory_order_relaxed);
    }
    static long switches()
    {
        rusage u{};
        getrusage(RUSAGE_THREAD, &u);
        return u.ru_nvcsw + u.ru_nivcsw;
    }
    void end_window()
    {
        const double taken = thread_time() - since_;
        const std::uint64_t others = other_->progress_.load(std::memory_order_relaxed) - others_;
        if (switches() == switches_ && others >= window / 2 && others <= window * 2)
            keep_window(taken / static_cast<double>(window));
        begin();
    }

    alignas(64) std::atomic<std::uint64_t> progress_{0};
    alignas(64) const meter* other_ = nullptr;
    std::uint64_t others_ = 0;
    long switches_ = 0;
    double since_ = 0;
    std::vector<double> kept_;
    std::atomic<std::size_t> count_{0};
};

/// An event loop that is always awake: the fastest that a granted coroutine can get to its thread.
class spinning_loop final : public amux::scheduler {
public:
    void post(node& n) noexcept override
    {
        n.next = posted_.load(std::memory_order_relaxed);
        while (!posted_.compare_exchange_weak(n.next, &n, std::memory_order_release,
                                              std::memory_order_relaxed)) {
        }
    }
    void schedule_at(time_point, node&) noexcept override { std::terminate(); }
    bool cancel(node&) noexcept override { std::terminate(); }
    time_point now() const noexcept override { return {}; }

    void run_until(const bool& ended)
    {
        int spins = 0;
        while (!ended) {
            // One coroutine lives here, so there is one node at most.
            if (node* const n = posted_.exchange(nullptr, std::memory_order_acquire)) {
                n->run();
                spins = 0;
            } else {
                short_lock::wait(spins++);
            }
        }
    }

private:
    std::atomic<node*> posted_{nullptr};
};

template <class Mux>
hooked await_until(amux::scheduler*, Mux& mux, const keys& k, meter& m,
                   const std::atomic<bool>& stop, bool& ended)
{
    for (std::size_t i = 0; !stop.load(std::memory_order_relaxed);
         i = i + 1 == k.size() ? 0 : i + 1) {
        {
            auto guard = co_await mux.lock(k[i]);
            keep(guard);
        }
        m.tick();
    }
    ended = true;
}

/// What a thread does until it is stopped.
template <class Mux>
auto awaiting(Mux& mux)
{
    return [&mux](const keys& k, meter& m, const std::atomic<bool>& stop) {
        spinning_loop loop;
        bool ended = false;
        await_until(&loop, mux, k, m, stop, ended);
        loop.run_until(ended);
    };
}
template <class Once>
auto calling(Once once)
{
    return [once](const keys& k, meter& m, const std::atomic<bool>& stop) {
        for (std::size_t i = 0; !stop.load(std::memory_order_relaxed);
             i = i + 1 == k.size() ? 0 : i + 1) {
            once(k[i]);
            m.tick();
        }
    };
}

/// This thread runs on the first processor of those that it may use, or on the last: those share the least.
void run_on(bool last)
{
    static const cpu_set_t allowed = [] {
        cpu_set_t s;
        sched_getaffinity(0, sizeof s, &s);
        return s;
    }();
    cpu_set_t mine;
    CPU_ZERO(&mine);
    for (int i = 0; i != CPU_SETSIZE; ++i) {
        if (!CPU_ISSET(i, &allowed))
            continue;
        if (last)
            CPU_ZERO(&mine);
        CPU_SET(i, &mine);
        if (!last)
            break;
    }
    sched_setaffinity(0, sizeof mine, &mine);
}

/// Both threads do `work` until enough windows are kept, or for half a second. Returns: their median.
template <class Work>
double run_two(const std::array<keys, 2>& k, Work work)
{
    std::atomic<bool> stop{false};
    std::atomic<int> ready{0};
    meter first;
    meter second;
    first.beside(second);
    second.beside(first);
    const auto body = [&](meter& m, const keys& mine, bool last) {
        run_on(last);
        ++ready;
        while (ready != 2)
            short_lock::wait(64);
        m.begin();
        work(mine, m, stop);
    };
    std::thread a{[&] { body(first, k[0], false); }};
    std::thread b{[&] { body(second, k[1], true); }};
    for (int ms = 0; ms != 500 && first.count() + second.count() < 200; ++ms)
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    stop = true;
    a.join();
    b.join();
    std::vector<double> all = first.kept();
    all.insert(all.end(), second.kept().begin(), second.kept().end());
    if (all.size() < 20)
        return std::nan("");
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    std::nth_element(all.begin(), middle, all.end());
    return *middle;
}

void two_threads(row& r, bool same_key)
{
    static std::array<keys, 2> k;
    for (std::size_t t = 0; t != 2; ++t) {
        k[t].clear();
        for (key i = 0; i != (same_key ? 1 : 1'000); ++i)
            k[t].push_back(same_key ? 0 : static_cast<key>(t) * 1'000 + i);
    }
    static amux::asyncmux<key> mux;
    static keyed_floor<key, 16> floor;
    static keyed_floor<key, 64> wide_floor;
    static map_of<key, std::mutex> map;
    static tbb_map<key> tbb;
    r.add("asyncmux", [] { return run_two(k, awaiting(mux)); });
    r.add("asyncmux, try_lock until it is free", [] {
        return run_two(k, calling([](const key& x) {
                           auto g = mux.try_lock(x);
                           for (int spins = 0; !g; ++spins) {
                               short_lock::wait(spins);
                               g = mux.try_lock(x);
                           }
                       }));
    });
    // What it takes to get a line of the cache from one processor to the other, on this machine today.
    static std::atomic<std::size_t> counter{0};
    r.add("one atomic counter", [] { return run_two(k, calling([](const key&) { ++counter; })); });
    r.add("floor, 16 shards", [] {
        return run_two(k, calling([](const key& x) {
                           const keyed_floor<key, 16>::guard g{floor, x};
                           keep(g);
                       }));
    });
    r.add("floor, 64 shards", [] {
        return run_two(k, calling([](const key& x) {
                           const keyed_floor<key, 64>::guard g{wide_floor, x};
                           keep(g);
                       }));
    });
    r.add("map of std::mutex", [] {
        return run_two(k, calling([](const key& x) {
                           const map_of<key, std::mutex>::user user{map, x};
                           const std::lock_guard g{*user};
                           keep(g);
                       }));
    });
    if constexpr (tbb_map<key>::found)
        r.add("tbb::concurrent_hash_map",
              [] { return run_two(k, calling([](const key& x) { tbb.lock_and_unlock(x); })); });
    // On the same key the floor admits whoever comes first, and keeps nobody in line.
    if (same_key)
        r.at_most(1.2, "asyncmux, try_lock until it is free", "floor, 16 shards");
    else
        r.at_most(1.3, "asyncmux", "floor, 16 shards");
}

} // namespace

void add_threads(table& t)
{
    t.add("two threads, disjoint keys", [](row& r) { two_threads(r, false); });
    t.add("two threads, same key", [](row& r) { two_threads(r, true); });
}

} // namespace bench

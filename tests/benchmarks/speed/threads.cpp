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

#include <amux/counting.hpp>

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

using two_keys = std::array<keys, 2>;

/// Both threads do `work` until enough windows are kept, or for half a second. Returns: their median.
template <class Work>
double run_two(const two_keys& k, Work work, std::size_t enough = 200)
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
    for (int ms = 0; ms != 500 && first.count() + second.count() < enough; ++ms)
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    stop = true;
    a.join();
    b.join();
    std::vector<double> all = first.kept();
    all.insert(all.end(), second.kept().begin(), second.kept().end());
    if (all.size() < enough / 10)
        return std::nan("");
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    std::nth_element(all.begin(), middle, all.end());
    return *middle;
}

/// Gets a line of the cache to the other processor and back.
void take_turns(const keys& mine, meter& m, const std::atomic<bool>& stop)
{
    static std::atomic<const keys*> last{nullptr};
    while (!stop.load(std::memory_order_relaxed)) {
        if (last.load(std::memory_order_acquire) == &mine) {
            short_lock::wait(0);
        } else {
            last.store(&mine, std::memory_order_release);
            m.tick();
        }
    }
}

/// Whether the two processors are near each other or far apart, as the line takes. The host of a virtual machine changes
/// that as it likes, within seconds.
enum class distance { near, far };

bool is(distance asked, const two_keys& k)
{
    constexpr double border = 150; // ns; there was 55 and 390
    const double there_and_back = run_two(k, take_turns, 20);
    return asked == distance::far ? there_and_back > border : there_and_back <= border;
}

/// Samples of `work` at this distance only.
template <class Work>
row::sample sample_at(distance d, const two_keys& k, Work work)
{
    return [d, &k, work] {
        for (int attempt = 0; attempt != 5; ++attempt) {
            const double each = is(d, k) ? run_two(k, work) : std::nan("");
            if (std::isfinite(each) && is(d, k))
                return each;
            std::this_thread::sleep_for(std::chrono::milliseconds{10});
        }
        return std::nan("");
    };
}

void two_threads(row& r, bool same_key, distance d)
{
    static two_keys k;
    for (std::size_t t = 0; t != 2; ++t) {
        k[t].clear();
        for (key i = 0; i != (same_key ? 1 : 1'000); ++i)
            k[t].push_back(same_key ? 0 : static_cast<key>(t) * 1'000 + i);
    }
    static amux::asyncmux<key> mux;
    static amux::asyncmux<key, amux::counting<>> counted;
    static keyed_floor<key, 16> floor;
    static keyed_floor<key, 64> wide_floor;
    static map_of<key, std::mutex> map;
    static tbb_map<key> tbb;
    const auto add = [&](const char* name, auto work) { r.add(name, sample_at(d, k, work)); };
    add("asyncmux", awaiting(mux));
    add("asyncmux, counting", awaiting(counted));
    add("asyncmux, try_lock until it is free", calling([](const key& x) {
            auto g = mux.try_lock(x);
            for (int spins = 0; !g; ++spins) {
                short_lock::wait(spins);
                g = mux.try_lock(x);
            }
        }));
    add("a line there and back", take_turns);
    add("floor, 16 shards", calling([](const key& x) {
            const keyed_floor<key, 16>::guard g{floor, x};
            keep(g);
        }));
    add("floor, 64 shards", calling([](const key& x) {
            const keyed_floor<key, 64>::guard g{wide_floor, x};
            keep(g);
        }));
    add("map of std::mutex", calling([](const key& x) {
            const map_of<key, std::mutex>::user user{map, x};
            const std::lock_guard g{*user};
            keep(g);
        }));
    if constexpr (tbb_map<key>::found)
        add("tbb::concurrent_hash_map", calling([](const key& x) { tbb.lock_and_unlock(x); }));
    // On the same key the floor admits whoever comes first, and keeps nobody in line.
    if (same_key)
        r.at_most(1.2, "asyncmux, try_lock until it is free", "floor, 16 shards");
    else
        r.at_most(1.3, "asyncmux", "floor, 16 shards");
}

} // namespace

void add_threads(table& t)
{
    for (const bool same_key : {false, true}) {
        const std::string name =
            same_key ? "two threads, same key, " : "two threads, disjoint keys, ";
        t.add(name + "near", [=](row& r) { two_threads(r, same_key, distance::near); });
        t.add(name + "far", [=](row& r) { two_threads(r, same_key, distance::far); });
    }
}

} // namespace bench

// SPDX-License-Identifier: BSL-1.0
// What a lock on a key costs when nobody is in the way, beside what people write by hand: a map of mutexes with a count
// of users, under a mutex. Every sample runs with a second thread in the process: the C library's mutexes are cheaper
// in a process that has one thread only.

#include <amux/asyncmux.hpp>

#include <benchmark/benchmark.h>

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

/// A process with a second, parked thread.
class second_thread {
public:
    ~second_thread()
    {
        done_ = true;
        done_.notify_one();
    }

private:
    std::atomic<bool> done_{false};
    std::jthread thread_{[this] { done_.wait(false); }};
};

template <class Key>
class map_of_mutexes {
public:
    class guard {
    public:
        guard(map_of_mutexes& m, const Key& key) : map_{m}
        {
            {
                const std::lock_guard lock{map_.mutex_};
                slot_ = map_.slots_.try_emplace(key).first;
                ++slot_->second.users;
            }
            slot_->second.mutex.lock();
        }
        guard(const guard&) = delete;
        guard& operator=(const guard&) = delete;
        ~guard()
        {
            slot_->second.mutex.unlock();
            const std::lock_guard lock{map_.mutex_};
            if (--slot_->second.users == 0)
                map_.slots_.erase(slot_);
        }

    private:
        map_of_mutexes& map_;
        typename std::unordered_map<Key, typename map_of_mutexes::slot>::iterator slot_;
    };

private:
    struct slot {
        std::mutex mutex;
        std::size_t users = 0;
    };

    std::mutex mutex_;
    std::unordered_map<Key, slot> slots_;
};

struct detached {
    struct promise_type {
        detached get_return_object() const noexcept { return {}; }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }
    };
};

template <class Key>
Key make_key(std::size_t i)
{
    if constexpr (std::is_same_v<Key, std::string>)
        return "user:" + std::to_string(100'000 + i);
    else
        return static_cast<Key>(i * 7919);
}

template <class Key>
std::vector<Key> make_keys(std::size_t n)
{
    std::vector<Key> keys;
    for (std::size_t i = 0; i < n; ++i)
        keys.push_back(make_key<Key>(i));
    return keys;
}

template <class Mux, class Key>
detached lock_all_in_turn(benchmark::State& state, Mux& mux, const std::vector<Key>& keys)
{
    std::size_t i = 0;
    for (auto _ : state) {
        auto guard = co_await mux.lock(keys[i]);
        benchmark::DoNotOptimize(guard);
        i = i + 1 == keys.size() ? 0 : i + 1;
    }
}

template <class Mux>
void keyed_lock(benchmark::State& state)
{
    const second_thread parked;
    const auto keys = make_keys<typename Mux::key_type>(static_cast<std::size_t>(state.range(0)));
    Mux mux;
    lock_all_in_turn(state, mux, keys);
}

template <class Key>
void by_hand(benchmark::State& state)
{
    const second_thread parked;
    const auto keys = make_keys<Key>(static_cast<std::size_t>(state.range(0)));
    map_of_mutexes<Key> map;
    std::size_t i = 0;
    for (auto _ : state) {
        const typename map_of_mutexes<Key>::guard guard{map, keys[i]};
        benchmark::ClobberMemory();
        i = i + 1 == keys.size() ? 0 : i + 1;
    }
}

constexpr std::int64_t few = 1'000;
constexpr std::int64_t many = 100'000;

BENCHMARK(keyed_lock<amux::asyncmux<std::int64_t>>)->Arg(1)->Arg(few)->Arg(many);
BENCHMARK(keyed_lock<amux::unsynchronized_asyncmux<std::int64_t>>)->Arg(1)->Arg(few)->Arg(many);
BENCHMARK(by_hand<std::int64_t>)->Arg(1)->Arg(few)->Arg(many);
BENCHMARK(keyed_lock<amux::asyncmux<std::string>>)->Arg(few);
BENCHMARK(keyed_lock<amux::unsynchronized_asyncmux<std::string>>)->Arg(few);
BENCHMARK(by_hand<std::string>)->Arg(few);

} // namespace

BENCHMARK_MAIN();

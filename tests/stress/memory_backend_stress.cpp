// SPDX-License-Identifier: BSL-1.0
// Without this file the store in memory may let two threads in, or lose the one that waits, when they come together.
#include <amux/memory_backend.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>
#include <amux/testing/conformance.hpp>

#include "support/scale.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <cstddef>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
using amux::memory_backend;

namespace {

// Asks, and waits to be told, until the key is its own.
amux::task<> take(memory_backend& store, std::string key, std::string token)
{
    for (;;) {
        const auto answer = co_await store.acquire(key, token, 1h);
        if (answer.acquired)
            co_return;
        co_await store.wait_for_release(key);
    }
}

amux::task<> wait_once(memory_backend& store, std::stop_token stop, int& woken)
{
    co_await store.wait_for_release("k", stop);
    ++woken;
}

} // namespace

TEST_CASE("memory_backend: threads exclude each other, and each is woken",
          "[memory_backend][stress]")
{
    memory_backend store;
    constexpr std::size_t keys = 2;
    long count[keys] = {}; // guarded by the leases
    const int rounds = support::scaled(50'000);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, token = std::to_string(t)] {
            for (int n = 0; n < rounds; ++n) {
                const auto which = static_cast<std::size_t>(n) % keys;
                const std::string key = std::to_string(which);
                amux::sync_wait(take(store, key, token));
                ++count[which];
                store.release(key, token);
            }
        });
    }
    for (auto& t : threads)
        t.join();
    CHECK(count[0] + count[1] == 4L * rounds);
    CHECK(store.size() == 0);
}

TEST_CASE("memory_backend: a stop and a release that come together wake once",
          "[memory_backend][stress]")
{
    memory_backend store;
    const int rounds = support::scaled(2'000);
    int woken = 0;
    for (int n = 0; n < rounds; ++n) {
        store.acquire("k", "t", 1h);
        std::stop_source stop;
        std::thread stopper{[&stop] { stop.request_stop(); }};
        std::thread releaser{[&store] { store.release("k", "t"); }};
        amux::sync_wait(wait_once(store, stop.get_token(), woken));
        stopper.join();
        releaser.join();
    }
    CHECK(woken == rounds);
}

TEST_CASE("memory_backend: it keeps the law of lock_backend in real time",
          "[memory_backend][stress]")
{
    memory_backend store;
    for (const auto& r :
         amux::testing::run_conformance(store, amux::testing::in_real_time("real time ", 50ms))) {
        INFO(r.name << ": " << r.message);
        CHECK(r.ok);
    }
}

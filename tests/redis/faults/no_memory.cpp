// SPDX-License-Identifier: BSL-1.0
// Without this file a request that finds no memory may leave behind half of itself: answers then go to the wrong ones.
#include "redis/support/lease_client.hpp"
#include "redis/support/redis_server.hpp"
#include "support/allocation_counter.hpp"
#include "support/begun_without_memory.hpp"
#include "support/foreign_coroutine.hpp"

#include <amux/redis_backend.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <new>
#include <stop_token>
#include <string>

using namespace std::chrono_literals;
using amux::redis_backend;
using amux::sync_wait;
using amux::task;
using support::begun_without_memory;
using support::no_memory;
using support::redis_server;
using support::soon;

namespace {

const std::string long_key = "a key that is too long for the buffer inside of a string";

/// Whether there was memory for all of it.
task<bool> acquires(redis_backend& b, std::string key, std::size_t nth)
{
    auto call = b.acquire(key, long_key, 60s);
    try {
        co_await begun_without_memory<decltype(call)>{call, nth};
    } catch (const std::bad_alloc&) {
        co_return false;
    }
    co_return true;
}

support::fire_and_forget wait(redis_backend& b, std::stop_token stop, std::atomic<int>& woken)
{
    co_await b.wait_for_release(long_key, stop);
    ++woken;
}

/// Waits to be resumed by hand, and counts how often that happens.
struct counted {
    struct promise_type {
        counted get_return_object() noexcept
        {
            return {std::coroutine_handle<promise_type>::from_promise(*this)};
        }
        std::suspend_always initial_suspend() const noexcept { return {}; }
        std::suspend_always final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }
    };
    std::coroutine_handle<promise_type> handle;
};

counted count(std::atomic<int>& resumed)
{
    for (;;) {
        ++resumed;
        co_await std::suspend_always{};
    }
}

} // namespace

TEST_CASE("redis: a request that finds no memory is not asked, and no other gets its answer",
          "[redis][faults][memory]")
{
    redis_server server;
    redis_backend b{server.url()};
    REQUIRE(sync_wait(b.acquire("held", "its owner", 60s)).acquired);
    bool failed = false;
    for (int round = 0; round < 40; ++round) {
        std::size_t nth = 1;
        while (!sync_wait(acquires(b, std::to_string(round), nth))) {
            failed = true;
            REQUIRE(server.cli("EXISTS", support::lock_name(std::to_string(round))).number == 0);
            REQUIRE(!sync_wait(b.acquire("held", "a thief", 60s)).acquired);
            REQUIRE(++nth < 50);
        }
    }
    if (support::allocations() != 0) // they are counted, and so can fail, in this build
        CHECK(failed);
}

TEST_CASE("redis: a wait that finds no memory is in no list", "[redis][faults][memory]")
{
    redis_server server;
    redis_backend b{server.url()};
    sync_wait(b.wait_for_release("connect"));
    std::atomic<int> resumed{0};
    const counted c = count(resumed);
    for (std::size_t nth = 1;; ++nth) {
        REQUIRE(nth < 50);
        const std::string key = long_key + std::to_string(nth); // nobody has subscribed to it yet
        auto forgotten = b.wait_for_release(key);
        bool listed = true;
        try {
            const no_memory none{nth};
            forgotten.await_suspend(std::coroutine_handle<>{c.handle});
        } catch (const std::bad_alloc&) {
            listed = false;
        }
        sync_wait(b.wait_for_release(key)); // the key is free: all who wait for it are told
        sync_wait(b.get(long_key)); // they are resumed by now
        if (listed) {
            CHECK(soon([&] { return resumed == 1; }));
            break;
        }
        REQUIRE(resumed == 0);
    }
    c.handle.destroy();
}

TEST_CASE("redis: a wait that is stopped where there is no memory ends, and the next one waits",
          "[redis][faults][memory]")
{
    redis_server server;
    redis_backend b{server.url()};
    for (std::size_t nth = 1; nth < 8; ++nth) {
        REQUIRE(sync_wait(b.acquire(long_key, "its owner", 60s)).acquired);
        std::stop_source stop;
        std::atomic<int> woken{0};
        wait(b, stop.get_token(), woken);
        REQUIRE(soon([&] {
            return server.cli("PUBSUB", "NUMSUB", support::channel_name(long_key))
                       .parts.at(1)
                       .number == 1;
        }));
        {
            const no_memory none{nth};
            stop.request_stop();
        }
        REQUIRE(soon([&] { return woken == 1; }));
        wait(b, {}, woken);
        REQUIRE(sync_wait(b.release(long_key, "its owner")));
        REQUIRE(soon([&] { return woken == 2; }));
    }
}

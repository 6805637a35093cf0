// SPDX-License-Identifier: BSL-1.0
// Without this file a redlock that finds no memory may keep half of a question for ever, or resume its coroutine twice.
#include "support/allocation_counter.hpp"
#include "support/begun_without_memory.hpp"
#include "support/lease_bench.hpp"
#include "support/redlock_world.hpp"

#include <amux/error.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/memory_backend.hpp>
#include <amux/redlock.hpp>
#include <amux/task.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using support::asked;
using support::begun_without_memory;

namespace {

/// Three stores with memory, and no more.
struct world {
    amux::manual_event_loop loop;
    amux::redlock<amux::memory_backend> lock{support::memories(3, loop), loop};

    /// Whether `ask` has ended, and in time for another one.
    template <class Ask>
    std::string outcome(Ask ask, std::size_t nth)
    {
        missed = false;
        asked<bool> a{loop, ask(*this, nth)};
        pass(300ms);
        return a.state();
    }
    void pass(milliseconds d) { support::let_pass(loop, d); }
    bool missed = false;
};

const std::string the_key = "a key that no string holds in itself";
const std::string the_token = "a token that no string holds in itself";
constexpr std::size_t enough = 100'000;

amux::task<bool> acquire(world& w, std::size_t nth)
{
    auto call = w.lock.acquire(the_key, the_token, 1s);
    const auto result = co_await begun_without_memory<decltype(call)>{call, nth, &w.missed};
    co_return result.acquired;
}
amux::task<bool> extend(world& w, std::size_t nth)
{
    auto call = w.lock.extend(the_key, the_token, 1s);
    const bool yes = co_await begun_without_memory<decltype(call)>{call, nth, &w.missed};
    co_return yes;
}
amux::task<bool> release(world& w, std::size_t nth)
{
    auto call = w.lock.release(the_key, the_token);
    const bool yes = co_await begun_without_memory<decltype(call)>{call, nth, &w.missed};
    co_return yes;
}

/// A store whose answers to a release may be lost.
struct losing_store {
    amux::memory_backend store;
    const bool* loses;

    auto acquire(std::string_view key, std::string_view token, milliseconds ttl)
    {
        return store.acquire(key, token, ttl);
    }
    auto extend(std::string_view key, std::string_view token, milliseconds ttl)
    {
        return store.extend(key, token, ttl);
    }
    auto release(std::string_view key, std::string_view token)
    {
        if (*loses)
            throw amux::backend_error{amux::backend_error_kind::indeterminate, "lost"};
        return store.release(key, token);
    }
    auto get(std::string_view key) { return store.get(key); }
};

amux::task<bool> use_once(amux::redlock<losing_store>& lock, std::string token, bool released)
{
    const auto result = co_await lock.acquire(the_key, token, 1s);
    if (released)
        co_await lock.release(the_key, token);
    co_return result.acquired;
}

amux::task<bool> acquire_slowly(support::redlock_world& w, std::size_t nth, bool& missed)
{
    auto call = w.lock->acquire(w.key, "a", 10s);
    const auto result = co_await begun_without_memory<decltype(call)>{call, nth, &missed};
    co_return result.acquired;
}

} // namespace

TEST_CASE("redlock: a question that finds no memory leaves nothing behind", "[redlock][memory]")
{
    const auto ask = GENERATE(&acquire, &extend, &release);
    world w;
    std::ptrdiff_t live = 0;
    bool missed = true;
    for (std::size_t nth = 1; missed; ++nth) {
        REQUIRE(nth < 1'000);
        CAPTURE(nth);
        if (ask != &acquire)
            REQUIRE(w.outcome(&acquire, enough) == "done");
        CHECK(w.outcome(ask, nth) != "waits");
        missed = w.missed;
        w.pass(2s); // nothing is held by then, nor tried again
        CHECK(w.outcome(&acquire, enough) == "done");
        CHECK(w.outcome(&release, enough) == "done");
        w.pass(2s);
        if (nth > 1)
            CHECK(support::live_allocations() == live);
        live = support::live_allocations();
    }
}

TEST_CASE("redlock: of a token nothing is kept once no question about it can be carried out",
          "[redlock][memory]")
{
    const bool released = GENERATE(false, true), never = false;
    amux::manual_event_loop loop;
    std::vector<losing_store> nodes;
    for (int n = 0; n != 3; ++n)
        nodes.push_back({amux::memory_backend{loop}, n == 0 ? &released : &never});
    amux::redlock<losing_store> lock{std::move(nodes), loop};
    std::ptrdiff_t live = 0;
    for (int n = 0; n != 4; ++n) {
        {
            asked<bool> a{loop, use_once(lock, the_token + std::to_string(n), released)};
            loop.run_ready();
            CHECK(a.value());
        }
        support::let_pass(loop, 35s); // a lost release is minded for 30 s
        if (n > 1)
            CHECK(support::live_allocations() == live);
        live = support::live_allocations();
    }
}

TEST_CASE("redlock: a question that finds no memory for its limit is over at once",
          "[redlock][memory]")
{
    // It is at the nodes by then, whose answers may resume the coroutine: no error may, too.
    support::redlock_world w;
    for (auto& s : w.stores)
        s.always(amux::testing::operation::acquire, amux::testing::course::late(50ms));
    bool missed = true;
    for (std::size_t nth = 1; missed; ++nth) {
        REQUIRE(nth < 1'000);
        CAPTURE(nth);
        const auto before = w.calls(amux::testing::operation::acquire);
        asked<bool> a{w.loop, acquire_slowly(w, nth, missed)};
        w.loop.run_ready();
        if (w.calls(amux::testing::operation::acquire) != before)
            CHECK(a.state() != "threw");
        w.pass(300ms);
        CHECK(a.state() != "waits");
        auto r = w.release("a");
        w.pass(100ms);
        CHECK(w.held_by("a") == 0);
    }
}

// SPDX-License-Identifier: BSL-1.0
// Without this file the store that every other test of leases stands on may break the law, grow, or lose a waiter.
#include <amux/manual_event_loop.hpp>
#include <amux/memory_backend.hpp>
#include <amux/testing/conformance.hpp>

#include "support/allocation_counter.hpp"
#include "support/foreign_coroutine.hpp"
#include "support/scale.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <cstddef>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::manual_event_loop;
using amux::memory_backend;
using support::hooked_coroutine;

namespace {

bool acquire(memory_backend& b, const std::string& key, const std::string& token,
             std::chrono::milliseconds ttl = 1s)
{
    return b.acquire(key, token, ttl).await_resume().acquired;
}

hooked_coroutine wait(memory_backend& b, std::string key, int& woken, std::stop_token stop = {})
{
    co_await b.wait_for_release(key, stop);
    ++woken;
}

} // namespace

TEST_CASE("memory_backend: an acquire that finds no memory leaves the key free",
          "[memory_backend][memory]")
{
    manual_event_loop loop;
    memory_backend b{loop};
    const std::string key = "a key that is too long for the buffer inside of a string";
    const std::string token = key + "'s token";
    bool failed = false;
    std::size_t nth = 1;
    for (bool none = true; none; ++nth) {
        try {
            const support::no_memory missing{nth};
            none = !acquire(b, key, token);
        } catch (const std::bad_alloc&) {
            failed = true;
        }
        REQUIRE(b.size() == (none ? 0u : 1u));
        REQUIRE(nth < 50);
    }
    if (support::allocations() != 0) // they are counted, and so can fail, in this build
        CHECK(failed);
    loop.advance(1s);
    CHECK(b.size() == 0);
}

TEST_CASE("memory_backend: it keeps the law of lock_backend", "[memory_backend][conformance]")
{
    manual_event_loop loop;
    memory_backend store{loop};
    const auto results =
        amux::testing::run_conformance(store, amux::testing::in_virtual_time(loop));
    CHECK(results.size() == 21); // it models every refinement
    for (const auto& r : results) {
        INFO(r.name << ": " << r.message);
        CHECK(r.ok);
    }
    loop.advance(24h * 400);
    CHECK(store.size() == 0);
}

TEST_CASE("memory_backend: size() counts the leases that are alive", "[memory_backend]")
{
    manual_event_loop loop;
    memory_backend store{loop};
    CHECK(store.size() == 0);
    acquire(store, "a", "t", 10ms);
    acquire(store, "b", "t", 20ms);
    acquire(store, "b", "t", 20ms);
    acquire(store, "b", "another", 50ms);
    CHECK(store.size() == 2);
    loop.advance(10ms);
    CHECK(store.size() == 1);
    store.release("b", "t");
    CHECK(store.size() == 0);
}

TEST_CASE("memory_backend: without a scheduler it goes by amux::clock", "[memory_backend]")
{
    memory_backend store;
    REQUIRE(acquire(store, "k", "t", 1h));
    const auto found = store.inspect("k").await_resume();
    REQUIRE(found);
    CHECK(*found->remaining > 50min);
    CHECK(*found->remaining <= 1h);
}

TEST_CASE("memory_backend: a ttl that is not above zero is permanent trouble", "[memory_backend]")
{
    manual_event_loop loop;
    memory_backend store{loop};
    acquire(store, "k", "t");
    const auto ttl = GENERATE(0ms, -1ms);
    const auto kind_of = [](auto call) -> std::optional<amux::backend_error_kind> {
        try {
            call();
        } catch (const amux::backend_error& e) {
            CHECK(std::string{e.what()}.find("'k'") != std::string::npos);
            return e.kind();
        }
        return std::nullopt;
    };
    CHECK(kind_of([&] { store.acquire("k", "t", ttl); }) == amux::backend_error_kind::permanent);
    CHECK(kind_of([&] { store.extend("k", "t", ttl); }) == amux::backend_error_kind::permanent);
    CHECK(store.get("k").await_resume() == "t");
}

TEST_CASE("memory_backend: a move takes leases and waiters along", "[memory_backend]")
{
    manual_event_loop loop;
    memory_backend store{loop};
    acquire(store, "k", "t");
    int woken = 0;
    hooked_coroutine waiter = wait(store, "k", woken);
    waiter.start(&loop);
    memory_backend moved{std::move(store)};
    store = std::move(moved);
    CHECK(store.get("k").await_resume() == "t");
    store.release("k", "t");
    loop.run_ready();
    CHECK(woken == 1);
}

TEST_CASE("memory_backend: a release wakes all who wait for the key, and nobody else",
          "[memory_backend]")
{
    manual_event_loop loop;
    memory_backend store{loop};
    acquire(store, "k", "t");
    acquire(store, "other", "t");
    int woken = 0;
    int others = 0;
    std::vector<hooked_coroutine> waiters;
    for (int n = 0; n < 3; ++n) {
        waiters.push_back(wait(store, "k", woken));
        waiters.back().start(&loop);
    }
    hooked_coroutine other = wait(store, "other", others);
    other.start(&loop);
    SECTION("each where its own scheduler runs")
    {
        store.release("k", "t");
        CHECK(woken == 0);
        loop.run_ready();
    }
    SECTION("one without a scheduler inside the release")
    {
        hooked_coroutine here = wait(store, "k", woken);
        here.start(nullptr);
        store.release("k", "t");
        CHECK(woken == 1);
        woken = 0;
        loop.run_ready();
    }
    CHECK(woken == 3);
    CHECK(others == 0);
    store.release("other", "t");
    loop.run_ready();
    CHECK(others == 1);
}

TEST_CASE("memory_backend: who waits is told once, by the release or by the stop",
          "[memory_backend]")
{
    manual_event_loop loop;
    memory_backend store{loop};
    acquire(store, "k", "t");
    int woken = 0;
    std::stop_source stop;
    hooked_coroutine waiter = wait(store, "k", woken, stop.get_token());
    amux::scheduler* const where = GENERATE(true, false) ? &loop : nullptr;
    SECTION("stopped beforehand")
    {
        stop.request_stop();
        waiter.start(where);
        CHECK(woken == 1);
    }
    SECTION("stopped")
    {
        waiter.start(where);
        CHECK(woken == 0);
        stop.request_stop();
        loop.run_ready();
        CHECK(woken == 1);
        store.release("k", "t");
    }
    SECTION("released")
    {
        waiter.start(where);
        store.release("k", "t");
        stop.request_stop();
    }
    loop.run_ready();
    CHECK(woken == 1);
    CHECK(waiter.done());
}

TEST_CASE("memory_backend: a frame that waits may be destroyed at any moment", "[memory_backend]")
{
    manual_event_loop loop;
    memory_backend store{loop};
    acquire(store, "k", "t");
    int woken = 0;
    std::stop_source stop;
    std::optional<hooked_coroutine> first{wait(store, "k", woken, stop.get_token())};
    std::optional<hooked_coroutine> gone{wait(store, "k", woken, stop.get_token())};
    std::optional<hooked_coroutine> last{wait(store, "k", woken)};
    first->start(&loop);
    gone->start(&loop);
    last->start(&loop);
    SECTION("while it waits")
    {
        gone.reset();
        store.release("k", "t");
    }
    SECTION("released, and not resumed yet")
    {
        store.release("k", "t");
        gone.reset();
    }
    SECTION("stopped, and not resumed yet")
    {
        stop.request_stop();
        gone.reset();
        store.release("k", "t");
    }
    loop.run_ready();
    CHECK(woken == 2);
}

TEST_CASE("memory_backend: a frame may be destroyed by one that is resumed before it",
          "[memory_backend]")
{
    manual_event_loop loop;
    memory_backend store{loop};
    acquire(store, "k", "t");
    int woken = 0;
    std::optional<hooked_coroutine> victim;
    hooked_coroutine killer = [](memory_backend& b,
                                 std::optional<hooked_coroutine>& other) -> hooked_coroutine {
        co_await b.wait_for_release("k");
        other.reset();
    }(store, victim);
    victim.emplace(wait(store, "k", woken));
    amux::scheduler* const where = GENERATE(true, false) ? &loop : nullptr;
    killer.start(where);
    victim->start(where);
    store.release("k", "t");
    loop.run_ready();
    CHECK(killer.done());
    CHECK(woken == 0);
}

TEST_CASE("memory_backend: a million keys, one after the other, leave nothing behind",
          "[memory_backend]")
{
    manual_event_loop loop;
    memory_backend store{loop};
    int woken = 0;
    bool free = true;
    const auto use = [&](int n) {
        const std::string key = "key number " + std::to_string(n);
        free &= acquire(store, key, "t", 10ms);
        if (n % 3 == 0)
            store.release(key, "t");
        if (n % 3 == 1) {
            hooked_coroutine waiter = wait(store, key, woken);
            waiter.start(&loop);
        }
        loop.advance(1ms); // the others expire
    };
    for (int n = 0; n < 1'000; ++n)
        use(n);
    const auto before = support::live_allocations();
    for (int n = 1'000; n < support::scaled(1'000'000); ++n)
        use(n);
    CHECK(free);
    CHECK(support::live_allocations() - before < 100);
    CHECK(store.size() < 20);
}

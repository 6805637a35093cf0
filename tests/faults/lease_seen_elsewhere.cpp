// SPDX-License-Identifier: BSL-1.0
// Without this file faults that other libraries' leases have had may come to these unseen.
#include "support/lease_bench.hpp"

#include <amux/distributed_lock.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <coroutine>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

using namespace std::chrono_literals;
using amux::acquired_lock;
using amux::backend_error_kind;
using amux::task;
using amux::testing::course;
using amux::testing::operation;
using support::asked;
using support::lease_bench;
using support::let_pass;
using milliseconds = std::chrono::milliseconds;

// Seen in Redisson: after a renewal that failed, no later lock of the same name is renewed any more.
TEST_CASE("lease: after one that was lost in trouble the next one of the key is renewed",
          "[lease][field]")
{
    lease_bench b;
    acquired_lock first = b.hold("k", {.ttl = 1s, .renew = true});
    b.store.always(operation::extend, course::fails(backend_error_kind::indeterminate));
    b.pass_slowly(1100ms);
    REQUIRE_FALSE(first.is_held());
    b.store.always(operation::extend, course::at_once());
    acquired_lock second = b.hold("k", {.ttl = 1s, .renew = true});
    b.pass_slowly(5s);
    CHECK(second.is_held());
    CHECK(b.log.count("renew") >= 10);
}

// Seen in a lock provider that recovers a grant whose answer was lost, hands it out, and forgets to renew it.
TEST_CASE("lease: one that is granted at the second try is renewed like any other",
          "[lease][field]")
{
    lease_bench b;
    const bool reply_lost = GENERATE(true, false);
    b.store.next(operation::acquire, reply_lost ? course::loses_reply()
                                                : course::fails(backend_error_kind::not_applied));
    auto l = b.ask(b.locks.acquire("k", {.ttl = 1s, .renew = true}));
    b.pass_slowly(5s);
    REQUIRE(l.state() == "done");
    CHECK(l.value().is_held());
    CHECK(b.log.count("renew") >= 10);
}

// Seen in node-redlock: the time counts from the first of many attempts, so that a lease that was waited for is over
// before it begins.
TEST_CASE("lease: one that was waited for has its whole time before it", "[lease][field]")
{
    lease_bench b;
    acquired_lock other = b.hold("k", {.ttl = 10s});
    amux::distributed_lock elsewhere{b.store, b.loop};
    auto l = b.ask(elsewhere.acquire("k", {.ttl = 1s}));
    b.pass_slowly(5s);
    REQUIRE(l.state() == "waits");
    auto released = b.ask(other.release());
    while (l.state() == "waits")
        b.pass(1ms);
    CHECK(l.value().remaining() == 1s - 12ms);
}

// Seen in etcd's concurrency package: the repeated release of one who has not heard that it worked takes the lock of the
// next one in the same session.
TEST_CASE("lease: a release that is repeated does not free what was granted since",
          "[lease][field]")
{
    lease_bench b;
    acquired_lock first = b.hold("k", {.ttl = 10s});
    b.store.next(operation::release, course::loses_reply());
    auto released = b.ask(first.release());
    auto next = b.ask(b.locks.acquire("k", {.ttl = 10s}));
    b.pass_slowly(3s, 10ms);
    CHECK(released.state() == "trouble");
    CHECK(b.count(operation::release) >= 2);
    REQUIRE(next.state() == "done");
    CHECK(b.store.holder("k") == next.value().token());
    CHECK(next.value().is_held());
}

// The oldest fault of all: who comes late deletes the key, whoever has it by now.
TEST_CASE("lease: a holder that comes too late takes nothing from the next one", "[lease][field]")
{
    lease_bench b;
    acquired_lock late = b.hold("k", {.ttl = 1s});
    b.loop.advance(2s); // it computes
    b.store.usurp("k", "next", 1h);
    SECTION("released")
    {
        auto released = b.ask(late.release());
        b.pass();
        CHECK_FALSE(released.value());
    }
    SECTION("extended")
    {
        auto extended = b.ask(late.extend());
        b.pass();
        CHECK(extended.state() == "ended");
    }
    SECTION("destroyed")
    {
        acquired_lock dies = std::move(late);
    }
    b.pass_slowly(3s, 10ms);
    CHECK(b.store.holder("k") == "next");
}

// Seen where one thread renews for all: it dies of the first exception that nobody thought of.
TEST_CASE("lease: whatever a store throws at a renewal, this lease and the others are renewed",
          "[lease][field]")
{
    lease_bench b;
    const auto what = GENERATE(0, 1, 2);
    std::deque<acquired_lock> all;
    for (int i = 0; i != 10; ++i)
        all.push_back(b.hold("k" + std::to_string(i), {.ttl = 1s, .renew = true}));
    int thrown = 0;
    b.store.decide = [&](const amux::testing::backend_call& call) -> std::optional<course> {
        if (call.op != operation::extend || call.key != "k5" || ++thrown % 2 == 0)
            return std::nullopt;
        return course::throws(what == 0   ? std::make_exception_ptr(7)
                              : what == 1 ? std::make_exception_ptr(std::bad_alloc{})
                                          : std::make_exception_ptr(std::logic_error{"odd"}));
    };
    b.pass_slowly(10s);
    CHECK(thrown > 10);
    for (const acquired_lock& l : all)
        CHECK(l.is_held());
    CHECK(b.log.count("error") >= 5);
    CHECK(b.log.count("lost") == 0);
}

namespace {

/// Answers at once, as it is told; nothing is awaited in it.
struct blunt_backend {
    template <class T>
    struct answer {
        T value;
        bool await_ready() const noexcept { return true; }
        void await_suspend(std::coroutine_handle<>) const noexcept {}
        T await_resume() { return std::move(value); }
    };
    std::function<amux::acquire_result()> granted = [] {
        return amux::acquire_result{.acquired = true, .fence = 1};
    };
    std::function<void()> called = [] {};
    int acquires = 0;
    int extends = 0;
    int releases = 0;

    answer<amux::acquire_result> acquire(std::string_view, std::string_view, milliseconds)
    {
        ++acquires;
        called();
        return {granted()};
    }
    answer<bool> extend(std::string_view, std::string_view, milliseconds)
    {
        ++extends;
        called();
        return {true};
    }
    answer<bool> release(std::string_view, std::string_view)
    {
        ++releases;
        called();
        return {true};
    }
    answer<std::optional<std::string>> get(std::string_view) { return {std::nullopt}; }
};

} // namespace

TEST_CASE(
    "lease: a store that throws in the call, before there is anything to await, is in trouble",
    "[lease][field]")
{
    amux::manual_event_loop loop;
    blunt_backend store;
    amux::distributed_lock locks{store, loop};
    int calls = 0;
    store.called = [&] {
        if (++calls % 2 != 0)
            throw std::runtime_error{"no connection"};
    };
    asked l{loop, locks.acquire("k", {.ttl = 1s, .renew = true})};
    let_pass(loop, 5s);
    REQUIRE(l.state() == "done");
    CHECK(store.acquires == 2);
    CHECK(l.value().is_held());
    CHECK(store.extends >= 10);
    l.drop();
    let_pass(loop, 2s);
    CHECK(store.releases >= 1);
    CHECK(store.releases <= 2);
}

// Redis says -1 for a key that has no end, and -2 for one that is gone; who counts in seconds says 0 for a whole one. A
// wait of that length is none: a busy loop.
TEST_CASE("lease: a time that no holder can have left does not make a busy loop", "[lease][field]")
{
    const auto odd = GENERATE(-1ms, -2ms, (milliseconds::min)(), (milliseconds::max)(),
                              milliseconds{9'000'000'000'000}, milliseconds{0});
    amux::manual_event_loop loop;
    blunt_backend store;
    store.granted = [&] { return amux::acquire_result{.holder_ttl = odd}; };
    amux::distributed_lock locks{store, loop, {.poll_interval = 100ms}};
    asked l{loop, locks.acquire("k", {.max_wait = 2s})};
    let_pass(loop, 3s);
    CHECK(l.state() == "timeout");
    CHECK(store.acquires >= 15);
    CHECK(store.acquires <= 30);
}

// Seen in client-go: the callback for the end of a leadership that never began.
TEST_CASE("run_as_leader: who was never leader is told of no end", "[lease][field]")
{
    lease_bench b;
    std::stop_source stop;
    acquired_lock other = b.hold("role", {.ttl = 1h});
    b.log.told.clear();
    bool led = false;
    auto work = [&](acquired_lock&) { led = true; };
    auto r = b.ask(b.locks.run_as_leader("role", work, {.ttl = 1s}, stop.get_token()));
    b.pass_slowly(3s, 10ms);
    CHECK(r.state() == "waits");
    stop.request_stop();
    b.pass();
    CHECK(r.state() == "done");
    CHECK_FALSE(led);
    CHECK(b.log.told.empty());
}

// Seen in client libraries that keep a timer, or a place in a table, for each lock there ever was.
TEST_CASE("lease: after its end nothing is asked of the store any more", "[lease][field]")
{
    lease_bench b;
    const auto way = GENERATE(0, 1, 2);
    std::optional<acquired_lock> l{b.hold("k", {.ttl = 1s, .renew = true, .stop_margin = 100ms})};
    b.pass_slowly(2s);
    if (way == 0) {
        auto released = b.ask(l->release());
        b.pass();
    } else if (way == 1) {
        l.reset();
        b.pass();
    } else {
        b.store.usurp("k", "stranger", 1h);
        auto seen = b.ask(l->verify());
        b.pass();
    }
    const auto calls = b.store.calls().size();
    b.pass_slowly(1min, 10ms);
    CHECK(b.store.calls().size() == calls);
    CHECK(b.loop.run_ready() == 0);
}

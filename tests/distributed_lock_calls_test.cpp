// SPDX-License-Identifier: BSL-1.0
// Without this file nobody notices when with_lock, run_as_leader or drain ends in another way than it promises.
#include "support/lease_bench.hpp"

#include <amux/distributed_lock.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::acquired_lock;
using amux::backend_error_kind;
using amux::end_reason;
using amux::task;
using support::asked;
using support::lease_bench;
using course = lease_bench::course;
using operation = lease_bench::operation;

// with_lock

TEST_CASE("with_lock: gives what a plain function returns, and releases", "[lease][with_lock]")
{
    lease_bench b;
    bool held = false;
    auto fn = [&](acquired_lock& l) {
        held = l.is_held();
        return std::make_unique<int>(7);
    };
    auto r = b.ask(b.locks.with_lock("k", fn));
    b.pass();
    CHECK(*r.value() == 7);
    CHECK(held);
    CHECK_FALSE(b.store.holder("k"));
    CHECK(b.log.names() == "acquire release");
}

TEST_CASE("with_lock: gives what a coroutine returns, under the lock until then",
          "[lease][with_lock]")
{
    lease_bench b;
    auto fn = [&](acquired_lock& l) -> task<std::string> {
        co_await b.loop.sleep_for(50ms);
        co_return l.key() + "!";
    };
    auto r = b.ask(b.locks.with_lock("k", fn));
    b.pass();
    CHECK(b.store.holder("k"));
    b.pass(50ms);
    CHECK(r.value() == "k!");
    CHECK_FALSE(b.store.holder("k"));
}

TEST_CASE("with_lock: functions without a result, and with a reference", "[lease][with_lock]")
{
    lease_bench b;
    int calls = 0;
    auto plain = b.ask(b.locks.with_lock("a", [&](acquired_lock&) { ++calls; }));
    auto coroutine = b.ask(b.locks.with_lock("b", [&](acquired_lock&) -> task<> {
        ++calls;
        co_return;
    }));
    int target = 1;
    auto by_reference = [&](acquired_lock&) -> int& { return target; };
    auto by_task = [&](acquired_lock&) -> task<int&> { co_return target; };
    auto check = [&]() -> task<bool> {
        int& first = co_await b.locks.with_lock("c", by_reference);
        int& second = co_await b.locks.with_lock("d", by_task);
        co_return &first == &target && &second == &target;
    };
    auto same = b.ask(check());
    b.pass();
    CHECK(plain.state() == "done");
    CHECK(coroutine.state() == "done");
    CHECK(calls == 2);
    CHECK(same.value());
    CHECK(b.log.count("release") == 4);
}

TEST_CASE("with_lock: what the function throws is rethrown, after the release",
          "[lease][with_lock]")
{
    lease_bench b;
    const bool release_fails = GENERATE(false, true);
    if (release_fails)
        b.store.next(operation::release, course::fails(backend_error_kind::indeterminate));
    const bool coroutine = GENERATE(false, true);
    auto plainly = [](acquired_lock&) -> int { throw std::out_of_range{"mine"}; };
    auto later = [&](acquired_lock&) -> task<int> {
        co_await b.loop.sleep_for(5ms);
        throw std::out_of_range{"mine"};
    };
    auto r = b.ask(coroutine ? b.locks.with_lock("k", later) : b.locks.with_lock("k", plainly));
    b.pass();
    b.pass(5ms);
    REQUIRE(r.state() == "threw");
    CHECK(r.message() == "mine");
    b.pass_slowly(1s, 10ms);
    CHECK_FALSE(b.store.holder("k"));
    CHECK(b.log.count("error") == (release_fails ? 1 : 0));
}

TEST_CASE("with_lock: a release that fails does not take the result away", "[lease][with_lock]")
{
    lease_bench b;
    b.store.next(operation::release, course::fails(backend_error_kind::indeterminate));
    auto r = b.ask(b.locks.with_lock("k", [](acquired_lock&) { return 7; }));
    b.pass();
    CHECK(r.value() == 7);
    CHECK(b.log.names() == "acquire error release");
    b.pass_slowly(1s, 10ms);
    CHECK_FALSE(b.store.holder("k"));
}

TEST_CASE("with_lock: a lease that is lost while the work is done is told", "[lease][with_lock]")
{
    lease_bench b;
    bool seen = false;
    auto fn = [&](acquired_lock& l) -> task<int> {
        const bool slept = co_await b.loop.sleep_for(10s, l.lost_token());
        seen = !slept && !l.is_held();
        co_return 7;
    };
    auto r = b.ask(b.locks.with_lock("k", fn, {.ttl = 1s, .renew = true}));
    b.pass();
    b.store.usurp("k", "stranger", 1h);
    const auto asked_before = b.count(operation::release);
    b.pass(400ms);
    CHECK(seen);
    REQUIRE(r.state() == "ended");
    try {
        std::rethrow_exception(r.error());
    } catch (const amux::lock_ended_error& e) {
        CHECK(e.reason() == end_reason::expired);
        CHECK(e.key() == "k");
    }
    CHECK(b.count(operation::release) == asked_before); // lost for certain: nothing to release
    CHECK(b.log.names() == "acquire lost");
}

TEST_CASE("with_lock: work that outlasts the lease has failed, though the loop saw nothing",
          "[lease][with_lock]")
{
    lease_bench b;
    auto fn = [&](acquired_lock&) {
        b.loop.advance(989ms); // it computes; the store still has the lease
        return 7;
    };
    auto r = b.ask(b.locks.with_lock("k", fn, {.ttl = 1s}));
    b.pass();
    CHECK(r.state() == "ended");
    b.pass();
    CHECK(b.log.names() == "acquire lost");
    CHECK_FALSE(b.store.holder("k"));
}

TEST_CASE("with_lock: an exception of the work is not hidden by the loss", "[lease][with_lock]")
{
    lease_bench b;
    auto fn = [&](acquired_lock&) -> task<int> {
        co_await b.loop.sleep_for(2s);
        throw std::out_of_range{"mine"};
    };
    auto r = b.ask(b.locks.with_lock("k", fn, {.ttl = 1s}));
    b.pass();
    b.pass(1s);
    b.pass(1s);
    CHECK(r.state() == "threw");
    CHECK(b.log.names() == "acquire lost");
}

TEST_CASE("with_lock: work that gives the lease back itself has not lost it", "[lease][with_lock]")
{
    lease_bench b;
    auto fn = [&](acquired_lock& l) -> task<int> {
        const bool ours = co_await l.release();
        co_return ours ? 7 : 0;
    };
    auto r = b.ask(b.locks.with_lock("k", fn));
    b.pass();
    CHECK(r.value() == 7);
    CHECK(b.log.names() == "acquire release");
}

TEST_CASE("with_lock: a lease that is taken away by its token is lost", "[lease][with_lock]")
{
    lease_bench b;
    auto fn = [&](acquired_lock& l) -> task<> { co_await b.loop.sleep_for(1h, l.lost_token()); };
    auto r = b.ask(b.locks.with_lock("k", fn, {.ttl = 5s, .renew = true}));
    b.pass();
    auto taken = b.ask(b.locks.release("k", b.store.holder("k").value()));
    b.pass();
    CHECK(taken.value());
    CHECK(r.state() == "ended");
    CHECK(b.log.names() == "acquire release");
}

TEST_CASE("with_lock: a stop ends the wait, and then the lease", "[lease][with_lock]")
{
    lease_bench b;
    std::stop_source stop;
    std::optional<acquired_lock> l{b.hold("k")};
    bool ran = false;
    auto fn = [&](acquired_lock& held) -> task<> {
        ran = true;
        co_await b.loop.sleep_for(10s, held.lost_token());
    };
    auto r = b.ask(b.locks.with_lock("k", fn, {.renew = true}, stop.get_token()));
    b.pass();
    SECTION("while it waits")
    {
        stop.request_stop();
        b.pass();
        CHECK(r.state() == "stopped");
        CHECK_FALSE(ran);
    }
    SECTION("while the work is done")
    {
        l.reset();
        b.pass();
        CHECK(ran);
        CHECK(r.state() == "waits");
        stop.request_stop();
        b.pass();
        REQUIRE(r.state() == "ended");
        CHECK(r.message().find("aborted") != std::string::npos);
        CHECK_FALSE(b.store.holder("k"));
    }
}

// run_as_leader

TEST_CASE("run_as_leader: the work runs under a renewed lease until it returns", "[lease][leader]")
{
    lease_bench b;
    auto fn = [&](acquired_lock& l) -> task<> {
        CHECK(l.auto_renew());
        co_await b.loop.sleep_for(5s);
        CHECK(l.is_held());
    };
    auto r = b.ask(b.locks.run_as_leader("role", fn, {.ttl = 1s, .max_wait = 1ms}));
    b.pass();
    b.pass_slowly(5s, 10ms);
    CHECK(r.state() == "done");
    CHECK_FALSE(b.store.holder("role"));
    CHECK(b.log.count("renew") >= 10);
    CHECK(b.log.told.back().hook == "release");
}

TEST_CASE("run_as_leader: what the work throws ends it, after the release", "[lease][leader]")
{
    lease_bench b;
    auto fn = [](acquired_lock&) { throw std::out_of_range{"mine"}; };
    auto r = b.ask(b.locks.run_as_leader("role", fn));
    b.pass();
    CHECK(r.state() == "threw");
    CHECK(b.log.names() == "acquire release");
}

TEST_CASE("run_as_leader: a lost lease stops the work, waits for its end, and begins anew",
          "[lease][leader]")
{
    lease_bench b;
    int begun = 0;
    int stopped = 0;
    bool lingers = true;
    auto fn = [&](acquired_lock& l) -> task<> {
        ++begun;
        if (co_await b.loop.sleep_for(1h, l.lost_token()))
            co_return;
        ++stopped;
        while (lingers)
            co_await b.loop.sleep_for(10ms);
    };
    std::stop_source stop;
    auto r = b.ask(
        b.locks.run_as_leader("role", fn, {.ttl = 1s, .poll_interval = 10ms}, stop.get_token()));
    b.pass();
    CHECK(begun == 1);
    b.store.drop("role");
    b.pass_slowly(500ms, 10ms);
    CHECK(stopped == 1);
    CHECK(begun == 1); // the old work has not ended: no new one beside it
    lingers = false;
    b.pass_slowly(50ms, 10ms);
    CHECK(begun == 2);
    CHECK(b.log.names() == "acquire lost acquire");
    stop.request_stop();
    b.pass_slowly(100ms, 10ms);
    CHECK(r.state() == "done");
    CHECK(stopped == 2);
    CHECK_FALSE(b.store.holder("role"));
}

TEST_CASE("run_as_leader: work that ends with an error of ours after a loss begins anew",
          "[lease][leader]")
{
    lease_bench b;
    int begun = 0;
    auto fn = [&](acquired_lock& l) -> task<> {
        if (++begun == 3)
            co_return;
        co_await b.loop.sleep_for(1h, l.lost_token());
        co_await l.extend(); // throws: it is over
    };
    auto r = b.ask(b.locks.run_as_leader("role", fn, {.ttl = 1s, .poll_interval = 10ms}));
    b.pass();
    for (int i = 0; i < 2; ++i) {
        b.store.drop("role");
        b.pass_slowly(500ms, 10ms);
    }
    CHECK(r.state() == "done");
    CHECK(begun == 3);
}

TEST_CASE("run_as_leader: work that ends with an error of its own after a loss ends it",
          "[lease][leader]")
{
    lease_bench b;
    auto fn = [&](acquired_lock& l) -> task<> {
        co_await b.loop.sleep_for(1h, l.lost_token());
        throw std::out_of_range{"mine"};
    };
    auto r = b.ask(b.locks.run_as_leader("role", fn, {.ttl = 1s, .poll_interval = 10ms}));
    b.pass();
    b.store.drop("role");
    b.pass_slowly(500ms, 10ms);
    CHECK(r.state() == "threw");
    CHECK(r.message() == "mine");
}

TEST_CASE("run_as_leader: work that gives the lease back itself has not lost it", "[lease][leader]")
{
    lease_bench b;
    int begun = 0;
    auto fn = [&](acquired_lock& l) -> task<> {
        ++begun;
        co_await l.release();
    };
    auto r = b.ask(b.locks.run_as_leader("role", fn, {.ttl = 1s}));
    b.pass();
    CHECK(r.state() == "done");
    CHECK(begun == 1);
}

TEST_CASE("run_as_leader: one whose lease is taken away by its token stands again",
          "[lease][leader]")
{
    lease_bench b;
    int begun = 0;
    std::stop_source stop;
    auto fn = [&](acquired_lock& l) -> task<> {
        ++begun;
        co_await b.loop.sleep_for(1h, l.lost_token());
    };
    auto r = b.ask(b.locks.run_as_leader("role", fn, {.ttl = 1s}, stop.get_token()));
    b.pass();
    auto taken = b.ask(b.locks.release("role", b.store.holder("role").value()));
    b.pass();
    CHECK(taken.value());
    CHECK(begun == 2);
    stop.request_stop();
    b.pass();
    CHECK(r.state() == "done");
}

TEST_CASE("run_as_leader: a stop is a normal end, wherever it comes", "[lease][leader]")
{
    lease_bench b;
    std::stop_source stop;
    std::optional<acquired_lock> other;
    auto fn = [&](acquired_lock& l) -> task<> { co_await b.loop.sleep_for(1h, l.lost_token()); };
    auto throws = [&](acquired_lock&) -> task<> {
        // Its own wait is stopped by the same token, before the lease knows.
        if (!co_await b.loop.sleep_for(1h, stop.get_token()))
            throw amux::lock_cancelled_error{"stopped"};
    };
    std::optional<asked<void>> r;
    SECTION("before it begins")
    {
        stop.request_stop();
        r.emplace(b.ask(b.locks.run_as_leader("role", fn, {}, stop.get_token())));
    }
    SECTION("while it waits for the lease")
    {
        other.emplace(b.hold("role"));
        r.emplace(b.ask(b.locks.run_as_leader("role", fn, {}, stop.get_token())));
    }
    SECTION("while the work runs")
    {
        r.emplace(b.ask(b.locks.run_as_leader("role", fn, {}, stop.get_token())));
    }
    SECTION("while the work runs, which then throws that it was stopped")
    {
        r.emplace(b.ask(b.locks.run_as_leader("role", throws, {}, stop.get_token())));
    }
    b.pass();
    stop.request_stop();
    b.pass();
    CHECK(r->state() == "done");
}

TEST_CASE("run_as_leader: troubles of the store do not end it", "[lease][leader]")
{
    lease_bench b;
    const auto kind = GENERATE(backend_error_kind::not_applied, backend_error_kind::indeterminate,
                               backend_error_kind::permanent);
    b.store.always(operation::acquire, course::fails(kind));
    bool ran = false;
    auto r = b.ask(b.locks.run_as_leader("role", [&](acquired_lock&) { ran = true; }));
    b.pass();
    b.pass_slowly(60s, 50ms);
    CHECK(r.state() == "waits");
    CHECK(b.log.count("error") > 200);
    b.store.always(operation::acquire, course::at_once());
    b.pass_slowly(250ms, 10ms);
    CHECK(ran);
    CHECK(r.state() == "done");
}

TEST_CASE("run_as_leader: drain ends one that waits", "[lease][leader]")
{
    lease_bench b;
    acquired_lock other = b.hold("role");
    auto r = b.ask(b.locks.run_as_leader("role", [](acquired_lock&) {}));
    b.pass();
    auto d = b.ask(b.locks.drain(1s));
    b.pass();
    CHECK(r.state() == "closed");
    CHECK(d.value());
}

// drain

TEST_CASE("drain: with nothing outstanding it is true at once, and the lock is closed",
          "[lease][drain]")
{
    lease_bench b;
    acquired_lock held = b.hold("held", {.ttl = 1s, .renew = true});
    auto d = b.ask(b.locks.drain(1s));
    b.pass();
    CHECK(d.value());
    CHECK(held.is_held()); // a held lease is not outstanding

    std::vector<asked<void>> calls;
    const auto drop = [](auto t) -> task<> { static_cast<void>(co_await std::move(t)); };
    calls.push_back(b.ask(drop(b.locks.acquire("k"))));
    calls.push_back(b.ask(drop(b.locks.try_acquire("k"))));
    calls.push_back(b.ask(drop(b.locks.with_lock("k", [](acquired_lock&) {}))));
    calls.push_back(b.ask(drop(b.locks.run_as_leader("k", [](acquired_lock&) {}))));
    calls.push_back(b.ask(drop(b.locks.release("k", "token"))));
    calls.push_back(b.ask(drop(b.locks.inspect("k"))));
    b.pass();
    for (const auto& call : calls) {
        CHECK(call.state() == "closed");
        CHECK(call.message().find("key 'k'") != std::string::npos);
    }
    // A handle goes on: renewed, extended, released.
    b.pass_slowly(2s, 10ms);
    auto extended = b.ask(held.extend());
    auto verified = b.ask(held.verify());
    b.pass();
    CHECK(extended.state() == "done");
    CHECK(verified.value());
    auto released = b.ask(held.release());
    auto again = b.ask(b.locks.drain(1s));
    b.pass();
    CHECK(released.value());
    CHECK(again.value());
}

TEST_CASE("drain: ends the acquires that wait, in line and in flight", "[lease][drain]")
{
    lease_bench b;
    acquired_lock held = b.hold("held");
    b.store.usurp("foreign", "stranger", 1h);
    auto in_line = b.ask(b.locks.acquire("held"));
    auto polling = b.ask(b.locks.acquire("foreign"));
    b.pass();
    b.store.next(operation::acquire, course::late(100ms));
    auto in_flight = b.ask(b.locks.try_acquire("slow"));
    b.pass();
    REQUIRE(polling.state() == "waits");
    auto d = b.ask(b.locks.drain(1s));
    b.pass();
    CHECK(in_line.state() == "closed");
    CHECK(polling.state() == "closed");
    CHECK(in_flight.state() == "closed");
    CHECK(d.state() == "waits");
    b.pass(100ms); // granted, and given back
    CHECK(d.value());
    CHECK_FALSE(b.store.holder("slow"));
    CHECK(b.log.names() == "acquire error");
}

TEST_CASE("drain: gives up a release that is between two tries", "[lease][drain]")
{
    lease_bench b;
    std::optional<acquired_lock> l{b.hold("k", {.ttl = 10s})};
    b.store.always(operation::release, course::fails(backend_error_kind::not_applied));
    l.reset();
    b.pass();
    REQUIRE(b.store.in_flight() == 0);
    auto d = b.ask(b.locks.drain(0ms));
    b.pass();
    CHECK_FALSE(d.value());
    const auto asked_before = b.count(operation::release);
    b.pass_slowly(5s, 10ms);
    CHECK(b.count(operation::release) == asked_before);
}

TEST_CASE("drain: waits for releases in the background", "[lease][drain]")
{
    lease_bench b;
    std::optional<acquired_lock> l{b.hold("k")};
    b.store.next(operation::release, course::fails(backend_error_kind::not_applied));
    b.store.next(operation::release, course::fails(backend_error_kind::not_applied));
    l.reset();
    auto d = b.ask(b.locks.drain(5s));
    b.pass();
    CHECK(d.state() == "waits");
    b.pass_slowly(100ms, 10ms);
    CHECK(d.value());
    CHECK_FALSE(b.store.holder("k"));
}

TEST_CASE("drain: gives up in the end, names what it gave up, and asks no more", "[lease][drain]")
{
    lease_bench b;
    std::optional<acquired_lock> l{b.hold("slow", {.metadata = "m"})};
    const std::string token = l->token();
    const bool fails = GENERATE(false, true);
    b.store.always(operation::release,
                   fails ? course::fails(backend_error_kind::indeterminate) : course::held());
    l.reset();
    auto d = b.ask(b.locks.drain(500ms));
    b.pass();
    b.log.told.clear();
    b.pass_slowly(499ms, 10ms);
    CHECK(d.state() == "waits");
    b.pass(1ms);
    CHECK_FALSE(d.value());
    CHECK(b.log.count("error") >= 1);
    CHECK(b.log.last("error").key == "slow");
    CHECK(b.log.last("error").token == token);
    CHECK(b.log.last("error").metadata == "m");
    CHECK(support::error_text(b.log.last("error").cause).find("drain") != std::string::npos);
    const auto sent = b.store.count();
    b.pass_slowly(60s, 100ms);
    CHECK(b.store.count() == sent);
}

TEST_CASE("drain: afterwards the lock may be destroyed, whatever was outstanding", "[lease][drain]")
{
    amux::manual_event_loop loop;
    amux::testing::scripted_backend store{loop};
    support::hook_log log;
    auto locks = std::make_unique<amux::distributed_lock<amux::testing::scripted_backend&>>(
        store, loop, amux::distributed_lock_options{}, log.hooks());
    store.always(operation::inspect, course::held());
    store.always(operation::acquire, course::held());
    store.always(operation::release, course::held());
    asked inspects{loop, locks->inspect("a")};
    asked acquires{loop, locks->acquire("b")};
    asked releases{loop, locks->release("c", "token")};
    asked leads{loop, locks->run_as_leader("d", [](acquired_lock&) {})};
    const auto drain_and_destroy = [&]() -> task<bool> {
        const bool all = co_await locks->drain(10ms);
        locks = nullptr;
        co_return all;
    };
    asked end{loop, drain_and_destroy()};
    loop.run_ready();
    loop.advance(10ms);
    loop.run_ready();
    CHECK_FALSE(end.value());
    CHECK(inspects.state() == "trouble");
    CHECK(acquires.state() == "closed");
    CHECK(releases.state() == "trouble");
    CHECK(leads.state() == "closed");
    CHECK(log.count("error") == 4);
}

TEST_CASE("drain: a call that begins in the same turn has ended before it is over",
          "[lease][drain]")
{
    amux::manual_event_loop loop;
    amux::testing::scripted_backend store{loop};
    auto locks =
        std::make_unique<amux::distributed_lock<amux::testing::scripted_backend&>>(store, loop);
    const auto drain_and_destroy = [&]() -> task<bool> {
        const bool all = co_await locks->drain(10ms);
        locks = nullptr;
        co_return all;
    };
    std::vector<asked<std::optional<amux::lease_info>>> calls;
    calls.emplace_back(loop, locks->inspect("before"));
    asked end{loop, drain_and_destroy()};
    calls.emplace_back(loop, locks->inspect("after"));
    asked acquire{loop, locks->acquire("k")};
    loop.run_ready();
    CHECK(end.value());
    for (const auto& call : calls)
        CHECK(call.state() == "done");
    CHECK(acquire.state() == "closed");
}

TEST_CASE("drain: several at once are all told", "[lease][drain]")
{
    lease_bench b;
    std::optional<acquired_lock> l{b.hold("k")};
    b.store.next(operation::release, course::late(50ms));
    l.reset();
    auto first = b.ask(b.locks.drain(amux::forever));
    auto second = b.ask(b.locks.drain(10s));
    auto third = b.ask(b.locks.drain(0ms));
    b.pass();
    CHECK_FALSE(third.value()); // what was outstanding is given up for all
    CHECK_FALSE(first.value());
    CHECK_FALSE(second.value());
    auto fourth = b.ask(b.locks.drain(0ms));
    b.pass();
    CHECK(fourth.value());
}

TEST_CASE("drain: several at once see the same answers", "[lease][drain]")
{
    lease_bench b;
    std::optional<acquired_lock> l{b.hold("k")};
    b.store.next(operation::release, course::late(50ms));
    l.reset();
    auto first = b.ask(b.locks.drain(amux::forever));
    auto second = b.ask(b.locks.drain(10s));
    b.pass();
    CHECK(first.state() == "waits");
    b.pass(50ms);
    CHECK(first.value());
    CHECK(second.value());
}

TEST_CASE("drain: without time it looks, and gives up", "[lease][drain]")
{
    lease_bench b;
    const auto none = GENERATE(0ms, -5ms);
    auto idle = b.ask(b.locks.drain(none));
    b.pass();
    CHECK(idle.value());
}

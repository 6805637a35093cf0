// SPDX-License-Identifier: BSL-1.0
// Without this file a lease may end twice, or not at all, or its end may touch what is gone.
#include "support/lease_bench.hpp"

#include <amux/distributed_lock.hpp>
#include <amux/memory_backend.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <set>
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

TEST_CASE("lease end: what comes while a release is in flight changes nothing", "[lease][end]")
{
    lease_bench b;
    std::stop_source stop;
    acquired_lock l = b.hold("k", {.ttl = 1s, .renew = true}, stop.get_token());
    b.store.next(operation::release, course::held());
    auto end = b.ask(l.ended());
    auto first = b.ask(l.release());
    auto second = b.ask(l.release());
    b.pass();
    const auto number = b.store.oldest_in_flight(operation::release);
    bool ours = true;
    SECTION("a stop")
    {
        stop.request_stop();
    }
    SECTION("the end of its time")
    {
        b.pass(2s);
        ours = false; // the store has it no more when it carries the release out
    }
    SECTION("a stranger")
    {
        b.store.usurp("k", "stranger", 1h);
        ours = false;
    }
    SECTION("a question that finds the loss")
    {
        b.store.usurp("k", "stranger", 1h);
        auto lost = b.ask(l.verify());
        b.pass();
        ours = false;
    }
    SECTION("a release by token")
    {
        auto third = b.ask(b.locks.release("k", l.token()));
    }
    b.pass();
    CHECK(end.state() == "waits");
    CHECK(b.log.names() == "acquire");
    b.store.answer(number);
    b.pass();
    CHECK(first.value() == ours);
    CHECK(second.value() == ours);
    CHECK(end.value().reason == (ours ? end_reason::released : end_reason::expired));
    CHECK(b.log.names() == (ours ? "acquire release" : "acquire lost"));
    CHECK(b.count(operation::release) == 1);
    b.pass_slowly(3s, 10ms);
    CHECK(b.log.told.size() == 2);
}

TEST_CASE("lease end: of all that happens at one moment, one is the end", "[lease][end]")
{
    lease_bench b;
    std::stop_source stop;
    std::optional<acquired_lock> l{b.hold("k", {.ttl = 1s}, stop.get_token())};
    auto end = b.ask(l->ended());
    b.pass();
    const int order = GENERATE(0, 1, 2, 3, 4, 5);
    const auto release = [&] { l.reset(); };
    const auto expire = [&] { b.loop.advance(1s); };
    const auto halt = [&] { stop.request_stop(); };
    end_reason expected{};
    switch (order) {
        case 0:
            release(), expire(), halt();
            expected = end_reason::released; // it was sent in time
            break;
        case 1:
            release(), halt(), expire();
            expected = end_reason::released;
            break;
        case 2:
            halt(), release(), expire(); // a stop is seen by the loop only
            expected = end_reason::released;
            break;
        case 3:
            halt(), expire(), release();
            expected = end_reason::expired;
            break;
        case 4:
            expire(), halt(), release();
            expected = end_reason::expired;
            break;
        default:
            expire(), release(), halt();
            expected = end_reason::expired;
    }
    b.pass();
    b.pass();
    CHECK(end.value().reason == expected);
    CHECK(b.log.told.size() == 2);
    CHECK_FALSE(b.store.holder("k"));
}

TEST_CASE("lease end: who has lost it for certain waits for nothing", "[lease][end]")
{
    lease_bench b;
    std::optional<acquired_lock> l{b.hold("k", {.ttl = 10s, .renew = true})};
    b.store.drop("k");
    b.pass_slowly(3500ms, 10ms); // the renewal is told
    REQUIRE(b.log.names() == "acquire lost");
    b.store.always(operation::release, course::is_silent());
    SECTION("release")
    {
        auto answer = b.ask(l->release());
        b.pass();
        CHECK_FALSE(answer.value());
    }
    SECTION("destructor")
    {
        l.reset();
    }
    SECTION("release by token")
    {
        b.store.always(operation::release, course::at_once());
        auto answer = b.ask(b.locks.release("k", l->token()));
        b.pass();
        CHECK_FALSE(answer.value());
        CHECK(b.count(operation::release) ==
              1); // there is no live handle of it: the store is asked
        return;
    }
    CHECK(b.count(operation::release) == 0);
    auto d = b.ask(b.locks.drain(1s));
    b.pass();
    CHECK(d.value());
}

TEST_CASE("lease end: an expired lease is released once, come what may", "[lease][end]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    b.store.always(operation::release, course::fails(backend_error_kind::indeterminate));
    b.pass_slowly(10s, 10ms);
    CHECK(b.log.names() == "acquire lost error");
    CHECK(b.count(operation::release) == 1);
}

TEST_CASE("lease end: an aborted lease is released until it is over", "[lease][end]")
{
    lease_bench b;
    std::stop_source stop;
    acquired_lock l = b.hold("k", {.ttl = 1s, .metadata = "m"}, stop.get_token());
    b.store.next(operation::release, course::fails(backend_error_kind::indeterminate));
    b.store.next(operation::release, course::fails(backend_error_kind::not_applied));
    stop.request_stop();
    b.pass_slowly(900ms, 10ms);
    CHECK(b.count(operation::release) == 3);
    CHECK_FALSE(b.store.holder("k"));
    CHECK(b.log.count("lost") == 1);
    CHECK(b.log.count("error") == 2);
    CHECK(b.log.last("error").metadata == "m");
    CHECK(b.log.last("error").fence == l.fence());
}

TEST_CASE("lease end: a handle is destroyed while an extend is in flight", "[lease][end]")
{
    lease_bench b;
    std::optional<acquired_lock> l{b.hold("k", {.ttl = 1s, .renew = true})};
    const bool explicitly = GENERATE(false, true);
    b.store.always(operation::extend, course::held());
    std::optional<asked<amux::clock::time_point>> call;
    if (explicitly)
        call.emplace(b.ask(l->extend(2s)));
    else
        b.pass(350ms);
    b.pass();
    const auto number = b.store.oldest_in_flight(operation::extend);
    REQUIRE(number != 0);
    l.reset();
    SECTION("which the store carries out first")
    {
        b.store.answer(number);
    }
    SECTION("which the store carries out last")
    {
        b.pass();
        b.store.answer(number);
    }
    SECTION("which fails")
    {
        b.pass();
        b.store.fail(number, course::trouble(backend_error_kind::indeterminate, "lost"));
    }
    b.pass();
    if (call)
        CHECK(call->state() == "ended");
    auto d = b.ask(b.locks.drain(1s));
    b.pass();
    CHECK(d.value());
    CHECK_FALSE(b.store.holder("k"));
    CHECK(b.log.names() == "acquire release");
}

TEST_CASE("lease end: at a shutdown one release that fails keeps no other", "[lease][end]")
{
    lease_bench b;
    std::deque<acquired_lock> all;
    for (int i = 0; i < 100; ++i)
        all.push_back(b.hold("k" + std::to_string(i), {.ttl = 10s, .renew = true}));
    const bool hangs = GENERATE(false, true);
    b.store.decide = [hangs](const amux::testing::backend_call& call) -> std::optional<course> {
        if (call.op == operation::release && call.key == "k50")
            return hangs ? course::held() : course::fails(backend_error_kind::indeterminate);
        return std::nullopt;
    };
    all.clear();
    auto d = b.ask(b.locks.drain(1s));
    b.pass();
    CHECK(b.store.size() == 1);
    CHECK(d.state() == "waits");
    b.pass_slowly(1s, 10ms);
    CHECK_FALSE(d.value());
    std::set<std::string> named;
    for (const auto& told : b.log.told) {
        if (told.hook == "error")
            named.insert(told.event.key);
    }
    CHECK(named == std::set<std::string>{"k50"});
    CHECK(b.log.count("release") == 100);
}

TEST_CASE("lease end: a lock that is destroyed drops what is in the background", "[lease][end]")
{
    amux::manual_event_loop loop;
    amux::testing::scripted_backend store{loop};
    int told = 0;
    {
        amux::lock_hooks hooks;
        hooks.on_release = [&](const amux::lock_event&) { ++told; };
        hooks.on_error = [&](const amux::lock_event&) { ++told; };
        amux::distributed_lock locks{store, loop, {}, hooks};
        std::deque<asked<acquired_lock>> all;
        for (int i = 0; i < 10; ++i)
            all.emplace_back(loop, locks.acquire("k" + std::to_string(i), {.renew = true}));
        loop.run_ready();
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (i % 3 == 0)
                store.next(operation::release, course::at_once());
            else if (i % 3 == 1)
                store.next(operation::release, course::late(1s));
            else
                store.next(operation::release, course::fails(backend_error_kind::not_applied));
            all[i].drop();
        }
        if (GENERATE(false, true)) {
            store.always(operation::release, course::fails(backend_error_kind::not_applied));
            loop.run_ready(); // some have been answered, some are to be tried again
        }
    }
    const int before = told;
    const auto sent = store.count();
    loop.run_ready();
    loop.advance(1h);
    loop.run_ready();
    CHECK(told == before);
    CHECK(store.count() == sent);
}

TEST_CASE("lease end: handles go before their lock, on a loop that does not run", "[lease][end]")
{
    amux::manual_event_loop loop;
    amux::memory_backend store{loop};
    {
        amux::distributed_lock locks{store, loop};
        std::stop_source stop;
        asked l{loop, locks.acquire("k", {.renew = true}, stop.get_token())};
        loop.run_ready();
        stop.request_stop(); // on its way when all is over
        l.drop();
    }
    CHECK(store.size() == 0);
    loop.run_ready();
}

TEST_CASE("lease end: an expired lease is nobody's, in every backend", "[lease][end]")
{
    amux::manual_event_loop loop;
    amux::memory_backend store{loop};
    REQUIRE(store.acquire("k", "t", 10ms).await_resume().acquired);
    loop.advance(10ms);
    const int question = GENERATE(0, 1, 2, 3, 4);
    switch (question) {
        case 0:
            CHECK_FALSE(store.extend("k", "t", 10ms).await_resume());
            break;
        case 1:
            CHECK_FALSE(store.release("k", "t").await_resume());
            break;
        case 2:
            CHECK_FALSE(store.get("k").await_resume());
            break;
        case 3:
            CHECK_FALSE(store.inspect("k").await_resume());
            break;
        default:
            CHECK(store.size() == 0);
    }
    CHECK_FALSE(store.extend("k", "t", 10ms).await_resume());
    CHECK(store.acquire("k", "other", 10ms).await_resume().acquired);
}

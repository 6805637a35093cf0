// SPDX-License-Identifier: BSL-1.0
// Without this file who waits in vain may be told that the store is away when a key is busy, or that it is busy when the
// store is away.
#include "support/lease_bench.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <string>

using namespace std::chrono_literals;
using amux::acquired_lock;
using support::asked;
using support::lease_bench;
using course = lease_bench::course;
using operation = lease_bench::operation;

namespace {

/// "busy" or "trouble", as a wait that is over says; else what it is.
template <class T>
std::string verdict(const asked<T>& wait)
{
    if (wait.state() != "timeout")
        return wait.state();
    const bool silence = wait.message().find("has not answered") != std::string::npos;
    try {
        std::rethrow_exception(wait.error());
    } catch (const amux::lock_wait_timeout_error& e) {
        if (silence && !e.store_in_trouble())
            return "a message that does not fit";
        return e.store_in_trouble() ? "trouble" : "busy";
    }
}

} // namespace

TEST_CASE("wait: that its time ends while a question is in flight is no trouble of the store",
          "[lease][waiting]")
{
    lease_bench b;
    b.store.usurp("k", "stranger", 1h);
    const auto answer = GENERATE(80ms, 600ms);
    b.store.always(operation::acquire, course::late(answer));
    std::deque<asked<acquired_lock>> waits;
    for (auto max_wait = answer + 1ms; max_wait <= 3s; max_wait += 37ms) {
        waits.push_back(b.ask(b.locks.acquire("k", {.max_wait = max_wait})));
        b.pass();
        b.pass_slowly(max_wait);
        REQUIRE(verdict(waits.back()) == "busy");
    }
    b.pass(answer);
}

TEST_CASE("wait: a store that has answered nothing in all of it is in trouble", "[lease][waiting]")
{
    lease_bench b;
    b.store.always(operation::acquire, course::held());
    auto first = b.ask(b.locks.acquire("k", {.max_wait = 50ms}));
    auto behind = b.ask(b.locks.acquire("k", {.max_wait = 20ms})); // asks nothing itself
    b.pass();
    b.pass(20ms);
    CHECK(verdict(behind) == "trouble");
    b.pass(30ms);
    CHECK(verdict(first) == "trouble");
}

TEST_CASE("wait: a store that stops to answer is in trouble after a while", "[lease][waiting]")
{
    lease_bench b;
    b.store.usurp("k", "stranger", 1h);
    const auto answer = GENERATE(0ms, 80ms, 400ms);
    const auto patience = std::max(500ms, 2 * answer);
    b.store.next(operation::acquire, course::late(answer));
    b.store.always(operation::acquire, course::held());
    auto first = b.ask(b.locks.acquire("k", {.max_wait = 5s}));
    b.pass();
    while (b.count(operation::acquire) < 2)
        b.pass(1ms);
    auto hasty = b.ask(b.locks.acquire("k", {.max_wait = patience - 1ms}));
    auto patient = b.ask(b.locks.acquire("k", {.max_wait = patience}));
    b.pass();
    b.pass_slowly(5s);
    CHECK(verdict(hasty) == "busy");
    CHECK(verdict(patient) == "trouble");
    CHECK(verdict(first) == "trouble");
}

TEST_CASE("wait: a store that is silent is in trouble however soon each question is given up",
          "[lease][waiting]")
{
    lease_bench b;
    b.store.usurp("k", "stranger", 1h);
    std::deque<asked<acquired_lock>> waits;
    const auto ask_for_a_while = [&](int times) {
        for (int i = 0; i < times; ++i) {
            waits.push_back(b.ask(b.locks.acquire("k", {.max_wait = 1s, .poll_interval = 50ms})));
            b.pass();
            b.pass_slowly(100ms);
        }
    };
    ask_for_a_while(15); // so that one's time is over every 100 ms
    CHECK(verdict(waits[4]) == "busy");
    b.store.always(operation::acquire, course::held());
    ask_for_a_while(20);
    CHECK(verdict(waits[24]) == "trouble");
    CHECK(verdict(waits[23]) == "trouble");
    b.store.always(operation::acquire, course::at_once());
    ask_for_a_while(15);
    CHECK(verdict(waits[39]) == "busy");
    b.pass(1s);
}

TEST_CASE("wait: an answer that comes when its question is given up tells that the store works",
          "[lease][waiting]")
{
    lease_bench b;
    b.store.usurp("k", "stranger", 1h);
    b.store.next(operation::acquire, course::late(80ms));
    b.store.always(operation::acquire, course::held());
    auto first = b.ask(b.locks.acquire("k", {.max_wait = 50ms}));
    auto patient = b.ask(b.locks.acquire("k", {.max_wait = 550ms})); // asks after 50 ms
    auto hasty = b.ask(b.locks.acquire("k", {.max_wait = 549ms}));
    b.pass();
    b.pass_slowly(550ms);
    CHECK(verdict(first) == "trouble"); // nothing was answered yet
    CHECK(verdict(hasty) == "busy");
    CHECK(verdict(patient) == "trouble");
}

TEST_CASE("wait: that an old question fails says nothing once a younger one is answered",
          "[lease][waiting]")
{
    lease_bench b;
    b.store.usurp("k", "stranger", 1h);
    b.store.next(operation::acquire, course::is_silent(900ms));
    auto first = b.ask(b.locks.acquire("k", {.max_wait = 50ms}));
    auto second = b.ask(b.locks.acquire("k", {.max_wait = 950ms, .poll_interval = 600ms}));
    b.pass();
    b.pass_slowly(950ms); // the second asks after 50 ms and after some 650 ms
    CHECK(verdict(first) == "trouble");
    CHECK(verdict(second) == "busy");
}

TEST_CASE("wait: behind a holder in its own process it may ask for the first time at its very end",
          "[lease][waiting]")
{
    lease_bench b;
    auto held = b.ask(b.locks.try_acquire("k"));
    b.pass();
    auto wait = b.ask(b.locks.acquire("k", {.max_wait = 1s}));
    b.pass();
    b.pass(950ms);
    b.store.always(operation::acquire, course::late(80ms));
    held.drop();
    b.pass();
    b.store.usurp("k", "stranger", 1h);
    b.pass(50ms);
    CHECK(b.count(operation::acquire) == 2);
    CHECK(verdict(wait) == "busy");
    b.pass(1s);
}

TEST_CASE("wait: trouble that was the last answer stays one while the next question is in flight",
          "[lease][waiting]")
{
    lease_bench b;
    b.store.usurp("k", "stranger", 1h);
    b.store.next(operation::acquire, course::at_once());
    b.store.next(operation::acquire, course::fails(amux::backend_error_kind::not_applied));
    b.store.always(operation::acquire, course::late(200ms));
    auto wait = b.ask(b.locks.acquire("k", {.max_wait = 5s}));
    b.pass();
    while (b.count(operation::acquire) < 3)
        b.pass(1ms);
    const bool answered = GENERATE(false, true);
    auto behind = b.ask(b.locks.acquire("k", {.max_wait = answered ? 201ms : 100ms}));
    b.pass();
    b.pass_slowly(6s);
    CHECK(verdict(behind) == (answered ? "busy" : "trouble"));
    CHECK(verdict(wait) == "busy");
}

TEST_CASE("wait: an answer that comes too late for its call is told to the next",
          "[lease][waiting]")
{
    lease_bench b;
    b.store.always(operation::acquire, course::fails(amux::backend_error_kind::not_applied, 200ms));
    auto first = b.ask(b.locks.acquire("k", {.max_wait = 150ms}));
    b.pass();
    b.pass(150ms);
    CHECK(first.message() == "amux: no lease after 150 ms; the store has not answered (key 'k')");
    auto second = b.ask(b.locks.acquire("k", {.max_wait = 150ms}));
    b.pass();
    b.pass(50ms); // what the first has asked is answered
    b.pass(100ms);
    CHECK(verdict(second) == "trouble");
    CHECK(second.message() ==
          "amux: no lease after 150 ms; last trouble of the store: the store "
          "refuses (key 'k')");
    b.pass(200ms);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a wait for a lease may outlast its limit, hand out a dead lease, or leave one behind in the store.
#include "support/foreign_coroutine.hpp"
#include "support/lease_bench.hpp"
#include "support/scale.hpp"

#include <amux/distributed_lock.hpp>
#include <amux/memory_backend.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::acquired_lock;
using amux::backend_error_kind;
using amux::task;
using support::asked;
using support::lease_bench;
using course = lease_bench::course;
using operation = lease_bench::operation;

TEST_CASE("waiting: a grant whose answer takes longer than the ttl is given back",
          "[lease][waiting]")
{
    lease_bench b;
    b.store.next(operation::acquire, course::slow(290ms, 10ms));
    SECTION("and asked for again")
    {
        auto l = b.ask(b.locks.acquire("k", {.ttl = 200ms, .max_wait = 10s, .metadata = "m"}));
        b.pass();
        b.pass_slowly(300ms);
        CHECK(l.state() == "waits");
        CHECK(b.log.names() == "error");
        CHECK(b.log.told[0].event.metadata == "m");
        CHECK_FALSE(b.store.holder("k"));
        const auto first_token = b.store.calls().front().token;
        b.pass_slowly(300ms);
        REQUIRE(l.state() == "done");
        CHECK(l.value().token() != first_token);
        CHECK(l.value().is_held());
    }
    SECTION("and reported")
    {
        auto l = b.ask(b.locks.try_acquire("k", {.ttl = 200ms}));
        b.pass();
        b.pass_slowly(300ms);
        CHECK(l.state() == "trouble");
        CHECK(b.log.names() == "error");
        CHECK_FALSE(b.store.holder("k"));
    }
}

TEST_CASE("waiting: a loop that is late hands out no dead lease", "[lease][waiting]")
{
    lease_bench b;
    b.store.next(operation::acquire, course::held());
    auto l = b.ask(b.locks.try_acquire("k", {.ttl = 200ms}));
    b.pass();
    b.store.answer(1);
    b.loop.advance(198ms); // answered at once; read when the time is over
    b.pass();
    CHECK(l.state() == "trouble");
    CHECK_FALSE(b.store.holder("k"));
    CHECK(b.log.names() == "error");
}

TEST_CASE("waiting: max_wait is obeyed, however seldom the store is asked", "[lease][waiting]")
{
    lease_bench b;
    b.store.usurp("k", "stranger", 1h);
    auto l = b.ask(b.locks.acquire("k", {.max_wait = 50ms, .poll_interval = 1s}));
    b.pass();
    b.pass(50ms - 1ns);
    CHECK(l.state() == "waits");
    const auto sent = b.count(operation::acquire);
    b.pass(1ns);
    REQUIRE(l.state() == "timeout");
    CHECK(b.count(operation::acquire) == sent); // no question that nobody waits for
    try {
        std::rethrow_exception(l.error());
    } catch (const amux::lock_wait_timeout_error& e) {
        CHECK(e.waited() == 50ms);
    }
}

TEST_CASE("waiting: a store that never answers obeys max_wait and stop", "[lease][waiting]")
{
    lease_bench b;
    std::stop_source stop;
    b.store.always(operation::acquire, course::held());
    auto first = b.ask(b.locks.acquire("a", {.max_wait = 50ms}));
    auto second = b.ask(b.locks.acquire("b", {.max_wait = amux::forever}, stop.get_token()));
    auto third = b.ask(b.locks.try_acquire("c", {.max_wait = 0ms}, stop.get_token()));
    auto fourth = b.ask(b.locks.acquire("d", {.max_wait = 0ms}, stop.get_token()));
    b.pass();
    b.pass(50ms);
    CHECK(first.state() == "timeout");
    CHECK(second.state() == "waits");
    b.pass(1h);
    CHECK(third.state() == "waits");
    stop.request_stop();
    b.pass();
    CHECK(second.state() == "stopped");
    CHECK(third.state() == "stopped");
    CHECK(fourth.state() == "stopped");
    // Answers that come after all are given back.
    for (std::size_t number = 1; number <= 4; ++number)
        b.store.answer(number);
    b.pass();
    CHECK(b.store.size() == 0);
    CHECK(b.log.names() == "error error error error");
}

TEST_CASE("waiting: a store in trouble does not end a wait that has time left", "[lease][waiting]")
{
    lease_bench b;
    const auto kind = GENERATE(backend_error_kind::not_applied, backend_error_kind::indeterminate);
    b.store.next(operation::acquire, course::fails(kind));
    b.store.next(operation::acquire, course::fails(kind));
    auto l = b.ask(b.locks.acquire("k", {.max_wait = 1s, .poll_interval = 100ms}));
    b.pass();
    b.pass_slowly(300ms);
    CHECK(l.state() == "done");
    CHECK(b.log.names() == "error error acquire");
}

TEST_CASE("waiting: after a refusal it asks with another token", "[lease][waiting]")
{
    // A store that is made of several may still be undoing what it has refused.
    lease_bench b;
    b.store.usurp("k", "other", 1s);
    auto l = b.ask(b.locks.acquire("k", {.ttl = 1s, .poll_interval = 100ms}));
    b.pass();
    b.pass_slowly(1'200ms);
    REQUIRE(l.state() == "done");
    CHECK(b.count(operation::acquire) >= 3);
    std::set<std::string> tokens;
    for (const auto& c : b.store.calls()) {
        if (c.op == operation::acquire)
            CHECK(tokens.insert(c.token).second);
    }
}

TEST_CASE("waiting: after a lost reply it asks with the same token", "[lease][waiting]")
{
    lease_bench b;
    b.store.next(operation::acquire, course::loses_reply());
    auto l = b.ask(b.locks.acquire("k", {.ttl = 1s, .poll_interval = 100ms}));
    b.pass();
    REQUIRE(b.store.holder("k"));
    b.pass_slowly(130ms);
    REQUIRE(l.state() == "done");
    REQUIRE(b.count(operation::acquire) == 2);
    const auto& calls = b.store.calls();
    CHECK(calls.front().token == calls.back().token);
    CHECK(l.value().token() == calls.front().token);
    CHECK(l.value().valid_until() == calls.back().at + 1s - 12ms);
}

TEST_CASE("waiting: a wait that ends after a lost reply leaves no lease behind", "[lease][waiting]")
{
    lease_bench b;
    std::stop_source stop;
    b.store.always(operation::acquire, course::loses_reply());
    SECTION("one attempt")
    {
        auto l = b.ask(b.locks.try_acquire("k"));
        b.pass();
        CHECK(l.state() == "trouble");
    }
    SECTION("its time is over")
    {
        auto l = b.ask(b.locks.acquire("k", {.max_wait = 500ms}));
        b.pass();
        b.pass(500ms);
        CHECK(l.state() == "timeout");
    }
    SECTION("it is stopped")
    {
        auto l = b.ask(b.locks.acquire("k", {}, stop.get_token()));
        b.pass();
        CHECK(b.store.holder("k"));
        stop.request_stop();
        b.pass();
        CHECK(l.state() == "stopped");
    }
    SECTION("it is stopped, and the reply is lost afterwards")
    {
        b.store.next(operation::acquire, course::loses_reply(100ms));
        auto l = b.ask(b.locks.acquire("k", {}, stop.get_token()));
        b.pass();
        stop.request_stop();
        b.pass();
        CHECK(l.state() == "stopped");
        CHECK(b.store.holder("k"));
        b.pass(100ms);
    }
    SECTION("the lock is drained")
    {
        auto l = b.ask(b.locks.acquire("k"));
        b.pass();
        auto d = b.ask(b.locks.drain(1s));
        b.pass();
        CHECK(l.state() == "closed");
        CHECK(d.value());
    }
    CHECK_FALSE(b.store.holder("k"));
}

TEST_CASE("waiting: a stop before the call is obeyed without a question", "[lease][waiting]")
{
    lease_bench b;
    std::stop_source stop;
    stop.request_stop();
    auto first = b.ask(b.locks.acquire("k", {}, stop.get_token()));
    auto second = b.ask(b.locks.try_acquire("k", {}, stop.get_token()));
    auto third = b.ask(b.locks.acquire("k", {.max_wait = 0ms}, stop.get_token()));
    b.pass();
    CHECK(first.state() == "stopped");
    CHECK(second.state() == "stopped");
    CHECK(third.state() == "stopped");
    CHECK(b.store.count() == 0);
}

TEST_CASE("waiting: a stop leaves no key behind, wherever it comes", "[lease][waiting]")
{
    lease_bench b;
    std::stop_source stop;
    std::optional<asked<acquired_lock>> l;
    const auto begin = [&] {
        l.emplace(b.ask(b.locks.acquire("k", {.ttl = 1s}, stop.get_token())));
    };
    SECTION("in the sleep between two questions")
    {
        b.store.usurp("k", "stranger", 1h);
        begin();
        b.pass();
        stop.request_stop();
        b.pass();
        CHECK(l->state() == "stopped");
        b.store.drop("k");
    }
    SECTION("in line behind another one")
    {
        acquired_lock other = b.hold("k");
        begin();
        b.pass();
        stop.request_stop();
        b.pass();
        CHECK(l->state() == "stopped");
    }
    SECTION("in flight")
    {
        b.store.next(operation::acquire, course::late(10ms));
        begin();
        b.pass();
        stop.request_stop();
        b.pass();
        CHECK(l->state() == "stopped");
        b.pass(10ms);
    }
    SECTION("at the tick of the grant, before it")
    {
        b.store.next(operation::acquire, course::held());
        begin();
        b.pass();
        stop.request_stop();
        b.store.answer(1);
        b.pass();
        CHECK(l->state() == "stopped");
    }
    SECTION("at the tick of the grant, after it")
    {
        b.store.next(operation::acquire, course::held());
        begin();
        b.pass();
        b.store.answer(1);
        stop.request_stop();
        b.pass();
        CHECK(l->state() == "stopped");
        CHECK(b.log.count("acquire") == 0);
    }
    SECTION("between the grant and its holder, who is elsewhere")
    {
        amux::manual_event_loop elsewhere;
        asked<acquired_lock> far{elsewhere, b.locks.acquire("k", {.ttl = 1s}, stop.get_token())};
        elsewhere.run_ready();
        b.pass();
        REQUIRE(b.log.names() == "acquire");
        stop.request_stop();
        b.pass();
        elsewhere.run_ready();
        REQUIRE(far.state() == "done");
        CHECK_FALSE(far.value().is_held());
        CHECK(far.value().lost_token().stop_requested());
        CHECK(b.log.names() == "acquire lost");
        far.drop();
    }
    b.pass();
    CHECK_FALSE(b.store.holder("k"));
    b.pass_slowly(2s, 10ms);
    CHECK(b.count(operation::extend) == 0);
}

TEST_CASE("waiting: a coroutine that is destroyed in its wait leaves no key behind",
          "[lease][waiting]")
{
    auto loop = std::make_unique<amux::manual_event_loop>();
    amux::manual_event_loop home;
    amux::testing::scripted_backend store{*loop};
    amux::distributed_lock locks{store, *loop};
    {
        amux::manual_event_loop dies;
        SECTION("in flight")
        {
            store.next(operation::acquire, course::late(10ms));
        }
        SECTION("after a lost reply")
        {
            store.next(operation::acquire, course::loses_reply());
        }
        SECTION("told when the key is free")
        {
            store.usurp("k", "stranger", 5ms);
        }
        SECTION("in line")
        {
            asked first{*loop, locks.acquire("k")};
            loop->run_ready();
            asked second{dies, locks.acquire("k")};
            dies.run_ready();
            loop->run_ready();
            first.drop();
        }
        asked l{dies, locks.acquire("k")};
        dies.run_ready();
        loop->run_ready();
        CHECK(l.state() == "waits");
    }
    loop->run_ready();
    loop->advance(10ms);
    loop->run_ready();
    CHECK_FALSE(store.holder("k"));
    asked next{*loop, locks.acquire("k")};
    loop->run_ready();
    CHECK(next.state() == "done");
}

TEST_CASE("waiting: coroutine, lock and loop may go while the store is watched", "[lease][waiting]")
{
    amux::manual_event_loop time;
    amux::memory_backend store{time};
    REQUIRE(store.acquire("k", "stranger", 1h).await_resume().acquired);
    amux::manual_event_loop loop; // never runs again
    amux::manual_event_loop home;
    amux::distributed_lock locks{store, loop};
    const auto waits = [](auto& l) -> support::hooked_coroutine {
        const acquired_lock held = co_await l.acquire("k");
    };
    auto c = waits(locks);
    c.start(GENERATE(false, true) ? &home : nullptr);
    loop.run_ready();
    REQUIRE_FALSE(c.done());
    c.destroy();
    if (GENERATE(false, true))
        loop.run_ready();
}

TEST_CASE("waiting: a million keys one after the other leave nothing behind", "[lease][waiting]")
{
    const int rounds = support::scaled(20'000);
    lease_bench b;
    b.store.keep_no_log();
    auto work = [&]() -> task<> {
        for (int i = 0; i < rounds; ++i) {
            const std::string key = "k" + std::to_string(i);
            {
                acquired_lock l = co_await b.locks.acquire(key);
                co_await l.release();
            }
            std::optional<acquired_lock> l = co_await b.locks.try_acquire(key);
            l.reset();
            b.log.told.clear();
        }
    };
    auto r = b.ask(work());
    b.pass();
    CHECK(r.state() == "done");
    CHECK(b.store.size() == 0);
    CHECK(b.store.in_flight() == 0);
}

TEST_CASE("waiting: the store is asked once to tell of a release, for as many polls as it takes",
          "[lease][waiting]")
{
    lease_bench b;
    b.store.usurp("k", "stranger", 1h);
    auto waits = b.ask(b.locks.acquire("k", {.max_wait = amux::forever, .poll_interval = 100ms}));
    b.pass();
    b.pass_slowly(10s, 10ms);
    CHECK(b.count(operation::acquire) >= 80);
    CHECK(b.count(operation::wait) == 1);
    b.store.drop("k");
    b.pass();
    CHECK(waits.state() == "done");
}

TEST_CASE("waiting: ten thousand coroutines on one key are one waiter for the store",
          "[lease][waiting]")
{
    const int waiters = std::max(1000, support::scaled(10'000));
    lease_bench b{{.local_turns = 1'000'000}};
    b.store.usurp("k", "stranger", 1h);
    std::deque<asked<acquired_lock>> all;
    for (int i = 0; i < waiters; ++i)
        all.push_back(b.ask(b.locks.acquire("k", {.max_wait = amux::forever})));
    b.pass();
    CHECK(b.count(operation::acquire) == 1);
    CHECK(b.count(operation::wait) == 1);
    b.pass_slowly(2s, 10ms);
    CHECK(b.count(operation::acquire) <= 16); // one poll in 200 ms
    b.store.keep_no_log();
    b.store.drop("k");
    const auto before = b.count(operation::acquire);
    bool in_order = true;
    for (auto& l : all) {
        b.pass();
        in_order = in_order && l.state() == "done";
        l.drop();
    }
    b.pass();
    CHECK(in_order);
    CHECK(b.count(operation::acquire) == before + all.size());
    CHECK(b.store.size() == 0);
}

TEST_CASE("waiting: the first in line who leaves is followed by the next", "[lease][waiting]")
{
    lease_bench b;
    std::stop_source stop;
    b.store.usurp("k", "stranger", 1h);
    const bool in_flight = GENERATE(false, true);
    if (in_flight)
        b.store.next(operation::acquire, course::late(100ms));
    auto first = b.ask(b.locks.acquire("k", {}, stop.get_token()));
    auto second = b.ask(b.locks.acquire("k", {.max_wait = 10ms}));
    auto third = b.ask(b.locks.acquire("k"));
    b.pass();
    b.pass(10ms);
    CHECK(second.state() == "timeout");
    b.store.drop("k");
    stop.request_stop();
    b.pass();
    CHECK((first.state() == "stopped" || !in_flight));
    b.pass_slowly(300ms);
    if (first.state() == "done")
        first.drop();
    b.pass();
    CHECK(third.state() == "done");
}

TEST_CASE("waiting: who loses the key to a stop or to its time lets the next one ask",
          "[lease][waiting]")
{
    lease_bench b;
    std::stop_source stop;
    acquired_lock l = b.hold("k", {.ttl = 1s}, stop.get_token());
    auto next = b.ask(b.locks.acquire("k"));
    b.pass();
    SECTION("stop")
    {
        stop.request_stop();
    }
    SECTION("time")
    {
        b.loop.advance(1s);
    }
    SECTION("loss")
    {
        b.store.drop("k");
        auto lost = b.ask(l.verify());
        b.pass();
    }
    b.pass();
    CHECK(next.state() == "done");
}

TEST_CASE("waiting: after so many turns in a row other processes get theirs", "[lease][waiting]")
{
    lease_bench b{{.poll_interval = 100ms, .local_turns = 3}};
    std::deque<asked<acquired_lock>> line;
    for (int i = 0; i < 7; ++i)
        line.push_back(b.ask(b.locks.acquire("k")));
    b.pass();
    // Another process polls; it never gets there while leases are handed on here without a pause.
    amux::distributed_lock others{
        amux::testing::plain_scripted_backend{b.store}, b.loop, {.poll_interval = 100ms}};
    std::stop_source give_up;
    auto other = b.ask(others.acquire("k", give_up.get_token()));
    b.pass();
    std::size_t served = 0;
    const auto serve = [&] {
        while (served < line.size() && line[served].state() == "done") {
            line[served++].drop();
            b.loop.run_ready();
        }
    };
    SECTION("when they ask")
    {
        serve();
        CHECK(served == 3);
        b.pass_slowly(1s);
        CHECK(other.state() == "done");
        serve();
        CHECK(served == 3); // the other one has it
        other.drop();
    }
    SECTION("not longer than one poll when nobody wants it")
    {
        serve();
        CHECK(served == 3);
        give_up.request_stop();
        b.pass();
        const auto begun = b.now();
        while (served < line.size()) {
            b.pass(1ms);
            serve();
        }
        CHECK(b.now() - begun <= 3 * 126ms);
    }
    b.pass_slowly(1s);
    while (served < line.size()) {
        b.pass(1ms);
        serve();
    }
}

TEST_CASE("waiting: no value of local_turns starves a process for ever", "[lease][waiting]")
{
    const auto turns = GENERATE(0u, 1u, 2u, 64u);
    lease_bench b{{.poll_interval = 10ms, .local_turns = turns}};
    std::deque<asked<acquired_lock>> line;
    for (int i = 0; i < 5; ++i)
        line.push_back(b.ask(b.locks.acquire("k", {.max_wait = 1s})));
    b.pass();
    for (auto& l : line) {
        b.pass_slowly(15ms);
        REQUIRE(l.state() == "done");
        l.drop();
    }
    b.pass();
}

TEST_CASE("waiting: polls of many waiters are spread", "[lease][waiting]")
{
    lease_bench b{{.poll_interval = 1s}};
    std::deque<asked<acquired_lock>> all;
    for (int i = 0; i < 500; ++i) {
        b.store.usurp("k" + std::to_string(i), "stranger", 1h);
        all.push_back(b.ask(b.locks.acquire("k" + std::to_string(i), {.max_wait = 10s})));
    }
    b.pass();
    std::size_t most = 0;
    for (int i = 0; i < 300; ++i) {
        const auto before = b.count(operation::acquire);
        b.pass(10ms);
        most = std::max(most, b.count(operation::acquire) - before);
    }
    CHECK(b.count(operation::acquire) > 1200);
    CHECK(most < 50);
    b.pass_slowly(8s, 100ms);
}

TEST_CASE("waiting: a poll of a millisecond does not stand still", "[lease][waiting]")
{
    lease_bench b;
    b.store.usurp("k", "stranger", 1h);
    auto l = b.ask(b.locks.acquire("k", {.max_wait = 100ms, .poll_interval = 1ms}));
    b.pass();
    b.pass_slowly(100ms);
    CHECK(l.state() == "timeout");
    CHECK(b.count(operation::acquire) >= 60);
    CHECK(b.count(operation::acquire) <= 140);
}

TEST_CASE("waiting: who is told that the key is free has it before the next poll",
          "[lease][waiting]")
{
    lease_bench b;
    b.store.usurp("k", "stranger", 1h);
    auto l = b.ask(b.locks.acquire("k", {.max_wait = 1h, .poll_interval = 10min}));
    b.pass();
    b.pass(1s);
    b.store.drop("k");
    b.pass();
    CHECK(l.state() == "done");
}

TEST_CASE("waiting: the holder's remaining time wakes it, if nobody tells", "[lease][waiting]")
{
    lease_bench b;
    b.store.usurp("k", "stranger", 500ms);
    auto l = b.ask(b.locks.acquire("k", {.max_wait = 1h, .poll_interval = 10min}));
    b.pass();
    b.pass(499ms);
    CHECK(l.state() == "waits");
    b.pass(1ms);
    CHECK(l.state() == "done");
}

namespace {

/// Says that the key may be free as often as it is asked, and then that it is not.
struct teasing_backend {
    struct answer {
        bool await_ready() const noexcept { return true; }
        void await_suspend(std::coroutine_handle<>) const noexcept {}
        bool await_resume() const noexcept { return false; }
    };
    struct hint {
        bool throws;
        bool await_ready() const noexcept { return true; }
        void await_suspend(std::coroutine_handle<>) const noexcept {}
        void await_resume() const
        {
            if (throws)
                throw std::runtime_error{"no hints here"};
        }
    };
    struct no_holder {
        bool await_ready() const noexcept { return true; }
        void await_suspend(std::coroutine_handle<>) const noexcept {}
        std::optional<std::string> await_resume() const { return std::nullopt; }
    };

    bool throws = false;
    int acquires = 0;
    answer acquire(std::string_view, std::string_view, std::chrono::milliseconds)
    {
        ++acquires;
        return {};
    }
    answer extend(std::string_view, std::string_view, std::chrono::milliseconds) { return {}; }
    answer release(std::string_view, std::string_view) { return {}; }
    no_holder get(std::string_view) { return {}; }
    hint wait_for_release(std::string_view, std::stop_token) { return {throws}; }
};

} // namespace

TEST_CASE("waiting: trouble with a hint is told, once for each", "[lease][waiting]")
{
    amux::manual_event_loop loop;
    teasing_backend store{.throws = true};
    std::vector<std::string> told;
    amux::lock_hooks hooks;
    hooks.on_error = [&](const amux::lock_event& e) { told.push_back(e.key); };
    amux::distributed_lock locks{store, loop, {.poll_interval = 100ms}, hooks};
    asked l{loop, locks.acquire("k", {.max_wait = 1s})};
    loop.run_ready();
    CHECK(told == std::vector<std::string>{"k"});
    loop.advance(1s);
    loop.run_ready();
    CHECK(l.state() == "timeout");
    CHECK(told.size() <= 2);
}

TEST_CASE("waiting: hints that are none do not make a busy loop", "[lease][waiting]")
{
    amux::manual_event_loop loop;
    teasing_backend store{.throws = GENERATE(false, true)};
    amux::distributed_lock locks{store, loop, {.poll_interval = 100ms}};
    asked l{loop, locks.acquire("k", {.max_wait = 1s})};
    loop.run_ready();
    for (int i = 0; i < 100; ++i) {
        loop.advance(10ms);
        loop.run_ready();
    }
    CHECK(l.state() == "timeout");
    CHECK(store.acquires <= 4 * 14);
    CHECK(store.acquires >= 8);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file corners that attackers of the leases have found may come back: storms, forgotten pauses, late requests.
#include "support/lease_bench.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

using namespace std::chrono_literals;
using amux::acquired_lock;
using amux::backend_error_kind;
using amux::testing::course;
using amux::testing::operation;
using support::lease_bench;

TEST_CASE("waiting: the pause for others outlives the leader that began it", "[lease][waiting]")
{
    lease_bench b{{.poll_interval = 200ms, .local_turns = 1}};
    acquired_lock first = b.hold("k");
    auto impatient = b.ask(b.locks.acquire("k", {.max_wait = 20ms}));
    auto patient = b.ask(b.locks.acquire("k"));
    b.pass();
    auto released = b.ask(first.release());
    b.pass_slowly(50ms);
    CHECK(impatient.state() == "timeout");
    CHECK(patient.state() == "waits");
    b.pass_slowly(250ms);
    CHECK(patient.state() == "done");
}

TEST_CASE("renewal: none is sent after a release in the callback of lost_token", "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 3s, .renew = true, .stop_margin = 2200ms});
    const std::stop_callback give_back{l.lost_token(), [&] { static_cast<void>(l.release()); }};
    b.pass(1500ms);
    CHECK(b.count(operation::release) == 1);
    CHECK(b.count(operation::extend) == 0);
}

TEST_CASE("waiting: a release that hangs holds up the line no longer than the lease",
          "[lease][waiting]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    b.store.next(operation::release, course::is_silent(60s));
    auto released = b.ask(l.release());
    auto next = b.ask(b.locks.acquire("k", {.max_wait = 20s}));
    b.pass_slowly(1300ms, 10ms);
    CHECK(next.state() == "done");
    CHECK(released.state() == "waits");
    next.drop();
    b.pass(60s);
}

TEST_CASE("drain: a stop releases a lease also after a drain that gave up", "[lease][drain]")
{
    lease_bench b;
    std::stop_source stop;
    acquired_lock held = b.hold("k", {}, stop.get_token());
    auto other = std::make_unique<acquired_lock>(b.hold("j"));
    b.store.next(operation::release, course::is_silent(60s));
    other.reset();
    auto drained = b.ask(b.locks.drain(10ms));
    b.pass();
    b.pass(10ms);
    REQUIRE(drained.state() == "done");
    CHECK_FALSE(drained.value());
    CHECK(b.log.count("error") == 1); // the one that hangs, once
    stop.request_stop();
    b.pass();
    CHECK(b.count(operation::release) == 2);
    b.pass(60s);
}

TEST_CASE("waiting: a watch that ends in trouble, soon or late, asks no more than polls do",
          "[lease][waiting]")
{
    lease_bench b;
    const auto after = GENERATE(0ms, 1ms, 5ms);
    b.store.usurp("k", "another process", 60s);
    b.store.always(operation::wait, course::fails(backend_error_kind::not_applied, after));
    auto l = b.ask(b.locks.acquire("k", {.max_wait = 2s, .poll_interval = 100ms}));
    b.pass();
    b.pass_slowly(2s);
    CHECK(l.state() == "timeout");
    CHECK(b.count(operation::acquire) >= 2'000 / 125);
    CHECK(b.count(operation::acquire) <= 2'000 / 75 + 1);
}

namespace {

/// Says two milliseconds after it is asked that the key may be free; whether it is does not matter.
struct hasty_backend {
    amux::testing::scripted_backend& store;
    amux::manual_event_loop& loop;

    auto acquire(std::string_view key, std::string_view token, std::chrono::milliseconds ttl)
    {
        return store.acquire(key, token, ttl);
    }
    auto extend(std::string_view key, std::string_view token, std::chrono::milliseconds ttl)
    {
        return store.extend(key, token, ttl);
    }
    auto release(std::string_view key, std::string_view token) { return store.release(key, token); }
    auto get(std::string_view key) { return store.get(key); }
    amux::task<> wait_for_release(std::string_view, std::stop_token stop)
    {
        co_await loop.sleep_for(2ms, std::move(stop));
    }
};

} // namespace

TEST_CASE("waiting: hints that come late and are none cost one question a poll", "[lease][waiting]")
{
    lease_bench b;
    hasty_backend hasty{b.store, b.loop};
    amux::distributed_lock locks{hasty, b.loop};
    b.store.usurp("k", "another process", 60s);
    auto l = b.ask(locks.acquire("k", {.max_wait = 2s, .poll_interval = 100ms}));
    b.pass();
    b.pass_slowly(2s);
    CHECK(l.state() == "timeout");
    CHECK(b.count(operation::acquire) <= 2 * (2'000 / 75 + 1) + 3);
}

TEST_CASE("waiting: hints that are true are all followed at once, though others are faster",
          "[lease][waiting]")
{
    lease_bench b;
    b.store.usurp("k", "another process", 20s);
    auto l = b.ask(b.locks.acquire("k", {.max_wait = 60s, .poll_interval = 10s}));
    b.pass();
    for (std::size_t turn = 1; turn <= 8; ++turn) {
        CHECK(b.count(operation::acquire) == turn);
        b.pass(100ms);
        b.store.usurp("k", "process " + std::to_string(turn), 20s);
        b.pass();
    }
    b.store.drop("k");
    b.pass();
    CHECK(l.state() == "done");
}

TEST_CASE("waiting: what a request in doubt obtains after its release is released again",
          "[lease][waiting]")
{
    lease_bench b;
    std::stop_source stop;
    b.store.next(operation::acquire, course::acts_late(300ms, 10ms));
    auto l = b.ask(b.locks.acquire("k", {.ttl = 30s, .poll_interval = 1s}, stop.get_token()));
    b.pass();
    b.pass_slowly(20ms);
    stop.request_stop();
    b.pass();
    CHECK(l.state() == "stopped");
    CHECK(b.count(operation::release) == 1);
    auto drained = b.ask(b.locks.drain(0ms));
    b.pass();
    CHECK(drained.value()); // nobody waits for a key that nobody may ever have
    b.pass_slowly(280ms);
    CHECK(b.store.holder("k"));
    b.pass_slowly(500ms);
    CHECK_FALSE(b.store.holder("k"));
    CHECK(b.count(operation::release) < 8);
}

TEST_CASE("waiting: a release that frees what was in doubt is the last", "[lease][waiting]")
{
    lease_bench b;
    b.store.next(operation::acquire, course::loses_reply());
    auto l = b.ask(b.locks.try_acquire("k", {.ttl = 30s}));
    b.pass();
    CHECK(l.state() == "trouble");
    b.pass_slowly(30s, 50ms);
    CHECK(b.count(operation::release) == 1);
}

TEST_CASE("lock_hooks: none is called once a callback has destroyed the lock", "[lease][hooks]")
{
    amux::manual_event_loop loop;
    amux::testing::scripted_backend store{loop};
    support::hook_log log;
    using lock_type = amux::distributed_lock<amux::testing::scripted_backend&>;
    std::optional<lock_type> locks;
    locks.emplace(store, loop, amux::distributed_lock_options{}, log.hooks());
    support::asked<acquired_lock> l{loop, locks->acquire("k", {.ttl = 1s})};
    loop.run_ready();
    const std::stop_callback destroy{l.value().lost_token(), [&] {
                                         l.drop();
                                         locks.reset();
                                     }};
    loop.advance(1s);
    loop.run_ready();
    CHECK_FALSE(locks);
    CHECK(log.names() == "acquire");
}

TEST_CASE("backend_error: it names the key, once, whether the backend did or not", "[lease]")
{
    lease_bench b;
    const std::string said = GENERATE("no room", "amux: no room", "no room for 'sku:1'");
    b.store.next(operation::acquire,
                 course::throws(course::trouble(backend_error_kind::permanent, said)));
    auto l = b.ask(b.locks.acquire("sku:1"));
    b.pass();
    REQUIRE(l.state() == "trouble");
    const bool named = said.find("sku:1") != std::string::npos;
    CHECK(l.message() == (named ? said : "amux: no room (key 'sku:1')"));
    CHECK_THROWS_AS(std::rethrow_exception(l.error()), amux::backend_error);
    CHECK(b.log.count("error") == 1);
}

TEST_CASE("backend_error: whatever the key is, it names it once and in one line", "[lease]")
{
    lease_bench b;
    const std::string said =
        GENERATE("no room", "amux: no room", "amux: no room (key 'it\\'s\\x0a')");
    b.store.next(operation::acquire,
                 course::throws(course::trouble(backend_error_kind::permanent, said)));
    auto l = b.ask(b.locks.acquire("it's\n"));
    b.pass();
    REQUIRE(l.state() == "trouble");
    CHECK(l.message() == "amux: no room (key 'it\\'s\\x0a')");
}

TEST_CASE("backend_error: a key that is a part of some word is named, too", "[lease]")
{
    lease_bench b;
    b.store.next(operation::acquire,
                 course::throws(course::trouble(backend_error_kind::permanent, "no room")));
    auto l = b.ask(b.locks.acquire("o"));
    b.pass();
    REQUIRE(l.state() == "trouble");
    CHECK(l.message() == "amux: no room (key 'o')");
}

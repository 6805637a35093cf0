// SPDX-License-Identifier: BSL-1.0
// Without this file the forms, defaults, limits and errors of asking for a lease are what the code happens to do.
#include "support/lease_bench.hpp"

#include <amux/distributed_lock.hpp>
#include <amux/memory_backend.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <concepts>
#include <optional>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::acquire_options;
using amux::acquired_lock;
using amux::distributed_lock;
using amux::memory_backend;
using support::asked;
using support::lease_bench;
using course = lease_bench::course;
using operation = lease_bench::operation;
using milliseconds = std::chrono::milliseconds;

// g++ 12 copies what is not so, and destroys it twice, in a co_await expression.
static_assert(std::is_trivially_copyable_v<amux::distributed_lock_options>);
static_assert(std::is_trivially_copyable_v<acquire_options>);

static_assert(!std::is_move_constructible_v<distributed_lock<memory_backend>>);
static_assert(!std::is_copy_constructible_v<distributed_lock<memory_backend&>>);
static_assert(std::is_base_of_v<std::runtime_error, amux::lock_error>);
static_assert(amux::forever == milliseconds::max());

namespace {

/// The calls as the guide writes them, in one coroutine.
amux::task<int> every_form(distributed_lock<memory_backend&>& locks, std::stop_token stop)
{
    int leases = 0;
    {
        std::optional<acquired_lock> l =
            co_await locks.try_acquire("queue:leader", {.ttl = 10s, .renew = true}, stop);
        leases += l && l->is_held();
    }
    {
        std::optional<acquired_lock> l = co_await locks.try_acquire("queue:leader");
        leases += l && l->is_held();
    }
    {
        std::optional<acquired_lock> l = co_await locks.try_acquire("queue:leader", stop);
        leases += l && l->is_held();
    }
    {
        acquired_lock l = co_await locks.acquire("sku:1", {.max_wait = 2s}, stop);
        leases += l.is_held();
    }
    {
        acquired_lock l = co_await locks.acquire("sku:1", stop);
        leases += l.is_held();
        amux::clock::time_point until = co_await l.extend();
        until = co_await l.extend(3s);
        leases += until == l.valid_until();
        leases += co_await l.verify();
        std::optional<amux::lease_info> i = co_await locks.inspect("sku:1");
        leases += i && i->token == l.token();
        leases += co_await l.release();
        amux::lock_end e = co_await l.ended();
        leases += e.reason == amux::end_reason::released;
    }
    {
        acquired_lock l = co_await locks.acquire("sku:1");
        const bool b = co_await locks.release("sku:1", l.token());
        leases += b;
    }
    auto fn = [](acquired_lock& l) { return l.is_held(); };
    auto r = co_await locks.with_lock("acct:42", fn, {.renew = true}, stop);
    leases += r;
    leases += co_await locks.with_lock("acct:42", fn);
    auto work = [&leases](acquired_lock& l) { leases += l.auto_renew(); };
    co_await locks.run_as_leader("role:cron", work, {.ttl = 5s}, stop);
    co_await locks.run_as_leader("role:cron", work);
    bool all = co_await locks.drain(5s);
    leases += all;
    co_return leases;
}

} // namespace

TEST_CASE("distributed_lock: every call can be written as the guide writes it", "[lease]")
{
    amux::manual_event_loop loop;
    memory_backend store{loop};
    amux::lock_hooks hooks;
    distributed_lock locks{store, loop, {.default_ttl = 10s}, hooks};
    std::stop_source stop;
    asked<int> all{loop, every_form(locks, stop.get_token())};
    loop.run_ready();
    CHECK(all.value() == 16);
    CHECK(store.size() == 0);
}

TEST_CASE("distributed_lock: an lvalue backend is referred to, an rvalue is moved in", "[lease]")
{
    amux::manual_event_loop loop;
    memory_backend store{loop};
    distributed_lock refers{store, loop};
    STATIC_REQUIRE(std::same_as<decltype(refers), distributed_lock<memory_backend&>>);
    distributed_lock owns{memory_backend{loop}, loop, {.default_ttl = 1s}};
    STATIC_REQUIRE(std::same_as<decltype(owns), distributed_lock<memory_backend>>);

    asked first{loop, refers.acquire("k")};
    asked second{loop, owns.acquire("k")};
    loop.run_ready();
    CHECK(first.value().is_held());
    CHECK(second.value().is_held());
    CHECK(store.size() == 1);
    second.drop();
    first.drop();
    loop.run_ready();
    CHECK(store.size() == 0);
}

TEST_CASE("distributed_lock: what is not said has its default", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k");
    CHECK(b.store.calls().back().ttl == 30s);
    CHECK_FALSE(l.auto_renew());

    CHECK(l.remaining() == 30s - 302ms);

    b.store.usurp("other", "stranger", 1h);
    auto line = b.ask(b.locks.acquire("other"));
    b.pass();
    b.pass_slowly(30s - 1ms, 100ms);
    CHECK(line.state() == "waits");
    b.pass(1ms);
    CHECK(line.state() == "timeout");
    CHECK(b.count(operation::acquire) >= 1 + 30'000 / 350);
    CHECK(b.count(operation::acquire) <= 1 + 30'000 / 150);
}

TEST_CASE("distributed_lock: the lock's defaults stand behind every call", "[lease]")
{
    lease_bench b{{.default_ttl = 3s, .max_wait = 50ms, .poll_interval = 7ms}};
    b.store.usurp("k", "stranger", 1h);
    auto waits = b.ask(b.locks.acquire("k"));
    b.pass();
    b.pass_slowly(50ms);
    CHECK(waits.state() == "timeout");
    CHECK(b.store.calls().front().ttl == 3s);
    CHECK(b.count(operation::acquire) >= 6);
    CHECK(b.count(operation::acquire) <= 12);
}

TEST_CASE("distributed_lock: bad options are refused before anything is sent", "[lease]")
{
    lease_bench b;
    const milliseconds year{366 * 24h};
    struct bad {
        std::string key;
        acquire_options options;
    };
    const bad c =
        GENERATE_REF(bad{"k", {.ttl = 0ms}}, bad{"k", {.ttl = -1ms}}, bad{"k", {.ttl = 9ms}},
                     bad{"k", {.ttl = year + 1ms}}, bad{"k", {.ttl = milliseconds::max()}},
                     bad{"k", {.ttl = milliseconds::min()}}, bad{"k", {.max_wait = -1ms}},
                     bad{"k", {.poll_interval = 0ms}}, bad{"k", {.poll_interval = -1ms}},
                     bad{"k", {.poll_interval = milliseconds::max()}},
                     bad{"k", {.renew_interval = 0ms}}, bad{"k", {.renew_interval = -5ms}},
                     bad{"k", {.max_hold = 0ms}}, bad{"k", {.stop_margin = -1ms}}, bad{"", {}});
    auto first = b.ask(b.locks.acquire(c.key, c.options));
    auto second = b.ask(b.locks.try_acquire(c.key, c.options));
    auto third = b.ask(b.locks.with_lock(c.key, [](acquired_lock&) {}, c.options));
    b.pass();
    CHECK(first.state() == "invalid");
    CHECK(second.state() == "invalid");
    CHECK(third.state() == "invalid");
    if (c.options.max_wait == std::nullopt) {
        auto fourth = b.ask(b.locks.run_as_leader(c.key, [](acquired_lock&) {}, c.options));
        b.pass();
        CHECK(fourth.state() == "invalid");
    }
    if (!c.key.empty())
        CHECK(first.message().find("key 'k'") != std::string::npos);
    b.pass_slowly(1s, 100ms);
    CHECK(b.store.count() == 0);
    CHECK(b.log.told.empty());
}

TEST_CASE("distributed_lock: calls on no key at all are refused", "[lease]")
{
    lease_bench b;
    auto released = b.ask(b.locks.release("", "token"));
    auto inspected = b.ask(b.locks.inspect(""));
    b.pass();
    CHECK(released.state() == "invalid");
    CHECK(inspected.state() == "invalid");
    CHECK(b.store.count() == 0);
}

TEST_CASE("distributed_lock: bad defaults of the lock are refused by the calls that need them",
          "[lease]")
{
    lease_bench b{{.default_ttl = 0ms, .poll_interval = 0ms}};
    auto bad = b.ask(b.locks.acquire("k"));
    auto good = b.ask(b.locks.acquire("k", {.ttl = 10ms, .poll_interval = 1ms}));
    b.pass();
    CHECK(bad.state() == "invalid");
    CHECK(good.state() == "done");
}

TEST_CASE("distributed_lock: the shortest and the longest ttl are granted", "[lease]")
{
    lease_bench b;
    acquired_lock shortest = b.hold("a", {.ttl = 10ms});
    CHECK(shortest.remaining() == 10ms - 2ms - 100us);
    acquired_lock longest = b.hold("b", {.ttl = milliseconds{366 * 24h}});
    CHECK(longest.remaining() > 360 * 24h);
}

TEST_CASE("distributed_lock: try_acquire makes one attempt", "[lease]")
{
    lease_bench b;
    SECTION("of a free key")
    {
        auto l = b.ask(b.locks.try_acquire("k"));
        b.pass();
        CHECK(l.value().has_value());
    }
    SECTION("of a key that a stranger has")
    {
        b.store.usurp("k", "stranger", 10ms);
        auto l = b.ask(b.locks.try_acquire("k"));
        b.pass();
        CHECK_FALSE(l.value().has_value());
    }
    SECTION("of a key that is held here, outside the line")
    {
        acquired_lock held = b.hold("k");
        auto waits = b.ask(b.locks.acquire("k", {.max_wait = 5ms}));
        auto l = b.ask(b.locks.try_acquire("k"));
        b.pass();
        CHECK_FALSE(l.value().has_value());
        CHECK(waits.state() == "waits");
        CHECK(b.count(operation::acquire) == 2);
        b.pass(5ms);
    }
    SECTION("in trouble")
    {
        b.store.next(operation::acquire, course::fails(amux::backend_error_kind::not_applied));
        auto l = b.ask(b.locks.try_acquire("k", {.metadata = "m"}));
        b.pass();
        CHECK(l.state() == "trouble");
        CHECK(b.log.names() == "error");
        CHECK(b.log.told[0].event.metadata == "m");
        CHECK(b.log.told[0].event.key == "k");
    }
    b.pass(1s);
    CHECK(b.count(operation::acquire) <= 2);
}

TEST_CASE("distributed_lock: try_acquire gives up a backend that hangs past max_wait", "[lease]")
{
    lease_bench b;
    b.store.always(operation::acquire, course::held());
    auto l = b.ask(b.locks.try_acquire("k", {.max_wait = 50ms}));
    auto patient = b.ask(b.locks.try_acquire("k", {.max_wait = 0ms}));
    b.pass();
    b.pass(49ms);
    CHECK(l.state() == "waits");
    b.pass(1ms);
    CHECK(l.state() == "trouble");
    CHECK(l.message().find("50 ms") != std::string::npos);
    b.pass(10s);
    CHECK(patient.state() == "waits"); // as long as the backend's own limit
    b.store.answer(2);
    b.pass();
    CHECK(patient.state() == "done");
}

TEST_CASE("distributed_lock: a max_wait of zero is one attempt, as long as it takes", "[lease]")
{
    lease_bench b;
    SECTION("granted")
    {
        b.store.next(operation::acquire, course::late(5s));
        auto l = b.ask(b.locks.acquire("k", {.max_wait = 0ms}));
        b.pass();
        b.pass(1s);
        CHECK(l.state() == "waits");
        b.pass(4s);
        CHECK(l.state() == "done");
    }
    SECTION("refused")
    {
        b.store.usurp("k", "stranger", 1h);
        auto l = b.ask(b.locks.acquire("k", {.max_wait = 0ms}));
        b.pass();
        CHECK(l.state() == "timeout");
        CHECK(b.count(operation::wait) == 0);
    }
    SECTION("in trouble")
    {
        b.store.always(operation::acquire, course::fails(amux::backend_error_kind::not_applied));
        auto l = b.ask(b.locks.acquire("k", {.max_wait = 0ms}));
        b.pass();
        CHECK(l.state() == "trouble");
    }
    CHECK(b.count(operation::acquire) == 1);
}

TEST_CASE("distributed_lock: max_wait forever has no end", "[lease]")
{
    lease_bench b;
    b.store.usurp("k", "stranger", 1000h);
    auto l = b.ask(b.locks.acquire("k", {.max_wait = amux::forever}));
    for (int day = 0; day < 30; ++day) {
        b.pass(24h);
        CHECK(l.state() == "waits");
    }
    b.store.drop("k");
    b.pass();
    CHECK(l.state() == "done");
}

TEST_CASE("distributed_lock: a time-out says the key, the true wait and the last trouble",
          "[lease]")
{
    lease_bench b;
    b.store.always(operation::acquire, course::fails(amux::backend_error_kind::not_applied));
    auto l = b.ask(b.locks.acquire("k", {.max_wait = 50ms, .poll_interval = 10ms}));
    b.pass();
    b.pass_slowly(45ms);
    b.pass(20ms); // the loop is late
    REQUIRE(l.state() == "timeout");
    try {
        std::rethrow_exception(l.error());
    } catch (const amux::lock_wait_timeout_error& e) {
        CHECK(e.key() == "k");
        CHECK(e.waited() == 65ms);
        const std::string text = e.what();
        CHECK(text ==
              "amux: no lease after 65 ms; last trouble of the store: the store refuses (key 'k')");
    }
}

TEST_CASE("distributed_lock: a time-out says when the store has not answered", "[lease]")
{
    lease_bench b;
    b.store.always(operation::acquire, course::held());
    auto l = b.ask(b.locks.acquire("k", {.max_wait = 50ms}));
    b.pass();
    b.pass(50ms);
    REQUIRE(l.state() == "timeout");
    CHECK(l.message().find("has not answered") != std::string::npos);
}

TEST_CASE("distributed_lock: key and metadata are copied by the call", "[lease]")
{
    lease_bench b;
    std::string key = "a key that is longer than any small buffer of a string";
    std::string metadata = "and metadata that are longer than such a buffer, too";
    const std::string key_before = key;
    const std::string metadata_before = metadata;
    const acquire_options options{.metadata = metadata};
    auto first = b.locks.acquire(key, options);
    auto second = b.locks.try_acquire(key + "2", options);
    auto third =
        b.locks.with_lock(key + "3", [](acquired_lock& l) { return l.metadata(); }, options);
    key.assign(key.size(), 'x');
    metadata.assign(metadata.size(), 'x');
    auto l = b.ask(std::move(first));
    auto m = b.ask(std::move(second));
    auto n = b.ask(std::move(third));
    b.pass();
    CHECK(l.value().key() == key_before);
    CHECK(l.value().metadata() == metadata_before);
    CHECK(m.value()->key() == key_before + "2");
    CHECK(m.value()->metadata() == metadata_before);
    CHECK(n.value() == metadata_before);
    auto token = l.value().token();
    auto released = b.locks.release(key_before, token);
    token.assign(token.size(), '0');
    auto r = b.ask(std::move(released));
    b.pass();
    CHECK(r.value());
}

TEST_CASE("distributed_lock: nothing happens before a call is awaited", "[lease]")
{
    lease_bench b;
    {
        auto call = b.locks.acquire("k");
        auto other = b.locks.drain(1s);
        b.pass();
    }
    CHECK(b.store.count() == 0);
    acquired_lock l = b.hold("k");
    CHECK(l.is_held());
}

TEST_CASE("distributed_lock: metadata reach a store that takes them", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 5s, .metadata = "host 7"});
    b.pass(1s);
    auto seen = b.ask(b.locks.inspect("k"));
    auto none = b.ask(b.locks.inspect("other"));
    b.pass();
    REQUIRE(seen.value());
    CHECK(seen.value()->token == l.token());
    CHECK(seen.value()->fence == l.fence());
    CHECK(seen.value()->remaining == 4s);
    CHECK(seen.value()->metadata == "host 7");
    CHECK_FALSE(none.value());
    b.store.next(operation::inspect, course::fails(amux::backend_error_kind::permanent));
    auto trouble = b.ask(b.locks.inspect("k"));
    b.pass();
    CHECK(trouble.state() == "trouble");
}

TEST_CASE("distributed_lock: it works with a store of only four operations", "[lease]")
{
    amux::manual_event_loop loop;
    amux::testing::scripted_backend all{loop};
    support::hook_log log;
    distributed_lock locks{amux::testing::plain_scripted_backend{all}, loop, {}, log.hooks()};
    asked l{loop, locks.acquire("k", {.ttl = 1s, .metadata = "m"})};
    asked waits{loop, locks.acquire("other", {.poll_interval = 10ms})};
    loop.run_ready();
    CHECK_FALSE(l.value().fence());
    CHECK(l.value().metadata() == "m");
    CHECK(log.told[0].event.metadata == "m");
    asked seen{loop, locks.inspect("k")};
    asked none{loop, locks.inspect("free")};
    loop.run_ready();
    REQUIRE(seen.value());
    CHECK(seen.value()->token == l.value().token());
    CHECK_FALSE(seen.value()->fence);
    CHECK_FALSE(seen.value()->remaining);
    CHECK_FALSE(none.value());
    waits.drop();
    all.usurp("other", "stranger", 1h);
    asked later{loop, locks.acquire("other", {.poll_interval = 10ms})};
    loop.run_ready();
    loop.advance(100ms);
    loop.run_ready();
    CHECK(later.state() == "waits");
    all.drop("other");
    loop.advance(13ms);
    loop.run_ready();
    CHECK(later.state() == "done"); // it polls
    CHECK(all.count(operation::wait) == 0);
}

TEST_CASE("distributed_lock: release by token frees a key that nobody here holds", "[lease]")
{
    lease_bench b;
    b.store.usurp("k", "stranger", 1h);
    auto wrong = b.ask(b.locks.release("k", "somebody"));
    auto right = b.ask(b.locks.release("k", "stranger"));
    b.pass();
    CHECK_FALSE(wrong.value());
    CHECK(right.value());
    CHECK_FALSE(b.store.holder("k"));
    CHECK(b.log.told.empty());
    b.store.next(operation::release, course::fails(amux::backend_error_kind::permanent));
    auto trouble = b.ask(b.locks.release("k", "stranger"));
    b.pass();
    CHECK(trouble.state() == "trouble");
}

TEST_CASE("distributed_lock: release by token of a live handle says what the store says", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    b.store.next(operation::release, course::late(20ms));
    b.store.drop("k");
    auto first = b.ask(b.locks.release("k", l.token()));
    auto second = b.ask(b.locks.release("k", l.token()));
    b.pass();
    b.pass(20ms);
    CHECK_FALSE(first.value());
    CHECK_FALSE(second.value());
    CHECK(b.log.names() == "acquire lost");
}

TEST_CASE("distributed_lock: release by another token leaves a live handle of the key alone",
          "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    auto answer = b.ask(b.locks.release("k", "somebody"));
    b.pass();
    CHECK_FALSE(answer.value());
    CHECK(l.is_held());
    CHECK(b.store.holder("k") == l.token());
}

TEST_CASE("distributed_lock: release by token ends a live handle of it first", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s, .renew = true});
    b.store.next(operation::release, course::late(20ms));
    auto answer = b.ask(b.locks.release("k", l.token()));
    b.pass();
    CHECK_FALSE(l.is_held());
    auto shared = b.ask(l.release());
    b.pass(20ms);
    CHECK(answer.value());
    CHECK(shared.value());
    CHECK(b.count(operation::release) == 1);
    CHECK(b.log.names() == "acquire release");
    auto again = b.ask(b.locks.release("k", l.token()));
    b.pass_slowly(2s, 10ms);
    CHECK_FALSE(again.value());
    CHECK(b.count(operation::extend) == 0);
}

TEST_CASE("distributed_lock: release by token is told to the holder, before the key is free",
          "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    std::string told;
    const auto tell = [&] { told = b.store.holder("k") ? "held yet" : "free"; };
    const std::stop_callback lost{l.lost_token(), tell};
    auto answer = b.ask(b.locks.release("k", l.token()));
    b.pass();
    CHECK(answer.value());
    CHECK(told == "held yet");
    auto end = b.ask(l.ended());
    b.pass();
    CHECK(end.value().reason == amux::end_reason::released);
    CHECK(b.log.names() == "acquire release");
}

TEST_CASE("distributed_lock: waiters of one process are served in order of arrival", "[lease]")
{
    lease_bench b;
    std::optional<acquired_lock> l{b.hold("k")};
    std::vector<asked<acquired_lock>> line;
    for (int i = 0; i < 5; ++i)
        line.push_back(b.ask(b.locks.acquire("k")));
    b.pass();
    l.reset();
    for (std::size_t i = 0; i < 5; ++i) {
        b.pass();
        for (std::size_t k = 0; k < 5; ++k)
            CHECK(line[k].state() == (k <= i ? "done" : "waits"));
        line[i].drop();
    }
    b.pass();
    CHECK(b.count(operation::acquire) == 6);
}

TEST_CASE("distributed_lock: different keys do not wait for each other", "[lease]")
{
    lease_bench b;
    acquired_lock a = b.hold("a");
    auto waits = b.ask(b.locks.acquire("a"));
    b.pass();
    acquired_lock c = b.hold("c");
    CHECK(c.is_held());
    CHECK(waits.state() == "waits");
    auto answer = b.ask(a.release());
    b.pass();
    CHECK(waits.state() == "done");
}

TEST_CASE("distributed_lock: a permanent trouble ends an acquire at once", "[lease]")
{
    lease_bench b;
    b.store.next(operation::acquire, course::fails(amux::backend_error_kind::permanent));
    auto l = b.ask(b.locks.acquire("k"));
    b.pass();
    REQUIRE(l.state() == "trouble");
    try {
        std::rethrow_exception(l.error());
    } catch (const amux::backend_error& e) {
        CHECK(e.kind() == amux::backend_error_kind::permanent);
    }
    CHECK(b.log.names() == "error");
}

TEST_CASE("distributed_lock: another exception of a backend is trouble of unknown outcome",
          "[lease]")
{
    lease_bench b;
    const auto thrown = GENERATE(0, 1);
    b.store.next(operation::acquire,
                 course::throws(thrown == 0 ? std::make_exception_ptr(std::logic_error{"oh"})
                                            : std::make_exception_ptr(7)));
    auto l = b.ask(b.locks.try_acquire("k"));
    b.pass();
    REQUIRE(l.state() == "trouble");
    try {
        std::rethrow_exception(l.error());
    } catch (const amux::backend_error& e) {
        CHECK(e.kind() == amux::backend_error_kind::indeterminate);
        CHECK(std::string{e.what()}.find(thrown == 0 ? "oh" : "something") != std::string::npos);
    }
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a renewal that fails, hangs, or crosses a release may lose a lease, or keep one that is given back.
#include "support/lease_bench.hpp"
#include "support/scale.hpp"

#include <amux/distributed_lock.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::acquired_lock;
using amux::backend_error_kind;
using amux::end_reason;
using amux::task;
using support::lease_bench;
using course = lease_bench::course;
using operation = lease_bench::operation;
using milliseconds = std::chrono::milliseconds;

namespace {

/// Whether an extend was sent after a release of the same lease.
bool extends_after_release(const lease_bench& b)
{
    std::map<std::string, bool> released;
    for (const auto& call : b.store.calls()) {
        if (call.op == operation::release)
            released[call.token] = true;
        else if (call.op == operation::extend && released[call.token])
            return true;
    }
    return false;
}

} // namespace

TEST_CASE("renewal: every third of the ttl, or a little sooner", "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 900ms, .renew = true});
    b.pass_slowly(9s);
    CHECK(l.is_held());
    CHECK(b.count(operation::extend) >= 29);
    CHECK(b.count(operation::extend) <= 38);
    CHECK(b.store.calls().back().ttl == 900ms);
}

TEST_CASE("renewal: at the interval that was asked for, but never too late for a second try",
          "[lease][renewal]")
{
    lease_bench b;
    acquired_lock often = b.hold("often", {.ttl = 10s, .renew = true, .renew_interval = 100ms});
    b.pass_slowly(2s);
    CHECK(b.count(operation::extend) >= 19);
    CHECK(b.count(operation::extend) <= 26);
    auto answer = b.ask(often.release());
    b.pass();
    acquired_lock seldom = b.hold("seldom", {.ttl = 1s, .renew = true, .renew_interval = 1h});
    b.pass_slowly(5s);
    CHECK(seldom.is_held());
}

TEST_CASE("renewal: one trouble of the store, or two, lose nothing", "[lease][renewal]")
{
    lease_bench b;
    const auto kind = GENERATE(backend_error_kind::not_applied, backend_error_kind::indeterminate,
                               backend_error_kind::permanent);
    const auto troubles = GENERATE(1, 2);
    acquired_lock l = b.hold("k", {.ttl = 1s, .renew = true, .metadata = "m"});
    for (int i = 0; i < troubles; ++i)
        b.store.next(operation::extend, course::fails(kind));
    const auto before = l.valid_until();
    while (b.log.count("renew") == 0) {
        b.pass(1ms);
        REQUIRE(l.is_held());
        if (b.log.count("renew") == 0)
            REQUIRE(l.valid_until() == before);
    }
    CHECK(b.log.count("error") == troubles);
    CHECK(b.log.last("error").metadata == "m");
    CHECK(b.log.last("error").token == l.token());
    CHECK(support::error_name(b.log.last("error").cause) == "trouble");
    CHECK(l.remaining() >= 980ms);
    CHECK_FALSE(l.lost_token().stop_requested());
}

TEST_CASE("renewal: tries that meet trouble come less and less often", "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 10s, .renew = true});
    b.store.always(operation::extend, course::fails(backend_error_kind::not_applied));
    std::vector<milliseconds> tries;
    while (l.is_held()) {
        const auto before = b.count(operation::extend);
        b.pass(1ms);
        if (b.count(operation::extend) != before)
            tries.push_back(b.now());
    }
    REQUIRE(tries.size() >= 3);
    CHECK(tries.size() <= 10);
    CHECK(tries[1] - tries[0] >= 375ms);
    CHECK(tries[1] - tries[0] <= 625ms);
    CHECK(tries[2] - tries[1] > tries[1] - tries[0]);
    CHECK(b.log.count("lost") == 1);
}

TEST_CASE("renewal: after a lost answer the old end stands until another answer comes",
          "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s, .renew = true});
    b.store.always(operation::extend, course::loses_reply());
    const auto before = l.valid_until();
    b.pass_slowly(500ms);
    CHECK(b.count(operation::extend) >= 1);
    CHECK(l.valid_until() == before);
    b.pass_slowly(500ms);
    CHECK_FALSE(l.is_held());
    CHECK(b.log.count("lost") == 1);
}

TEST_CASE("renewal: at most one is in flight for a lease", "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s, .renew = true, .renew_interval = 1ms});
    b.store.always(operation::extend, course::late(100ms));
    std::size_t most = 0;
    for (int i = 0; i < 900; ++i) {
        b.pass(1ms);
        std::size_t flying = 0;
        for (const auto& call : b.store.calls())
            flying += call.op == operation::extend && !call.answered;
        most = std::max(most, flying);
    }
    CHECK(most == 1);
    CHECK(l.is_held());
}

TEST_CASE("renewal: an extend that is asked for when a renewal is due goes alone",
          "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s, .renew = true});
    b.store.always(operation::extend, course::late(10ms));
    b.loop.advance(400ms);
    auto call = b.ask(l.extend(2s)); // it stands before the timer that is due
    b.pass();
    CHECK(b.count(operation::extend) == 1);
    b.pass(10ms);
    CHECK(call.state() == "done");
    CHECK(l.remaining() == 2s - 22ms - 10ms);
    CHECK(b.count(operation::extend) == 1);
}

TEST_CASE("renewal: a longer or shorter ttl moves the next one", "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 3s, .renew = true});
    const auto ttl = GENERATE(milliseconds{300ms}, milliseconds{30s});
    auto call = b.ask(l.extend(ttl));
    b.pass();
    REQUIRE(call.state() == "done");
    const auto begun = b.now();
    while (b.count(operation::extend) == 1)
        b.pass(1ms);
    CHECK(b.now() - begun >= ttl / 3 * 8 / 10);
    CHECK(b.now() - begun <= ttl / 3 + 1ms);
    CHECK(b.store.calls().back().ttl == ttl);
}

TEST_CASE("renewal: a shorter ttl whose answer is lost may be in force", "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 10s});
    b.store.next(operation::extend, course::loses_reply(5ms));
    auto call = b.ask(l.extend(1s));
    b.pass();
    b.pass(5ms);
    CHECK(call.state() == "trouble");
    CHECK(l.remaining() == 1s - 12ms - 5ms);
    b.pass(983ms);
    CHECK_FALSE(l.is_held());
    CHECK(b.log.names() == "acquire error lost");
}

TEST_CASE("renewal: a longer ttl whose answer is lost is not believed", "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    const auto before = l.valid_until();
    b.store.next(operation::extend, course::loses_reply(5ms));
    auto call = b.ask(l.extend(10s));
    b.pass();
    b.pass(5ms);
    CHECK(call.state() == "trouble");
    CHECK(l.valid_until() == before);
    CHECK(b.log.names() == "acquire error");
}

TEST_CASE("renewal: a shorter ttl in doubt is renewed before it is over", "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 10s, .renew = true});
    b.store.next(operation::extend, course::loses_reply());
    auto call = b.ask(l.extend(1s));
    b.pass();
    CHECK(call.state() == "trouble");
    b.pass_slowly(5s);
    CHECK(l.is_held());
    CHECK(b.log.count("lost") == 0);
}

TEST_CASE("renewal: an extend that succeeds after the end revives nothing", "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s, .renew = true});
    // The store carries it out in time, and answers when all is over.
    b.store.next(operation::extend, course::late(2s));
    b.store.next(operation::release, course::fails(backend_error_kind::not_applied));
    b.pass_slowly(1s, 10ms);
    CHECK_FALSE(l.is_held());
    CHECK(b.log.names() == "acquire lost error");
    CHECK(b.store.holder("k") == l.token()); // the one release of an expired lease has failed
    b.pass_slowly(1300ms, 10ms);
    CHECK_FALSE(l.is_held());
    CHECK(b.log.names() == "acquire lost error");
    CHECK_FALSE(b.store.holder("k"));
    auto end = b.ask(l.ended());
    b.pass();
    CHECK(end.value().reason == end_reason::expired);
}

TEST_CASE("renewal: an orphan of a late extend is released", "[lease][renewal]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s, .renew = true});
    b.store.always(operation::extend, course::late(900ms));
    b.store.next(operation::release, course::fails(backend_error_kind::not_applied));
    while (l.is_held())
        b.pass(1ms);
    REQUIRE(b.store.holder("k") == l.token());
    const auto before = b.count(operation::release);
    b.pass_slowly(300ms);
    CHECK(b.count(operation::release) == before + 1);
    CHECK_FALSE(b.store.holder("k"));
    CHECK(b.log.count("renew") == 0);
}

TEST_CASE("renewal: one that hangs delays no other", "[lease][renewal]")
{
    lease_bench b;
    std::deque<acquired_lock> all;
    for (int i = 0; i < 101; ++i)
        all.push_back(b.hold("k" + std::to_string(i), {.ttl = 1s, .renew = true}));
    b.store.decide = [](const amux::testing::backend_call& call) -> std::optional<course> {
        if (call.op == operation::extend && call.key == "k50")
            return course::held();
        return std::nullopt;
    };
    b.pass_slowly(5s);
    for (std::size_t i = 0; i < all.size(); ++i)
        CHECK(all[i].is_held() == (i != 50));
    CHECK(b.log.count("lost") == 1);
}

TEST_CASE("renewal: ten thousand leases that begin together are not renewed together",
          "[lease][renewal]")
{
    const int leases = std::max(1000, support::scaled(10'000));
    lease_bench b;
    b.store.keep_no_log();
    std::deque<acquired_lock> all;
    for (int i = 0; i < leases; ++i)
        all.push_back(b.hold("k" + std::to_string(i), {.ttl = 30s, .renew = true}));
    b.log.told.clear();

    std::map<std::string, amux::clock::time_point> end;
    bool in_time = true;
    bool down = false;
    b.store.decide = [&](const amux::testing::backend_call& call) -> std::optional<course> {
        if (call.op == operation::extend && down)
            return course::fails(backend_error_kind::not_applied);
        return std::nullopt;
    };
    const auto busiest = [&](milliseconds d) {
        std::size_t most = 0;
        for (milliseconds t{}; t < d; t += 100ms) {
            const auto before = b.count(operation::extend);
            b.pass(100ms);
            most = std::max(most, b.count(operation::extend) - before);
            in_time = in_time && b.log.count("lost") == 0;
            b.log.told.clear();
        }
        return most;
    };
    const auto some = static_cast<std::size_t>(leases) / 10;
    CHECK(busiest(15s) < some);
    SECTION("nor after the store was away")
    {
        down = true;
        busiest(8s);
        down = false;
        CHECK(busiest(15s) < some);
    }
    SECTION("nor after the loop was busy, from the second time on")
    {
        b.loop.advance(10s);
        b.pass(); // now all at once
        CHECK(busiest(15s) < some);
    }
    CHECK(in_time);
    CHECK(all.front().is_held());
    CHECK(all.back().is_held());
}

TEST_CASE("renewal: a holder that computes over its end sees the loss first", "[lease][renewal]")
{
    lease_bench b;
    std::optional<bool> held;
    auto work = [&]() -> task<> {
        acquired_lock l = co_await b.locks.acquire("k", {.ttl = 1s, .renew = true});
        b.loop.advance(2s); // it computes for two ttl, on the loop that drives the renewal
        held = l.is_held();
        co_await b.loop.sleep_for(1ms, l.lost_token());
    };
    auto r = b.ask(work());
    b.pass();
    b.pass();
    CHECK(held == false);
    CHECK(b.log.names() == "acquire lost");
    CHECK(r.state() == "done");
    CHECK(b.count(operation::extend) == 0);
}

TEST_CASE("renewal: nothing is extended after the release, in whatever order they come",
          "[lease][renewal]")
{
    lease_bench b;
    std::stop_source stop;
    const bool late = GENERATE(false, true);
    b.store.always(operation::extend, course::late(20ms));
    b.store.always(operation::release, course::late(10ms));
    std::optional<acquired_lock> l{b.hold("k", {.ttl = 1s, .renew = true}, stop.get_token())};
    if (!late)
        b.loop.advance(335ms); // an extend is due, and the loop has not seen it
    while (late && b.count(operation::extend) == 0) // one is in flight
        b.pass(1ms);
    SECTION("a release")
    {
        auto answer = l->release();
    }
    SECTION("a release by token")
    {
        auto answer = b.ask(b.locks.release("k", l->token()));
        b.pass();
    }
    SECTION("the destructor")
    {
        l.reset();
    }
    SECTION("a stop")
    {
        stop.request_stop();
    }
    SECTION("a certain loss")
    {
        b.store.usurp("k", "stranger", 1h);
        auto answer = b.ask(l->verify());
        b.pass();
    }
    b.pass_slowly(3s, 10ms);
    CHECK_FALSE(extends_after_release(b));
    CHECK(b.count(operation::extend) <= 1);
    CHECK(b.log.count("renew") == 0);
    CHECK(b.log.count("release") + b.log.count("lost") == 1);
    CHECK(b.store.holder("k").value_or("stranger") == "stranger");
}

TEST_CASE("renewal: a lease whose stop came with its grant is never renewed", "[lease][renewal]")
{
    lease_bench b;
    std::stop_source stop;
    auto hooks = b.log.hooks();
    const auto in_hook = GENERATE(true, false);
    hooks.on_acquire = [&](const amux::lock_event&) {
        if (in_hook)
            stop.request_stop();
    };
    amux::distributed_lock locks{b.store, b.loop, {}, hooks};
    b.store.next(operation::acquire, course::held());
    auto l = b.ask(locks.acquire("k", {.ttl = 1s, .renew = true}, stop.get_token()));
    b.pass();
    b.store.answer(1);
    if (!in_hook)
        stop.request_stop();
    b.pass();
    CHECK((l.state() == "stopped" || !l.value().is_held()));
    b.pass_slowly(2s, 10ms);
    CHECK(b.count(operation::extend) == 0);
    CHECK_FALSE(b.store.holder("k"));
    if (l.state() == "done")
        l.drop();
}

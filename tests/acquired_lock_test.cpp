// SPDX-License-Identifier: BSL-1.0
// Without this file what a lease tells its holder, and what the holder can ask of it, is tested only by accident.
#include "support/death.hpp"
#include "support/lease_bench.hpp"

#include <amux/acquired_lock.hpp>
#include <amux/distributed_lock.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <cstring>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::acquired_lock;
using amux::end_reason;
using support::asked;
using support::lease_bench;
using course = lease_bench::course;
using operation = lease_bench::operation;

static_assert(!std::is_copy_constructible_v<acquired_lock> &&
              !std::is_copy_assignable_v<acquired_lock>);
static_assert(std::is_nothrow_move_constructible_v<acquired_lock> &&
              std::is_nothrow_move_assignable_v<acquired_lock>);

TEST_CASE("acquired_lock: it says what was granted", "[lease]")
{
    lease_bench b;
    std::string metadata = "host 7";
    acquired_lock l = b.hold("k", {.ttl = 10s, .metadata = metadata});
    metadata = "gone";
    CHECK(l.key() == "k");
    CHECK(l.metadata() == "host 7");
    CHECK(l.token() == b.store.holder("k"));
    CHECK(l.token().size() == 32);
    CHECK(l.token().find_first_not_of("0123456789abcdef") == std::string::npos);
    REQUIRE(l.fence());
    CHECK_FALSE(l.auto_renew());
    CHECK(l.is_held());
    CHECK_FALSE(l.lost_token().stop_requested());
    CHECK(l.lost_token().stop_possible());

    acquired_lock renewed = b.hold("other", {.renew = true});
    CHECK(renewed.auto_renew());
    CHECK(renewed.fence().value() > l.fence().value());
}

TEST_CASE("acquired_lock: belief ends at the ttl less the drift, whatever has run", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    const auto limit = 1s - 10ms - 2ms;
    CHECK(l.valid_until() - b.loop.now() == limit);
    CHECK(l.remaining() == limit);
    const auto wall = l.expires_at() - std::chrono::system_clock::now();
    CHECK(wall > limit - 5s);
    CHECK(wall < limit + 1ms);

    b.loop.advance(limit - 1ns);
    CHECK(l.is_held());
    CHECK(l.remaining() == 1ns);
    b.loop.advance(1ns);
    CHECK_FALSE(l.is_held());
    CHECK(l.remaining() == 0ns);
    CHECK_FALSE(l.lost_token().stop_requested());
    b.loop.run_ready();
    CHECK(l.lost_token().stop_requested());
    CHECK(b.log.names() == "acquire lost");
}

TEST_CASE("acquired_lock: belief counts from before the request was sent", "[lease]")
{
    lease_bench b;
    b.store.next(operation::acquire, course::slow(0ms, 300ms));
    auto l = b.ask(b.locks.acquire("k", {.ttl = 1s}));
    b.pass();
    b.pass(300ms);
    REQUIRE(l.state() == "done");
    CHECK(l.value().remaining() == 1s - 12ms - 300ms);
}

TEST_CASE("acquired_lock: every acquisition has a token of its own", "[lease]")
{
    lease_bench b;
    std::set<std::string> tokens;
    for (int i = 0; i < 1000; ++i)
        tokens.insert(b.hold("k").token());
    CHECK(tokens.size() == 1000);
}

TEST_CASE("acquired_lock: fences of a key rise over all holders", "[lease]")
{
    lease_bench b;
    amux::distributed_lock others{b.store, b.loop};
    amux::fencing_token last = 0;
    for (int i = 0; i < 20; ++i) {
        auto l = b.ask(i % 2 == 0 ? b.locks.acquire("k") : others.acquire("k"));
        b.pass();
        REQUIRE(l.state() == "done");
        CHECK(l.value().fence().value() > last);
        last = l.value().fence().value();
        l.drop();
        b.pass();
    }
}

TEST_CASE("acquired_lock: a move carries the lease along", "[lease]")
{
    lease_bench b;
    acquired_lock first = b.hold("k");
    acquired_lock second{std::move(first)};
    CHECK_FALSE(first.is_held()); // NOLINT(bugprone-use-after-move)
    CHECK(second.is_held());
    b.pass();
    CHECK(b.store.holder("k") == second.token());

    SECTION("to another one, which lets go of its own")
    {
        acquired_lock third = b.hold("l");
        third = std::move(second);
        b.pass();
        CHECK(third.key() == "k");
        CHECK(b.store.holder("k"));
        CHECK_FALSE(b.store.holder("l"));
        CHECK(b.log.names() == "acquire acquire release");
    }
    SECTION("to itself")
    {
        acquired_lock& same = second;
        second = std::move(same);
        CHECK(second.is_held());
    }
}

TEST_CASE("acquired_lock: its destruction releases it", "[lease]")
{
    lease_bench b;
    {
        acquired_lock l = b.hold("k");
    }
    CHECK_FALSE(b.store.holder("k")); // sent by the destructor itself
    CHECK(b.log.names() == "acquire");
    b.pass();
    CHECK(b.log.names() == "acquire release");
    CHECK(b.log.last("release").reason == end_reason::released);
}

TEST_CASE("acquired_lock: release drops belief and sends the request at the call", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k");
    auto call = l.release();
    CHECK_FALSE(l.is_held());
    CHECK_FALSE(b.store.holder("k"));
    auto answer = b.ask(std::move(call));
    b.pass();
    CHECK(answer.value());
    CHECK(b.log.names() == "acquire release");
    CHECK_FALSE(l.lost_token().stop_requested());
    CHECK(l.key() == "k"); // what it was stays readable
}

TEST_CASE("acquired_lock: releases in flight share an answer, later ones give false", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k");
    b.store.next(operation::release, course::late(20ms));
    auto first = b.ask(l.release());
    b.pass();
    auto second = b.ask(l.release());
    b.pass(10ms);
    auto third = b.ask(l.release());
    b.pass();
    CHECK(first.state() == "waits");
    CHECK(third.state() == "waits");
    b.pass(10ms);
    CHECK(first.value());
    CHECK(second.value());
    CHECK(third.value());
    auto later = b.ask(l.release());
    b.pass();
    CHECK_FALSE(later.value());
    CHECK(b.count(operation::release) == 1);
    CHECK(b.log.names() == "acquire release");
}

TEST_CASE("acquired_lock: a release that the store refuses is a loss", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k");
    b.store.usurp("k", "stranger", 1s);
    auto end = b.ask(l.ended());
    auto answer = b.ask(l.release());
    b.pass();
    CHECK_FALSE(answer.value());
    CHECK(end.value().reason == end_reason::expired);
    CHECK(b.log.names() == "acquire lost");
    CHECK(b.log.last("lost").reason == end_reason::expired);
    CHECK(l.lost_token().stop_requested());
    CHECK(b.store.holder("k") == "stranger");
    b.pass_slowly(100ms);
    CHECK(b.count(operation::release) == 1);
}

TEST_CASE("acquired_lock: a release in trouble throws, and goes on in the background", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.metadata = "m"});
    b.store.next(operation::release, course::fails(amux::backend_error_kind::not_applied));
    b.store.next(operation::release, course::fails(amux::backend_error_kind::not_applied));
    auto end = b.ask(l.ended());
    auto answer = b.ask(l.release());
    auto shared = b.ask(l.release());
    b.pass();
    CHECK(answer.state() == "trouble");
    CHECK(shared.state() == "trouble");
    CHECK_FALSE(l.is_held());
    CHECK(end.value().reason == end_reason::released);
    CHECK(support::error_name(end.value().cause) == "trouble");
    CHECK(b.store.holder("k"));
    b.pass_slowly(1s);
    CHECK_FALSE(b.store.holder("k"));
    CHECK(b.count(operation::release) == 3);
    CHECK(b.log.count("release") == 1);
    CHECK(b.log.count("lost") == 0);
    CHECK(b.log.count("error") == 2);
    for (const auto& told : b.log.told)
        CHECK(told.event.metadata == "m");
}

TEST_CASE("acquired_lock: the background release ends with the lease", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    b.store.always(operation::release, course::fails(amux::backend_error_kind::indeterminate));
    auto answer = b.ask(l.release());
    b.pass_slowly(1500ms, 10ms);
    const auto tries = b.count(operation::release);
    CHECK(tries > 3);
    CHECK(tries < 10);
    b.pass_slowly(10s, 100ms);
    CHECK(b.count(operation::release) == tries);
}

TEST_CASE("acquired_lock: any number of coroutines wait for its end", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    std::vector<asked<amux::lock_end>> waiting;
    for (int i = 0; i < 5; ++i)
        waiting.push_back(b.ask(l.ended()));
    b.pass();
    for (auto& w : waiting)
        CHECK(w.state() == "waits");
    const auto before = std::chrono::system_clock::now();
    b.pass(1s);
    for (auto& w : waiting) {
        CHECK(w.value().reason == end_reason::expired);
        CHECK(w.value().at >= before);
        CHECK(w.value().at <= std::chrono::system_clock::now());
        CHECK(w.value().cause == nullptr);
    }
    auto late = b.ask(l.ended());
    b.pass();
    CHECK(late.value().reason == end_reason::expired);
}

TEST_CASE("acquired_lock: who waits for the end is told when the handle is destroyed", "[lease]")
{
    lease_bench b;
    std::optional<acquired_lock> l{b.hold("k")};
    auto end = b.ask(l->ended());
    b.pass();
    l.reset();
    b.pass();
    CHECK(end.value().reason == end_reason::released);
}

TEST_CASE("acquired_lock: extend lets the ttl start anew", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    b.pass(500ms);
    auto same = b.ask(l.extend());
    b.pass();
    CHECK(same.value() == l.valid_until());
    CHECK(l.remaining() == 1s - 12ms);
    CHECK(b.log.names() == "acquire renew");
    CHECK(b.log.last("renew").ttl == 1s);

    auto longer = b.ask(l.extend(10s));
    b.pass();
    CHECK(longer.value() == b.loop.now() + 10s - 102ms);
    CHECK(b.log.last("renew").ttl == 10s);

    auto shorter = b.ask(l.extend(100ms));
    b.pass();
    CHECK(shorter.value() == b.loop.now() + 100ms - 3ms);
    b.pass(97ms);
    CHECK_FALSE(l.is_held());
    CHECK(b.log.names() == "acquire renew renew renew lost");
}

TEST_CASE("acquired_lock: the ttl of an extend is what the next one has by default", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    auto longer = b.ask(l.extend(5s));
    b.pass(10ms);
    auto same = b.ask(l.extend());
    b.pass();
    CHECK(l.remaining() == 5s - 52ms);
}

TEST_CASE("acquired_lock: extend refuses a bad ttl before anything is sent", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k");
    const auto bad =
        GENERATE(0ms, -1ms, 9ms, std::chrono::milliseconds{366 * 24h} + 1ms,
                 (std::chrono::milliseconds::max)(), (std::chrono::milliseconds::min)());
    auto call = b.ask(l.extend(bad));
    b.pass();
    CHECK(call.state() == "invalid");
    CHECK(call.message().find("key 'k'") != std::string::npos);
    CHECK(b.count(operation::extend) == 0);
    CHECK(l.is_held());
}

TEST_CASE("acquired_lock: extend of a lease that is over throws its reason", "[lease]")
{
    lease_bench b;
    std::stop_source stop;
    acquired_lock l = b.hold("k", {.ttl = 1s}, stop.get_token());
    auto expected = end_reason::expired;
    SECTION("expired, and the loop knows")
    {
        b.pass(1s);
    }
    SECTION("expired, and the loop does not know yet")
    {
        b.loop.advance(1s);
    }
    SECTION("released")
    {
        auto answer = b.ask(l.release());
        b.pass();
        expected = end_reason::released;
    }
    SECTION("about to be released")
    {
        b.store.next(operation::release, course::late(1ms));
        auto answer = l.release();
        expected = end_reason::released;
    }
    SECTION("aborted")
    {
        stop.request_stop();
        b.pass();
        expected = end_reason::aborted;
    }
    auto call = b.ask(l.extend());
    b.pass();
    REQUIRE(call.state() == "ended");
    try {
        std::rethrow_exception(call.error());
    } catch (const amux::lock_ended_error& e) {
        CHECK(e.reason() == expected);
        CHECK(e.key() == "k");
        CHECK(std::string{e.what()}.find(to_string(expected)) != std::string::npos);
    }
    CHECK(b.count(operation::extend) == 0);
    b.pass(1ms);
}

TEST_CASE("acquired_lock: an extend that meets a release in its flight does not say it worked",
          "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    b.store.next(operation::extend, course::late(10ms));
    b.store.next(operation::release, course::late(20ms));
    auto extended = b.ask(l.extend());
    b.pass(5ms);
    auto released = b.ask(l.release());
    b.pass(5ms);
    b.pass(15ms);
    CHECK(extended.state() == "ended");
    CHECK(released.value());
    CHECK(b.log.names() == "acquire release");
}

TEST_CASE("acquired_lock: several extends at once are sent one after the other", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s});
    b.store.always(operation::extend, course::late(10ms));
    auto first = b.ask(l.extend(2s));
    auto second = b.ask(l.extend(3s));
    auto third = b.ask(l.extend(4s));
    b.pass();
    CHECK(b.count(operation::extend) == 1);
    b.pass_slowly(30ms);
    CHECK(first.state() == "done");
    CHECK(second.state() == "done");
    CHECK(third.value() == l.valid_until());
    CHECK(l.remaining() == 4s - 42ms - 10ms);
}

TEST_CASE("acquired_lock: verify asks the store", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k");
    const acquired_lock& reader = l;
    auto held = b.ask(reader.verify());
    b.pass();
    CHECK(held.value());
    CHECK(b.count(operation::get) == 1);

    SECTION("trouble is no answer")
    {
        b.store.next(operation::get, course::fails(amux::backend_error_kind::indeterminate));
        auto unknown = b.ask(l.verify());
        b.pass();
        CHECK(unknown.state() == "trouble");
        CHECK(l.is_held());
    }
    SECTION("a stranger has it: a certain loss")
    {
        b.store.usurp("k", "stranger", 1s);
        auto lost = b.ask(l.verify());
        b.pass();
        CHECK_FALSE(lost.value());
        CHECK_FALSE(l.is_held());
        CHECK(l.lost_token().stop_requested());
        CHECK(b.log.names() == "acquire lost");
    }
    SECTION("over already: no question")
    {
        auto answer = b.ask(l.release());
        b.pass();
        auto lost = b.ask(l.verify());
        b.pass();
        CHECK_FALSE(lost.value());
        CHECK(b.count(operation::get) == 1);
    }
    SECTION("given back while the question is asked")
    {
        b.store.next(operation::get, course::late(5ms));
        b.store.next(operation::release, course::late(10ms));
        auto doubt = b.ask(l.verify());
        b.pass();
        auto answer = b.ask(l.release());
        b.pass(5ms);
        CHECK_FALSE(doubt.value());
        b.pass(5ms);
    }
}

TEST_CASE("acquired_lock: lost_token stops by the margin before the end, once", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s, .stop_margin = 300ms});
    int stops = 0;
    const std::stop_callback count{l.lost_token(), [&] { ++stops; }};
    b.pass(1s - 12ms - 300ms - 1ns);
    CHECK(stops == 0);
    b.pass(1ns);
    CHECK(stops == 1);
    CHECK(l.is_held());
    CHECK(b.log.names() == "acquire");
    b.pass(300ms);
    CHECK(stops == 1);
    CHECK(b.log.names() == "acquire lost");
}

TEST_CASE("acquired_lock: the margin moves with every renewal", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s, .renew = true, .stop_margin = 300ms});
    b.pass_slowly(5s);
    CHECK_FALSE(l.lost_token().stop_requested());
    b.store.always(operation::extend, course::is_silent());
    while (!l.lost_token().stop_requested())
        b.pass(1ms);
    CHECK(l.remaining() <= 300ms);
    CHECK(l.remaining() > 298ms);
}

TEST_CASE("acquired_lock: a margin that begins before the first renewal does not bring it forward",
          "[lease]")
{
    lease_bench b;
    acquired_lock l =
        b.hold("k", {.ttl = 1s, .renew = true, .renew_interval = 300ms, .stop_margin = 900ms});
    b.pass_slowly(150ms, 1ms);
    CHECK(l.lost_token().stop_requested());
    CHECK(b.count(operation::extend) == 0);
    b.pass_slowly(200ms, 1ms);
    CHECK(b.count(operation::extend) == 1);
}

TEST_CASE("acquired_lock: an extend whose answer comes after what it has given is over is a loss",
          "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 10s});
    b.store.next(operation::extend, course::held());
    auto call = b.ask(l.extend(1s));
    b.pass();
    b.loop.advance(2s); // the loop stands still meanwhile
    b.store.answer(b.store.oldest_in_flight(operation::extend));
    b.pass();
    CHECK(call.state() == "ended");
    CHECK_FALSE(l.is_held());
    CHECK(b.log.names() == "acquire lost");
}

TEST_CASE("acquired_lock: a margin as long as the lease, or longer, stops at once", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s,
                                   .stop_margin = GENERATE(std::chrono::milliseconds{1s}, 10min,
                                                           std::chrono::milliseconds::max())});
    b.pass();
    CHECK(l.lost_token().stop_requested());
    CHECK(l.is_held());
}

TEST_CASE("acquired_lock: a stop token ends it as aborted", "[lease]")
{
    lease_bench b;
    std::stop_source stop;
    acquired_lock l = b.hold("k", {.ttl = 1s, .renew = true}, stop.get_token());
    auto end = b.ask(l.ended());
    b.pass();
    stop.request_stop();
    b.pass();
    CHECK_FALSE(l.is_held());
    CHECK(l.lost_token().stop_requested());
    CHECK(end.value().reason == end_reason::aborted);
    CHECK(b.log.names() == "acquire lost");
    CHECK(b.log.last("lost").reason == end_reason::aborted);
    CHECK_FALSE(b.store.holder("k"));
    auto answer = b.ask(l.release());
    b.pass();
    CHECK_FALSE(answer.value());
    b.pass_slowly(2s, 10ms);
    CHECK(b.count(operation::extend) == 0);
}

TEST_CASE("acquired_lock: a stop after the end changes nothing", "[lease]")
{
    lease_bench b;
    std::stop_source stop;
    acquired_lock l = b.hold("k", {}, stop.get_token());
    auto answer = b.ask(l.release());
    b.pass();
    stop.request_stop();
    b.pass();
    CHECK(b.log.names() == "acquire release");
    CHECK_FALSE(l.lost_token().stop_requested());
}

TEST_CASE("acquired_lock: max_hold ends the renewal, not the lease", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 1s, .renew = true, .max_hold = 3s});
    b.pass_slowly(3s);
    CHECK(l.is_held());
    CHECK(b.log.count("renew") >= 6);
    const auto end = l.valid_until();
    b.pass_slowly(1s);
    CHECK(l.valid_until() == end);
    CHECK_FALSE(l.is_held());
    CHECK(b.log.count("lost") == 1);
}

TEST_CASE("acquired_lock: no duration is too long to be counted", "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = std::chrono::milliseconds{366 * 24h},
                                   .max_wait = amux::forever,
                                   .renew = true,
                                   .renew_interval = amux::forever,
                                   .max_hold = amux::forever});
    b.pass();
    CHECK(l.is_held());
    b.pass(180 * 24h);
    CHECK(l.is_held());
    b.pass(10 * 24h);
    CHECK(l.is_held());
    CHECK(b.log.names() == "acquire renew");
}

TEST_CASE("acquired_lock: a bit copy says it holds nothing and does nothing", "[lease][death]")
{
    lease_bench b;
    acquired_lock l = b.hold("k");
    alignas(acquired_lock) unsigned char bytes[sizeof(acquired_lock)];
    std::memcpy(bytes, static_cast<const void*>(&l), sizeof bytes);
    auto& copy = *reinterpret_cast<acquired_lock*>(bytes);
    CHECK_FALSE(copy.is_held());
    CHECK(l.is_held());
    const char* const advice = "bind the result of co_await to a variable of its own";
    const auto says = [&](const std::string& text) {
        return text.find(advice) != std::string::npos && text.find("survived") == text.npos;
    };
    CHECK(says(support::death_of([&] { copy.~acquired_lock(); })));
    CHECK(says(support::death_of([&] { (void)copy.token(); })));
    CHECK(says(support::death_of([&] { (void)copy.release(); })));
    CHECK(says(support::death_of([&] { (void)copy.extend(); })));
    CHECK(says(support::death_of([&] { (void)copy.ended(); })));
    CHECK(says(support::death_of([&] { (void)copy.lost_token(); })));
    CHECK(says(support::death_of([&] { const acquired_lock moved{std::move(copy)}; })));
    CHECK(says(support::death_of([&] { l = std::move(copy); })));
    CHECK(says(support::death_of([&] { copy = std::move(l); })));
}

TEST_CASE("acquired_lock: use after a move ends the program, with a message", "[lease][death]")
{
    lease_bench b;
    acquired_lock l = b.hold("k");
    const acquired_lock taken = std::move(l);
    const std::string text = support::death_of([&] {
        (void)l.token(); // NOLINT(bugprone-use-after-move)
    });
    CHECK(text.find("after it was moved from") != std::string::npos);
}

TEST_CASE("acquired_lock: what is asked after its time is too late, whatever the loop knows",
          "[lease]")
{
    lease_bench b;
    std::stop_source stop;
    std::optional<acquired_lock> l{b.hold("k", {.ttl = 1s}, stop.get_token())};
    auto end = b.ask(l->ended());
    b.pass();
    b.loop.advance(989ms); // the store still has it, for what clocks may differ by
    REQUIRE(b.store.holder("k"));
    std::optional<asked<bool>> answer;
    SECTION("a release")
    {
        answer.emplace(b.ask(l->release()));
        CHECK(b.count(operation::release) == 0);
    }
    SECTION("the destructor")
    {
        l.reset();
    }
    SECTION("a stop")
    {
        stop.request_stop();
    }
    b.pass();
    if (answer)
        CHECK_FALSE(answer->value());
    CHECK(end.value().reason == end_reason::expired);
    CHECK(b.log.names() == "acquire lost");
    CHECK(b.count(operation::release) == 1);
    CHECK_FALSE(b.store.holder("k"));
}

TEST_CASE("acquired_lock: a shorter ttl in flight is believed, and its end is told in time",
          "[lease]")
{
    lease_bench b;
    acquired_lock l = b.hold("k", {.ttl = 10s});
    b.store.next(operation::extend, course::held());
    auto call = b.ask(l.extend(1s));
    b.pass();
    CHECK(l.remaining() == 1s - 12ms);
    b.pass(1s - 12ms);
    CHECK_FALSE(l.is_held());
    CHECK(b.log.names() == "acquire lost");
    CHECK(call.state() == "ended");
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a lease of many renewals may die of what happened long ago, or stay at too few nodes until the next one.
#include "support/redlock_world.hpp"

#include <amux/redlock.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <chrono>
#include <cstddef>
#include <string>

using namespace std::chrono_literals;
using amux::backend_error_kind;
using amux::testing::course;
using amux::testing::operation;
using Catch::Matchers::ContainsSubstring;
using support::redlock_world;

namespace {

void bring_down(redlock_world& w, std::size_t node)
{
    w.stores[node].always(operation::extend, course::fails(backend_error_kind::not_applied));
}

} // namespace

TEST_CASE("redlock: doubt about a shorter time to live ends after a while", "[redlock]")
{
    redlock_world w;
    w.grant("a");
    w.stores[0].next(operation::extend, course::loses_reply());
    auto shorter = w.extend("a", 1s);
    w.pass(500ms);
    auto renewed = w.extend("a");
    w.pass(5s);
    bring_down(w, 1);
    auto early = w.extend("a");
    w.pass(300ms);
    CHECK(shorter.value());
    REQUIRE(early.state() == "trouble");
    CHECK_THAT(early.message(), ContainsSubstring("node 1: yes, but a shorter time to live"));
    w.stores[1].always(operation::extend, course::at_once());
    for (int n = 0; n != 7; ++n) { // renewed all the time, so that the trace stays
        auto renewal = w.extend("a");
        w.pass(5s);
        CHECK(renewal.value());
    }
    bring_down(w, 1);
    auto later = w.extend("a");
    w.pass(300ms);
    REQUIRE(later.state() == "done");
    CHECK(later.value());
}

TEST_CASE("redlock: doubt about a release ends after a while", "[redlock]")
{
    redlock_world w;
    auto first = w.acquire("a", 1s);
    w.loop.run_ready();
    w.stores[0].next(operation::release, course::fails(backend_error_kind::indeterminate));
    auto r = w.release("a");
    w.pass(100ms);
    for (int n = 0; n != 100; ++n) {
        auto a = w.acquire("a", 1s);
        w.pass(300ms);
    }
    w.stores[1].always(operation::acquire, course::fails(backend_error_kind::not_applied));
    auto last = w.acquire("a", 1s);
    w.pass(300ms);
    CHECK(last.state() == "done");
}

TEST_CASE("redlock: a renewal asks again where somebody else has the key for a moment",
          "[redlock][wipes]")
{
    redlock_world w;
    w.grant("a");
    w.stores[0].usurp(w.key, "other", 1min);
    if (GENERATE(false, true)) // it is not decided yet when the other one refuses
        w.stores[1].next(operation::extend, course::late(50ms));
    auto e = w.extend("a");
    w.pass(60ms);
    CHECK(e.value());
    CHECK(w.held_by("a") == 2);
    w.stores[0].drop(w.key);
    w.pass(100ms);
    CHECK(w.held_by("a") == 3);
}

TEST_CASE("redlock: what a shorter extend may have ended is not put back when a longer one follows",
          "[redlock][wipes]")
{
    redlock_world w;
    w.grant("a");
    bring_down(w, 1);
    bring_down(w, 2);
    auto shorter = w.extend("a", 300ms);
    w.pass(500ms);
    CHECK(shorter.state() == "trouble"); // carried out at node 1, and over
    for (std::size_t n = 1; n != 3; ++n)
        w.stores[n].always(operation::extend, course::at_once());
    auto longer = w.extend("a");
    w.loop.run_ready();
    CHECK(longer.value());
    CHECK(!w.stores[0].holder(w.key));
}

TEST_CASE("redlock: a lease that was granted elsewhere is extended, and put back nowhere",
          "[redlock][wipes]")
{
    redlock_world w;
    for (auto& s : w.stores)
        s.usurp(w.key, "a", 10s);
    auto e = w.extend("a");
    w.loop.run_ready();
    CHECK(e.value());
    w.stores[2].drop(w.key);
    auto again = w.extend("a");
    w.loop.run_ready();
    CHECK(again.value());
    CHECK(w.calls(operation::acquire) == 0);
}

TEST_CASE("redlock: a lease that was granted elsewhere and is lost is freed where it may be left",
          "[redlock]")
{
    redlock_world w;
    w.stores[0].usurp(w.key, "a", 10s);
    w.stores[0].next(operation::extend, course::fails(backend_error_kind::not_applied, 10ms));
    w.stores[2].next(operation::extend, course::late(20ms));
    auto e = w.extend("a");
    w.pass(100ms);
    REQUIRE(e.state() == "done");
    CHECK(!e.value());
    CHECK(w.held_by("a") == 0);
    CHECK(w.calls(operation::release) == 1);
}

TEST_CASE("redlock: an extend that is asked before its grant is known takes nothing from it",
          "[redlock]")
{
    redlock_world w;
    for (auto& s : w.stores)
        s.next(operation::acquire, course::late(50ms));
    auto a = w.acquire("a");
    auto e = w.extend("a");
    w.pass(100ms);
    REQUIRE(a.state() == "done");
    CHECK(a.value().acquired);
    CHECK(w.held_by("a") == 3);
}

TEST_CASE("redlock: who has released a lease asks nowhere for it again", "[redlock][wipes]")
{
    redlock_world w;
    w.grant("a");
    w.stores[0].usurp(w.key, "other", 1min);
    auto e = w.extend("a");
    w.loop.run_ready();
    auto r = w.release("a");
    w.loop.run_ready();
    w.stores[0].drop(w.key);
    const auto asked = w.calls(operation::acquire);
    w.pass(5s);
    CHECK(w.calls(operation::acquire) == asked);
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: an extend does not count what was put back when nobody believed",
          "[redlock][wipes]")
{
    // Meanwhile another process may have had the key, and given it back.
    redlock_world w;
    w.grant("a", 1s); // believed for 988 ms
    w.stores[0].drop(w.key);
    bring_down(w, 2);
    const bool unheard = GENERATE(false, true);
    w.stores[0].next(operation::acquire, course::slow(150ms, unheard ? 300ms : 0ms));
    w.pass(900ms);
    auto first = w.extend("a", 1s);
    w.pass(60ms);
    w.stores[0].next(operation::extend, course::slow(190ms, 0ms));
    auto second = w.extend("a", 1s);
    w.pass(300ms);
    CHECK(first.state() == "trouble");
    REQUIRE(second.state() == "trouble");
    CHECK_THAT(second.message(), ContainsSubstring("node 1: the lease was missing there"));
    w.pass(500ms);
    CHECK(w.stores[0].holder(w.key) != "a");
}

TEST_CASE(
    "redlock: a shorter extend that ends later takes nothing from what a later one has promised",
    "[redlock][wipes]")
{
    redlock_world w;
    w.grant("a");
    w.stores[1].next(operation::extend, course::fails(backend_error_kind::not_applied));
    w.stores[2].next(operation::extend, course::late(100ms));
    auto shorter = w.extend("a", 300ms);
    auto longer = w.extend("a", 10s);
    w.pass(500ms);
    CHECK(shorter.value());
    CHECK(longer.value());
    w.stores[0].drop(w.key);
    auto e = w.extend("a", 10s);
    w.pass(10ms);
    CHECK(e.value());
    CHECK(w.held_by("a") == 3); // it was believed, so it is put back
}

TEST_CASE("redlock: what is put back has the metadata that the nodes have", "[redlock][wipes]")
{
    redlock_world w;
    const auto acquire = [&w](const char* metadata) {
        auto call = [](redlock_world& in, const char* text) -> amux::task<bool> {
            const auto result = co_await in.lock->acquire(in.key, "a", 10s, text);
            co_return result.acquired;
        };
        support::asked<bool> a{w.loop, call(w, metadata)};
        w.loop.run_ready();
        return a.value();
    };
    REQUIRE(acquire("first"));
    REQUIRE(acquire("second")); // goes on with what is there
    w.pass(9'900ms); // believed no more, and there yet
    auto goes_on = w.extend("a");
    w.loop.run_ready();
    CHECK(goes_on.value());
    w.stores[0].drop(w.key);
    auto e = w.extend("a");
    w.loop.run_ready();
    CHECK(e.value());
    w.stores[1].drop(w.key);
    w.stores[2].drop(w.key);
    const auto info = [](redlock_world& in) -> amux::task<std::string> {
        const auto lease = co_await in.stores[0].inspect(in.key);
        co_return lease ? lease->metadata : "none";
    };
    support::asked<std::string> seen{w.loop, info(w)};
    w.loop.run_ready();
    CHECK(seen.value() == "first");
}

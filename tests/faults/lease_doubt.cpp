// SPDX-License-Identifier: BSL-1.0
// Without this file a request whose answer was lost may end a lease, when it is carried out at last, under its holder.
#include "support/lease_bench.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>

using namespace std::chrono_literals;
using amux::acquired_lock;
using amux::backend_error_kind;
using amux::testing::course;
using amux::testing::operation;
using support::lease_bench;

namespace {

// At every moment of `d`: who believes has it.
void expect_well_founded(lease_bench& b, const acquired_lock& l, std::chrono::milliseconds d)
{
    for (; d > 0ms; d -= 1ms) {
        b.pass(1ms);
        if (l.is_held() && b.store.holder("k") != l.token())
            FAIL("believes at " << b.now().count() << " ms in what the store does not know");
    }
}

} // namespace

TEST_CASE("lease doubt: a shorter ttl may be set after a longer one was granted", "[lease][doubt]")
{
    lease_bench b;
    const bool renew = GENERATE(false, true);
    acquired_lock l = b.hold("k", {.ttl = 1s, .renew = renew});
    b.store.next(operation::extend, course::acts_late(300ms, 10ms));
    auto shorter = b.ask(l.extend(100ms));
    b.pass();
    b.pass_slowly(10ms);
    CHECK(shorter.state() == "trouble");
    auto longer = b.ask(l.extend(1s));
    b.pass();
    CHECK(longer.state() == "done");
    CHECK(longer.value() == l.valid_until());
    CHECK(l.remaining() == 97ms); // as if it had been set now
    expect_well_founded(b, l, 1s);
    CHECK(l.is_held() == renew);
}

TEST_CASE("lease doubt: the first try of an acquire may come behind an extend", "[lease][doubt]")
{
    lease_bench b;
    b.store.next(operation::acquire, course::acts_late(500ms, 10ms));
    auto asked = b.ask(b.locks.acquire("k", {.ttl = 400ms, .poll_interval = 20ms}));
    b.pass();
    b.pass_slowly(50ms);
    acquired_lock& l = asked.value();
    auto longer = b.ask(l.extend(10s));
    b.pass();
    CHECK(longer.state() == "done");
    CHECK(l.remaining() == 394ms);
    expect_well_founded(b, l, 2s);
    CHECK_FALSE(l.is_held());
}

TEST_CASE("lease doubt: what was not carried out, for sure, leaves none", "[lease][doubt]")
{
    lease_bench b;
    b.store.next(operation::acquire, course::fails(backend_error_kind::not_applied));
    auto asked = b.ask(b.locks.acquire("k", {.ttl = 400ms, .poll_interval = 20ms}));
    b.pass();
    b.pass_slowly(50ms);
    acquired_lock& l = asked.value();
    b.store.next(operation::extend, course::fails(backend_error_kind::not_applied));
    auto shorter = b.ask(l.extend(100ms));
    b.pass();
    CHECK(shorter.state() == "trouble");
    auto longer = b.ask(l.extend(10s));
    b.pass();
    CHECK(l.remaining() == 10s - 102ms);
}

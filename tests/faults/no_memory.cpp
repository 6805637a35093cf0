// SPDX-License-Identifier: BSL-1.0
// Without this file a request that finds no memory may leave a lock, a key or a waiter behind.
#include "support/allocation_counter.hpp"
#include "support/growing_policy.hpp"
#include "support/request.hpp"

#include <amux/asyncmux.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <cstddef>
#include <new>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

using amux::asyncmux;
using support::request;

namespace {

const std::string long_key = "a key that is too long for the buffer inside of a string";

/// Asks, in one of six forms, when the `nth` piece of memory from then on is not to be had. True when that was asked for.
bool finds_none(asyncmux<>& mux, int form, std::stop_token stop, std::size_t nth)
{
    const std::vector<std::string> keys{long_key, long_key + '2', long_key + '3'};
    support::requests<asyncmux<>> asks;
    auto one = mux.lock(long_key, stop);
    auto several = mux.lock_all(keys, stop);
    auto whole = mux.lock(stop);
    const support::no_memory none{nth};
    try {
        if (form < 3) {
            const asyncmux<>::guard g = form == 0   ? mux.try_lock(long_key)
                                        : form == 1 ? mux.try_lock_all(keys)
                                                    : mux.try_lock();
            return none.was_missed(); // and went on without
        }
        if (form == 3)
            asks.emplace_back(std::move(one));
        else if (form == 4)
            asks.emplace_back(std::move(several));
        else
            asks.emplace_back(std::move(whole));
    } catch (const std::bad_alloc&) {
        return true;
    }
    if (none.was_missed() && asks.back().state() != "threw")
        CHECK((asks.back().state() == "owns" || asks.back().state() == "waits"));
    return none.was_missed();
}

} // namespace

TEST_CASE("asyncmux: a request that finds no memory leaves everything as it was",
          "[asyncmux][exceptions][memory]")
{
    const int form = GENERATE(0, 1, 2, 3, 4, 5);
    const bool held = GENERATE(false, true);
    const bool detects = GENERATE(false, true); // then there is no attempt before the wait
    const std::string holders_key = held ? long_key : long_key + '9';
    int failures = 0;
    for (std::size_t nth = 1; nth != 12; ++nth) {
        asyncmux<> mux{{.prevent_reentrancy = detects,
                        .max_waiters = 1}}; // a new one: nothing is kept from the time before
        request holder{mux.lock(holders_key)};
        std::stop_source stop;
        failures += finds_none(mux, form, stop.get_token(), nth) ? 1 : 0;
        stop.request_stop(); // no callback was left behind
        REQUIRE(mux.tracked_keys() == 1);
        REQUIRE(mux.snapshot().keys.at(0).holders == 1);
        REQUIRE(mux.try_lock_all(long_key + '2', long_key + '3'));
        request waiter{mux.lock(holders_key)}; // the limit was not touched
        REQUIRE(waiter.state() == "waits");
    }
    if (support::allocations() != 0) // they are counted, and so can fail, in this build
        CHECK((failures > 0 || (form == 0 && held)));
}

TEST_CASE("asyncmux: a mux that finds no memory to be divided goes on in one part",
          "[asyncmux][memory]")
{
    if (support::allocations() == 0)
        SKIP("there is always memory in this build");
    asyncmux<int, walks::growing<4>> mux;
    const auto held = mux.try_lock(1);
    const int mutexes = walks::noticed::mutexes;
    walks::noticed::collisions = 1;
    {
        const support::no_memory none{1};
        CHECK_FALSE(mux.try_lock(1));
        CHECK(none.was_missed());
    }
    CHECK(walks::noticed::mutexes == mutexes);
    walks::noticed::collisions = 1;
    CHECK_FALSE(mux.try_lock(1));
    CHECK(walks::noticed::mutexes == mutexes + 4);
}

TEST_CASE("asyncmux: a table that finds no memory to grow goes on with longer chains",
          "[asyncmux][memory]")
{
    constexpr int count = 60; // as many entries as a thread keeps for the next mux, and a few less
    std::vector<asyncmux<int>::guard> guards;
    guards.reserve(count);
    const auto hold_all = [&guards](asyncmux<int>& mux) {
        for (int i = 0; i != count; ++i)
            guards.push_back(mux.try_lock(i));
    };
    {
        asyncmux<int> before;
        hold_all(before);
        guards.clear();
    }
    asyncmux<int> mux;
    {
        const support::no_memory none{1};
        hold_all(mux); // 60 keys in one bucket
    }
    CHECK(mux.tracked_keys() == count);
    for (int i = 0; i != count; ++i) {
        CHECK(guards.at(static_cast<std::size_t>(i)));
        CHECK_FALSE(mux.try_lock_shared(i));
    }
    guards.clear();
    CHECK(mux.tracked_keys() == 0);
    hold_all(mux); // now it grows
    CHECK(mux.tracked_keys() == count);
    guards.clear();
}

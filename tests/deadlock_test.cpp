// SPDX-License-Identifier: BSL-1.0
// Without this file coroutines that wait for each other hang without a word, and so does whoever looks for the reason.
#include "support/allocation_counter.hpp"
#include "support/request.hpp"

#include <amux/asyncmux.hpp>
#include <amux/deadlock_detector.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/spawn.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>
#include <amux/when_all.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <chrono>
#include <cstddef>
#include <new>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
using amux::asyncmux;
using amux::deadlock_detector;
using amux::deadlock_error;
using amux::lock_mode;
using amux::task;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
using support::asker;
using support::request;

namespace {

constexpr unsigned first_line = __LINE__ + 5;
// clang-format off
task<void> both(amux::manual_event_loop& loop, asyncmux<>& first, asyncmux<>& second,
                std::vector<deadlock_error>& errors)
{
    auto one = co_await first.lock("a");
    co_await loop.schedule();
    try {
        auto two = co_await second.lock("a"); // first_line + 3
    } catch (const deadlock_error& e) {
        errors.push_back(e);
    }
}
// clang-format on

/// Contexts, muxes, and who asks.
struct world {
    deadlock_detector detector;
    asyncmux<> a{{.name = "a", .deadlocks = &detector}};
    asyncmux<> b{{.deadlocks = &detector}};
    amux::context one;
    amux::context two;
    amux::context three;

    static asker by(const amux::context& who) { return {nullptr, &who}; }
    static asker by(const amux::context& who, amux::scheduler& where) { return {&where, &who}; }
};

bool is_refused(const auto& r)
{
    return r.state() == "threw" && r.message().find("amux: deadlock: ") == 0;
}

} // namespace

TEST_CASE("deadlock_detector: the request that closes a cycle over two muxes is told so",
          "[deadlock]")
{
    amux::manual_event_loop loop;
    deadlock_detector detector;
    asyncmux<> accounts{{.name = "accounts", .deadlocks = &detector}};
    asyncmux<> orders{{.name = "orders", .deadlocks = &detector}};
    std::vector<deadlock_error> errors;
    spawn(loop, both(loop, accounts, orders, errors));
    spawn(loop, both(loop, orders, accounts, errors));
    for (int frame = 0; frame != 3; ++frame)
        loop.run_ready();

    REQUIRE(errors.size() == 1); // and the other one has had both
    CHECK(accounts.tracked_keys() + orders.tracked_keys() == 0);
    const auto& cycle = errors[0].cycle();
    REQUIRE(cycle.size() == 2);
    CHECK(cycle[0].mux == "accounts");
    CHECK(cycle[1].mux == "orders");
    CHECK(cycle[0].context == cycle[1].other);
    CHECK(cycle[0].other == cycle[1].context);
    for (const amux::deadlock_step& s : cycle) {
        CHECK(s.lock == "'a'");
        CHECK(s.mode == lock_mode::exclusive);
        CHECK(s.holds);
        CHECK(s.where.line() == first_line + 3);
        CHECK(s.other_where.line() == first_line);
        CHECK_THAT(s.where.file_name(), EndsWith("deadlock_test.cpp"));
    }
    CHECK_THAT(errors[0].what(),
               StartsWith("amux: deadlock: context ") &&
                   ContainsSubstring(" asks for 'a' (exclusive, mux 'accounts') at ") &&
                   ContainsSubstring("; context ") &&
                   ContainsSubstring(" waits for 'a' (exclusive, mux 'orders') at ") &&
                   EndsWith("deadlock_test.cpp:" + std::to_string(first_line)));
}

TEST_CASE("deadlock_detector: who is refused leaves nothing behind, and can ask again",
          "[deadlock]")
{
    world w;
    request held{w.a.lock("k"), w.by(w.one)};
    request other{w.b.lock("k"), w.by(w.two)};
    request waits{w.a.lock("k"), w.by(w.two)};
    request refused{w.b.lock("k"), w.by(w.one)};
    REQUIRE(is_refused(refused));
    CHECK(w.b.snapshot().keys.at(0).waiters == 0);
    CHECK(w.b.snapshot().requests.size() == 1);
    held.unlock();
    CHECK(waits.state() == "owns");
    request again{w.b.lock("k"), w.by(w.one)};
    CHECK(again.state() == "waits");
    other.unlock();
    CHECK(again.state() == "owns");
}

TEST_CASE("deadlock_detector: who is refused takes no place of those that may wait", "[deadlock]")
{
    world w;
    asyncmux<> narrow{{.max_waiters = 1, .deadlocks = &w.detector}};
    request held{w.a.lock("k"), w.by(w.one)};
    request other{narrow.lock("k"), w.by(w.two)};
    request waits{w.a.lock("k"), w.by(w.two)};
    for (int i = 0; i != 2; ++i) {
        request refused{narrow.lock("k"), w.by(w.one)};
        CHECK(is_refused(refused));
    }
    request third{narrow.lock("k"), w.by(w.three)};
    CHECK(third.state() == "waits");
    request full{narrow.lock("k"), w.by(w.one)};
    CHECK(full.state() == "full"); // that comes first
    other.unlock();
}

TEST_CASE("deadlock_detector: a limit that never comes is none", "[deadlock]")
{
    world w;
    amux::manual_event_loop loop;
    request held{w.a.lock("k"), w.by(w.one)};
    request other{w.b.lock("k"), w.by(w.two)};
    request waits{w.a.try_lock_for("k", amux::clock::duration::max()), w.by(w.two, loop)};
    CHECK(waits.state() == "waits");
    request mine{w.b.lock("k"), w.by(w.one)};
    CHECK(is_refused(mine));
    waits.destroy();
}

TEST_CASE("deadlock_detector: who asks for what it holds is told so", "[deadlock]")
{
    world w;
    request held{w.a.lock_shared("k"), w.by(w.one)};
    request also{w.a.lock_shared("k"), w.by(w.one)};
    CHECK(also.state() == "owns"); // it does not wait, so it closes nothing
    request whole{w.a.lock(), w.by(w.one)};
    CHECK(is_refused(whole));
    CHECK_THAT(whole.message(),
               ContainsSubstring("asks for the whole mux (exclusive, mux 'a')") &&
                   ContainsSubstring("which context " + std::to_string(w.one.id()) + " holds"));
}

TEST_CASE("deadlock_detector: no key makes the cycle say what is not so", "[deadlock]")
{
    world w;
    request held{w.a.lock("k'\n"), w.by(w.one)};
    request self{w.a.lock("k'\n"), w.by(w.one)};
    REQUIRE(is_refused(self));
    CHECK_THAT(self.message(), ContainsSubstring(" asks for 'k\\'\\x0a' (exclusive, "));
    CHECK_THAT(self.message(), !ContainsSubstring("\n"));
}

TEST_CASE("deadlock_detector: a mux without a name has none in the cycle", "[deadlock]")
{
    world w;
    request held{w.b.lock("k"), w.by(w.one)};
    request self{w.b.lock("k"), w.by(w.one)};
    REQUIRE(is_refused(self));
    CHECK_THAT(self.message(), ContainsSubstring(" asks for 'k' (exclusive) at "));
}

TEST_CASE("deadlock_detector: with reentrancy prevented, that error comes first", "[deadlock]")
{
    world w;
    asyncmux<> both{{.prevent_reentrancy = true, .deadlocks = &w.detector}};
    request held{both.lock("k"), w.by(w.one)};
    request again{both.lock("k"), w.by(w.one)};
    CHECK(again.state() == "reentrant");
}

TEST_CASE("deadlock_detector: three wait in a circle, for several keys, one, and all", "[deadlock]")
{
    world w;
    request one{w.a.lock_all("k", "l"), w.by(w.one)};
    request two{w.b.lock("m"), w.by(w.two)};
    request three{w.b.lock_shared("n"), w.by(w.three)};
    request whole{w.b.lock(), w.by(w.one)}; // for two and three
    request one_key{w.a.lock_shared("l"), w.by(w.three)}; // for one
    CHECK(whole.state() == "waits");
    CHECK(is_refused(one_key));
    three.unlock();
    request behind{w.b.lock_shared("n"), w.by(w.three)}; // behind who waits for the whole mux
    CHECK(behind.state() == "waits");
    request closing{w.a.lock_all("x", "l", "k"), w.by(w.two)};
    CHECK(is_refused(closing));
    CHECK_THAT(closing.message(), ContainsSubstring("asks for 'x', 'l', 'k'"));
}

TEST_CASE("deadlock_detector: who has come for the whole mux later is in nobody's way",
          "[deadlock]")
{
    world w;
    const amux::context four;
    request by_one{w.a.lock("k"), w.by(w.one)};
    request by_three{w.a.lock("l"), w.by(w.three)};
    request by_two{w.b.lock("m"), w.by(w.two)};
    request ahead{w.a.lock("l"), w.by(w.two)}; // for three, who runs
    request whole{w.a.lock(), w.by(four)}; // for one, too
    request mine{w.b.lock("m"), w.by(w.one)}; // for two, who does not wait for four
    CHECK(mine.state() == "waits");
    mine.destroy();
}

TEST_CASE("deadlock_detector: of those in one line each is looked at", "[deadlock]")
{
    world w;
    const amux::context left{&w.two};
    const amux::context right{&w.two};
    const amux::context four;
    request by_one{w.a.lock("l"), w.by(w.one)};
    request by_two{w.b.lock("m"), w.by(w.two)};
    request by_three{w.a.lock("k"), w.by(w.three)};
    request first{w.a.lock("k"), w.by(left)}; // for three, who runs
    request between{w.a.lock_all("k", "l"), w.by(four)}; // for one, too
    request last{w.a.lock("k"), w.by(right)};
    request closing{w.b.lock("m"), w.by(w.one)}; // for two, who awaits whoever asks last
    CHECK(is_refused(closing));
}

TEST_CASE("deadlock_detector: who has a limit and the context that asks is in nobody's way",
          "[deadlock]")
{
    world w;
    amux::manual_event_loop loop;
    request by_three{w.a.lock("k"), w.by(w.three)};
    request by_one{w.b.lock("m"), w.by(w.one)};
    request behind_one{w.b.lock("m"), w.by(w.two)};
    request limited{w.a.try_lock_for("k", 10ms), w.by(w.one, loop)};
    request other{w.a.lock("k"), w.by(w.one)}; // of a coroutine with the same context
    CHECK(other.state() == "waits");
    other.destroy();
    limited.destroy();
    behind_one.destroy();
}

TEST_CASE("deadlock_detector: who waits ahead counts, with what its context holds", "[deadlock]")
{
    world w;
    request held{w.a.lock_shared("k"), w.by(w.three)};
    request other{w.b.lock("l"), w.by(w.one)};
    request ahead{w.a.lock("k"), w.by(w.two)};
    request behind{w.a.lock_shared("k"), w.by(w.one)}; // behind two, which waits for three
    CHECK(behind.state() == "waits");
    request closing{w.b.lock("l"), w.by(w.three)};
    REQUIRE(is_refused(closing));
    CHECK_THAT(closing.message(), ContainsSubstring("which context " + std::to_string(w.two.id()) +
                                                    " asked for before"));
}

TEST_CASE("deadlock_detector: a coroutine without a context may stand in between", "[deadlock]")
{
    world w;
    request held{w.a.lock_shared("k"), w.by(w.two)};
    request other{w.b.lock("l"), w.by(w.one)};
    request nobody{w.a.lock("k")};
    request waits{w.b.lock("l"), w.by(w.two)};
    request closing{w.a.lock_shared("k"), w.by(w.one)}; // behind nobody, who waits for two
    REQUIRE(is_refused(closing));
    CHECK_THAT(closing.message(),
               ContainsSubstring("which a coroutine without a context asked for before"));
    CHECK_THAT(closing.message(),
               ContainsSubstring("; a coroutine without a context waits for 'k'"));
    nobody.destroy();
}

TEST_CASE("deadlock_detector: who awaits others waits for what they wait for", "[deadlock]")
{
    world w;
    const amux::context child{&w.one};
    request parents{w.a.lock("k"), w.by(w.one)};
    request other{w.b.lock("l"), w.by(w.two)};
    request childs{w.b.lock("l"), w.by(child)};
    CHECK(childs.state() == "waits");
    request closing{w.a.lock("k"), w.by(w.two)};
    REQUIRE(is_refused(closing));
    CHECK_THAT(closing.message(),
               ContainsSubstring("context " + std::to_string(child.id()) + ", which context " +
                                 std::to_string(w.one.id()) + " awaits,"));
}

TEST_CASE("deadlock_detector: a child asks for what the one that awaits it holds", "[deadlock]")
{
    deadlock_detector detector;
    asyncmux<> mux{{.deadlocks = &detector}};
    bool refused = false;
    auto child = [&]() -> task<void> {
        try {
            auto guard = co_await mux.lock("k");
        } catch (const deadlock_error&) {
            refused = true;
        }
    };
    auto parent = [&]() -> task<void> {
        auto guard = co_await mux.lock("k");
        co_await amux::when_all(child());
    };
    amux::sync_wait(parent());
    CHECK(refused);
}

TEST_CASE("deadlock_detector: a request with a limit is not refused, and nobody is because of it",
          "[deadlock]")
{
    world w;
    amux::manual_event_loop loop;
    request held{w.a.lock("k"), w.by(w.one)};
    request other{w.b.lock("k"), w.by(w.two)};
    request limited{w.a.try_lock_for("k", 10ms), w.by(w.two, loop)};
    request waits{w.b.lock("k"), w.by(w.one)};
    CHECK(waits.state() == "waits"); // two will not wait for ever
    loop.advance(10ms);
    loop.run_ready();
    CHECK(limited.state() == "empty");
    request too{w.a.try_lock_for("k", 10ms), w.by(w.two, loop)};
    CHECK(too.state() == "waits"); // it would have closed a cycle
    other.unlock();
    CHECK(waits.state() == "owns");
}

TEST_CASE("deadlock_detector: a lock made shared is in no reader's way", "[deadlock]")
{
    world w;
    amux::manual_event_loop loop;
    request held{w.a.lock("k"), w.by(w.one)};
    request other{w.b.lock("k"), w.by(w.two)};
    held.guard().downgrade();
    request writer{w.a.try_lock_for("k", 10ms), w.by(w.three, loop)};
    request reader{w.a.lock_shared("k"), w.by(w.two, loop)}; // goes on in 10 ms at the latest
    request mine{w.b.lock("k"), w.by(w.one)};
    CHECK(mine.state() == "waits");
    loop.advance(10ms);
    loop.run_ready();
    CHECK(reader.state() == "owns");
    mine.destroy();
}

TEST_CASE("deadlock_detector: what was given back, stopped or made shared is in nobody's way",
          "[deadlock]")
{
    world w;
    std::stop_source stop;
    request held{w.a.lock("k"), w.by(w.one)};
    request other{w.b.lock("k"), w.by(w.two)};
    SECTION("stopped")
    {
        request waits{w.a.lock("k", stop.get_token()), w.by(w.two)};
        stop.request_stop();
        request mine{w.b.lock("k"), w.by(w.one)};
        CHECK(mine.state() == "waits");
        mine.destroy();
    }
    SECTION("given back")
    {
        request waits{w.a.lock("k"), w.by(w.two)};
        held.unlock();
        request mine{w.b.lock("k"), w.by(w.one)};
        CHECK(mine.state() == "waits");
        mine.destroy();
    }
    SECTION("made shared")
    {
        request waits{w.a.lock_shared("k"), w.by(w.two)};
        held.guard().downgrade();
        CHECK(waits.state() == "owns");
        request mine{w.b.lock("k"), w.by(w.one)};
        CHECK(mine.state() == "waits");
        mine.destroy();
    }
    SECTION("closed")
    {
        request waits{w.a.lock("k"), w.by(w.two)};
        w.a.close();
        request mine{w.b.lock("k"), w.by(w.one)};
        CHECK(mine.state() == "waits");
        mine.destroy();
    }
}

TEST_CASE("deadlock_detector: muxes without it, and coroutines without a context, are not seen",
          "[deadlock]")
{
    world w;
    asyncmux<> unseen;
    request held{unseen.lock("k"), w.by(w.one)};
    request other{w.b.lock("k"), w.by(w.two)};
    request waits{unseen.lock("k"), w.by(w.two)};
    request mine{w.b.lock("k"), w.by(w.one)};
    CHECK(mine.state() == "waits");
    auto tried = w.a.try_lock("k");
    request for_tried{w.a.lock("k"), w.by(w.three)};
    CHECK(for_tried.state() == "waits");
    held.unlock();
}

TEST_CASE("deadlock_detector: a request that finds no memory for its record changes nothing",
          "[deadlock]")
{
    for (std::size_t nth = 1; nth != 20; ++nth) {
        world w;
        request held{w.a.lock("k"), w.by(w.one)};
        request other{w.b.lock("k"), w.by(w.two)};
        request waits{w.a.lock("k"), w.by(w.two)};
        try {
            const support::no_memory missing{nth};
            request mine{w.b.lock_all("k", "l", "m"), w.by(w.one)};
            CHECK(mine.state() != "waits");
        } catch (const std::bad_alloc&) {
            CHECK(nth == 1); // for the coroutine
        }
        try {
            const support::no_memory missing{nth};
            request free{w.b.lock_all("l", "m"), w.by(w.one)};
        } catch (const std::bad_alloc&) {
            CHECK(nth == 1);
        }
        CHECK(w.b.snapshot().requests.size() == 1);
        request mine{w.b.lock("k"), w.by(w.one)};
        CHECK(is_refused(mine));
    }
}

TEST_CASE("deadlock_detector: two threads that lock in opposite orders both get through",
          "[deadlock][threads]")
{
    world w;
    auto often = [](asyncmux<>& first, asyncmux<>& second) -> task<int> {
        int refused = 0;
        for (int n = 0; n != 2'000;) {
            auto one = co_await first.lock("k");
            try {
                auto two = co_await second.lock("k");
                ++n;
            } catch (const deadlock_error&) {
                ++refused;
            }
        }
        co_return refused;
    };
    int refused = 0;
    std::thread other{[&] { refused = amux::sync_wait(often(w.a, w.b)); }};
    const int mine = amux::sync_wait(often(w.b, w.a));
    other.join();
    CHECK(w.a.snapshot().requests.empty());
    INFO(mine << " and " << refused << " refused");
    CHECK(w.a.tracked_keys() + w.b.tracked_keys() == 0);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a shutdown may strand waiters or evict holders, and a full queue may count wrong for ever after.
#include "support/request.hpp"

#include <amux/asyncmux.hpp>
#include <amux/context.hpp>
#include <amux/manual_event_loop.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using amux::asyncmux;
using support::form;
using support::journal;
using support::request;
using guard = asyncmux<>::guard;

TEST_CASE("asyncmux: close tells every waiter in order of arrival, timed ones too",
          "[asyncmux][close]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    journal log;
    const auto named = [&](const char* name) { return support::asker{&loop, nullptr, &log, name}; };
    request holder{mux.lock("k")};
    request w1{mux.lock("k"), named("w1")};
    request w2{mux.try_lock_for("k", 1h), named("w2")};
    request w3{mux.lock(), named("w3")};
    request w4{mux.lock_shared("free"), named("w4")};
    request w5{mux.lock_all("k", "l"), named("w5")};

    mux.close();
    loop.run_ready();
    CHECK(log == journal{"w1", "w2", "w3", "w4", "w5"});
    for (const std::string& state : {w1.state(), w2.state(), w3.state(), w4.state(), w5.state()})
        CHECK(state == "closed");
    CHECK(mux.tracked_keys() == 1);
    CHECK(holder.guard().owns_lock());
    holder.unlock();
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: close lets nobody in, also where a waiter left room", "[asyncmux][close]")
{
    asyncmux<> mux;
    request reader{mux.lock_shared("k")};
    request writer{mux.lock("k")};
    request behind{mux.lock_shared("k")};
    mux.close();
    CHECK(writer.state() == "closed");
    CHECK(behind.state() == "closed");
    CHECK(reader.guard().owns_lock());
}

TEST_CASE("asyncmux: a request that is granted when the mux closes holds its lock",
          "[asyncmux][close]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    request holder{mux.lock("k")};
    request granted{mux.lock("k"), {.where = &loop}};
    request waits{mux.lock("k"), {.where = &loop}};
    holder.unlock();
    mux.close();
    loop.run_ready();
    CHECK(granted.state() == "owns");
    CHECK(waits.state() == "closed");
    granted.guard().downgrade();
    granted.unlock();
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: every form throws on a closed mux, free or not", "[asyncmux][close]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux{{.name = "books"}};
    const bool held = GENERATE(false, true);
    guard holder;
    if (held)
        holder = mux.try_lock("k");
    mux.close();

    for (const form f : {form::key, form::key_shared, form::whole, form::whole_shared,
                         form::several, form::several_shared}) {
        support::requests<asyncmux<>> asked;
        ask(asked, mux, f);
        CHECK(asked[0].state() == "closed");
        CHECK(asked[0].message().find("mux 'books'") != std::string::npos);
    }
    CHECK_THROWS_AS(mux.try_lock("k"), amux::lock_closed_error);
    CHECK_THROWS_AS(mux.try_lock(), amux::lock_closed_error);
    CHECK_THROWS_AS(mux.try_lock_shared("k"), amux::lock_closed_error);
    CHECK_THROWS_AS(mux.try_lock_shared(), amux::lock_closed_error);
    CHECK_THROWS_AS(mux.try_lock_all("k", "l"), amux::lock_closed_error);
    CHECK_THROWS_AS(mux.try_lock_all_shared(std::vector<std::string>{}), amux::lock_closed_error);
    std::stop_source stop;
    stop.request_stop();
    for (const auto limit : {0ms, 5ms}) {
        request timed{mux.try_lock_for("k", limit), {.where = &loop}};
        CHECK(timed.state() == "closed");
        request stopped{mux.try_lock_for("k", limit, stop.get_token()), {.where = &loop}};
        CHECK(stopped.state() == "closed");
        request none{mux.try_lock_all_for(std::vector<std::string>{}, limit), {.where = &loop}};
        CHECK(none.state() == "closed");
    }
    CHECK(mux.tracked_keys() == (held ? 1u : 0u));
}

TEST_CASE("asyncmux: a try on a closed mux says which key it was for", "[asyncmux][close]")
{
    const bool records = GENERATE(false, true);
    asyncmux<> mux{{.name = "books", .record_requests = records}};
    mux.close();
    const auto text = [](auto attempt) -> std::string {
        try {
            attempt();
        } catch (const amux::lock_closed_error& e) {
            return e.what();
        }
        return {};
    };
    const std::string of_one = "amux: the mux is closed (mux 'books', key 'k')";
    CHECK(text([&] { (void)mux.try_lock("k"); }) == of_one);
    CHECK(text([&] { (void)mux.try_lock_shared(std::string{"k"}); }) == of_one);
    const std::string of_others = "amux: the mux is closed (mux 'books')";
    CHECK(text([&] { (void)mux.try_lock(); }) == of_others);
    CHECK(text([&] { (void)mux.try_lock_all("k", "l"); }) == of_others);
}

namespace {

support::fire_and_forget closes(asyncmux<>& mux)
{
    guard g = co_await mux.lock("k");
    mux.close();
    mux.close();
}

} // namespace

TEST_CASE("asyncmux: a resumed waiter may close the mux, twice", "[asyncmux][close]")
{
    asyncmux<> mux;
    request holder{mux.lock("k")};
    closes(mux);
    request behind{mux.lock("k")};
    request elsewhere{mux.lock("other")};
    holder.unlock();
    CHECK(behind.state() == "closed");
    CHECK(elsewhere.guard().owns_lock());
    CHECK(mux.tracked_keys() == 1);
    CHECK(mux.snapshot().closed);
}

TEST_CASE("asyncmux: a stop or a time-out after close finds nothing left to do",
          "[asyncmux][close]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    std::stop_source stop;
    request holder{mux.lock("k")};
    request a{mux.lock("k", stop.get_token()), {.where = &loop}};
    request b{mux.try_lock_for("k", 1ms), {.where = &loop}};
    mux.close();
    stop.request_stop();
    loop.advance(1ms);
    loop.run_ready();
    CHECK(a.state() == "closed");
    CHECK(b.state() == "closed");
}

TEST_CASE("asyncmux: the errors come in the order stopped, closed, reentrant, full",
          "[asyncmux][errors]")
{
    const bool one_key = GENERATE(true, false);
    asyncmux<> mux{{.prevent_reentrancy = true, .max_waiters = 0}};
    const auto asked = one_key ? form::key : form::several;
    amux::context me;
    amux::context other;
    request holder{mux.lock("k"), {.who = &me}};
    std::stop_source stop;
    support::requests<asyncmux<>> asks;

    ask(asks, mux, asked, {}, {.who = &other});
    CHECK(asks.back().state() == "full");
    ask(asks, mux, asked, {}, {.who = &me});
    CHECK(asks.back().state() == "reentrant");
    mux.close();
    ask(asks, mux, asked, {}, {.who = &me});
    CHECK(asks.back().state() == "closed");
    stop.request_stop();
    ask(asks, mux, asked, stop.get_token(), {.who = &me});
    CHECK(asks.back().state() == "stopped");
}

TEST_CASE("asyncmux: the limit counts waiting requests, not keys nor holders", "[asyncmux][full]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux{{.max_waiters = 3, .name = "m"}};
    request holder{mux.lock("k")};
    request another_holder{mux.lock("free")};
    request w1{mux.lock("k")};
    request w2{mux.lock_all("k", "l", "m", "n")};
    request w3{mux.lock()};

    const auto asked = GENERATE(form::key, form::key_shared, form::whole, form::whole_shared,
                                form::several, form::several_shared);
    support::requests<asyncmux<>> asks;
    ask(asks, mux, asked);
    CHECK(asks[0].state() == "full");
    CHECK(asks[0].message().find("mux 'm'") != std::string::npos);
    request timed{mux.try_lock_for("k", 1s), {.where = &loop}};
    CHECK(timed.state() == "full");
    CHECK_FALSE(mux.try_lock("k").owns_lock()); // would not wait, so it is not full
    CHECK(w1.state() + w2.state() + w3.state() == "waitswaitswaits");
}

TEST_CASE("asyncmux: a request that is refused for a full queue leaves no trace",
          "[asyncmux][full]")
{
    asyncmux<> mux{{.max_waiters = 0}};
    request holder{mux.lock()};
    for (const form f : {form::key, form::key_shared, form::whole, form::whole_shared,
                         form::several, form::several_shared}) {
        support::requests<asyncmux<>> asks;
        ask(asks, mux, f);
        CHECK(asks[0].state() == "full");
        CHECK(mux.tracked_keys() == 0);
        CHECK(mux.snapshot().whole.waiters == 0);
    }
    holder.unlock();
    request free{mux.lock_all("k", "l")}; // does not wait, so the limit says nothing
    CHECK(free.state() == "owns");
    request held{mux.lock("k")};
    CHECK(held.state() == "full");
    CHECK(mux.snapshot().keys.size() == 2);
}

TEST_CASE("asyncmux: a place in the queue is free again however its request ends",
          "[asyncmux][full]")
{
    const auto asked = GENERATE(form::key, form::whole, form::several);
    amux::manual_event_loop loop;
    asyncmux<> mux{{.max_waiters = 1}};
    for (int round = 0; round != 3; ++round) {
        support::requests<asyncmux<>> asks;
        request holder{mux.lock("k")};
        std::stop_source stop;
        ask(asks, mux, asked, stop.get_token());
        REQUIRE(asks.back().state() == "waits");
        stop.request_stop(); // stopped
        ask(asks, mux, asked);
        REQUIRE(asks.back().state() == "waits");
        asks.back().destroy(); // destroyed
        request timed{mux.try_lock_for("k", 1s), {.where = &loop}};
        REQUIRE(timed.state() == "waits");
        loop.advance(1s); // timed out
        loop.run_ready();
        ask(asks, mux, asked);
        REQUIRE(asks.back().state() == "waits");
        holder.unlock(); // granted
        CHECK(asks.back().state() == "owns");
    }
}

TEST_CASE("asyncmux: the places of a full queue are given back when the mux closes",
          "[asyncmux][full][close]")
{
    asyncmux<> mux{{.max_waiters = 2}};
    request holder{mux.lock("k")};
    request w1{mux.lock()};
    request w2{mux.lock_all("k", "l")};
    mux.close();
    CHECK(w1.state() == "closed");
    CHECK(w2.state() == "closed");
    holder.unlock();
    CHECK(mux.tracked_keys() == 0); // l was reserved
}

TEST_CASE("asyncmux: who was told that it gets no lock may run when the mux is gone",
          "[asyncmux][close][lifetime]")
{
    amux::manual_event_loop loop;
    auto mux = std::make_unique<asyncmux<>>(amux::asyncmux_options{.name = "sessions"});
    std::stop_source stop;
    request holder{mux->lock("k")};
    request closed{mux->lock("k", stop.get_token()), {.where = &loop}};
    request timed{mux->try_lock_for("k", 1s, stop.get_token()), {.where = &loop}};
    request never_run{mux->lock_all("k", "l"), {.where = &loop}};
    const auto end = [&] {
        holder.unlock();
        mux.reset();
    };
    SECTION("told by close; a stop and a time-out come after that")
    {
        mux->close();
        end();
        stop.request_stop();
        loop.advance(2s);
        loop.run_ready();
        CHECK(closed.state() == "closed");
        CHECK(closed.message() == "amux: the mux is closed (mux 'sessions', key 'k')");
        CHECK(timed.state() == "closed");
    }
    SECTION("told by a stop")
    {
        stop.request_stop();
        never_run.destroy();
        end();
        loop.run_ready();
        CHECK(closed.state() == "stopped");
        CHECK(timed.state() == "empty");
    }
    SECTION("told, and destroyed before it ran")
    {
        mux->close();
        end();
        closed.destroy();
        timed.destroy();
        never_run.destroy();
        CHECK(loop.run_ready() == 0);
    }
}

TEST_CASE("asyncmux: who does not get a lock is told the key, also one that moved into the request",
          "[asyncmux][close]")
{
    asyncmux<> mux{{.max_waiters = 1, .name = "M"}};
    request holder{mux.lock()};
    std::stop_source stop;
    request stopped{mux.lock(std::string("new"), stop.get_token())};
    request full{mux.lock(std::string("more"))};
    stop.request_stop();
    CHECK(stopped.message().find("key 'new'") != std::string::npos);
    CHECK(full.message().find("key 'more'") != std::string::npos);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file destroying a coroutine, a description, a loop or a mux at a bad moment corrupts memory unseen.
#include "support/death.hpp"
#include "support/request.hpp"

#include <amux/asyncmux.hpp>
#include <amux/event_loop.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/spawn.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::asyncmux;
using Catch::Matchers::ContainsSubstring;
using support::form;
using support::journal;
using support::request;
using guard = asyncmux<>::guard;

TEST_CASE("asyncmux: a waiting coroutine that is destroyed leaves the queue",
          "[asyncmux][lifetime]")
{
    const auto asked = GENERATE(form::key, form::key_shared, form::whole, form::whole_shared,
                                form::several, form::several_shared);
    const bool on_loop = GENERATE(false, true);
    amux::manual_event_loop loop;
    asyncmux<> mux;
    std::stop_source stop;
    request holder{mux.lock("k")};
    support::requests<asyncmux<>> asks;
    ask(asks, mux, asked, stop.get_token(), {.where = on_loop ? &loop : nullptr});
    request next{mux.lock("k"), {.where = &loop}};
    asks[0].destroy();
    stop.request_stop();
    holder.unlock();
    loop.run_ready();
    CHECK(next.state() == "owns");
    next.unlock();
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: destroying a waiting writer lets the readers behind it in",
          "[asyncmux][lifetime]")
{
    asyncmux<> mux;
    request reader{mux.lock_shared("k")};
    request writer{mux.lock("k")};
    request behind{mux.lock_shared("k")};
    writer.destroy();
    CHECK(behind.state() == "owns");
}

TEST_CASE("asyncmux: destroying a granted coroutine that has not run gives the lock back",
          "[asyncmux][lifetime]")
{
    const auto asked = GENERATE(form::key, form::whole, form::several, form::several_shared);
    const bool detects = GENERATE(false, true);
    amux::manual_event_loop loop;
    asyncmux<> mux{{.prevent_reentrancy = detects}};
    request holder{mux.lock("k")};
    support::requests<asyncmux<>> asks;
    ask(asks, mux, asked, {}, {.where = &loop});
    request next{mux.lock("k"), {.where = &loop}};
    holder.unlock();
    asks[0].destroy();
    loop.run_ready();
    CHECK(next.state() == "owns");
    CHECK(mux.snapshot().keys.at(0).granted_not_resumed == 0);
    next.unlock();
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: a coroutine that is told an error but has not run may be destroyed",
          "[asyncmux][lifetime]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    std::stop_source stop;
    request holder{mux.lock("k")};
    request timed{mux.try_lock_for("k", 1ms, stop.get_token()), {.where = &loop}};
    request stopped{mux.lock("k", stop.get_token()), {.where = &loop}};
    request closed{mux.lock_all("k", "l"), {.where = &loop}};
    stop.request_stop();
    mux.close();
    timed.destroy();
    stopped.destroy();
    closed.destroy();
    loop.advance(1s);
    CHECK(loop.run_ready() == 0);
}

TEST_CASE("asyncmux: a coroutine resumed by resume_on may be destroyed at every step",
          "[asyncmux][lifetime]")
{
    const int step = GENERATE(0, 1, 2);
    amux::manual_event_loop loop;
    asyncmux<> mux;
    request holder{mux.lock("k")};
    request waiter{mux.lock("k").resume_on(loop)};
    request next{mux.lock("k").resume_on(loop)};
    if (step == 0)
        waiter.destroy();
    holder.unlock();
    if (step == 1)
        waiter.destroy();
    loop.run_ready();
    if (step == 2) {
        CHECK(waiter.state() == "owns");
        waiter.unlock();
    }
    loop.run_ready();
    CHECK(next.state() == "owns");
}

namespace {

amux::task<> locks(asyncmux<>& mux, journal& log, const char* name)
{
    guard g = co_await mux.lock("k");
    log.emplace_back(name);
}

amux::task<> locks_for(asyncmux<>& mux, std::chrono::milliseconds limit)
{
    guard g = co_await mux.try_lock_for("k", limit);
}

/// Resumed by the thread that releases; destroys another one that is to be resumed after it.
support::fire_and_forget locks_and_destroys(asyncmux<>& mux, request<guard>*& victim)
{
    guard g = co_await mux.lock_shared("k");
    victim->destroy();
}

} // namespace

TEST_CASE("asyncmux: a resumed coroutine may destroy one that was granted beside it",
          "[asyncmux][lifetime]")
{
    asyncmux<> mux;
    request holder{mux.lock("k")};
    request<guard>* victim = nullptr;
    locks_and_destroys(mux, victim);
    request second{mux.lock_shared("k")};
    request third{mux.lock_shared("k")};
    victim = &second;
    holder.unlock();
    CHECK(second.state() == "destroyed");
    CHECK(third.state() == "owns");
    third.unlock();
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: a loop that dies before a granted task ran hands the lock on",
          "[asyncmux][lifetime]")
{
    asyncmux<> mux;
    journal log;
    request holder{mux.lock("k")};
    auto loop = std::make_unique<amux::manual_event_loop>();
    amux::event_loop other;
    loop->spawn(locks(mux, log, "dies"));
    loop->spawn(locks_for(mux, 1s));
    loop->run_ready();
    other.spawn(locks(mux, log, "lives"));
    other.run_ready();

    holder.unlock();
    CHECK(mux.snapshot().keys.at(0).granted_not_resumed == 1); // it names who delays the others
    other.run_ready();
    CHECK(log.empty());
    loop.reset();
    other.run_ready();
    CHECK(log == journal{"lives"});
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: a description that is dropped, moved or never awaited asks for nothing",
          "[asyncmux][lifetime]")
{
    asyncmux<> mux;
    {
        auto dropped = mux.lock("k");
        auto moved = std::move(dropped);
        auto placed = std::move(moved).resume_on(nullptr);
        auto timed = mux.try_lock_for(std::string(300, 'x'), 1s);
        auto several = mux.lock_all(std::vector<std::string>{"a", "b"});
        (void)timed, (void)several;
        CHECK(mux.try_lock().owns_lock());
        request late{std::move(placed)};
        CHECK(late.state() == "owns");
    }
    CHECK(mux.tracked_keys() == 0);
}

namespace {

amux::task<> awaits_twice(asyncmux<>& mux)
{
    auto description = mux.lock(std::string(100, 'k'));
    {
        guard first = co_await std::move(description);
    }
    guard second = co_await std::move(description);
}

} // namespace

TEST_CASE("asyncmux: a description that is awaited twice ends the program with a message",
          "[asyncmux][lifetime]")
{
    CHECK_THAT(support::death_of([] {
                   asyncmux<> mux;
                   amux::sync_wait(awaits_twice(mux));
               }),
               ContainsSubstring("awaited before"));
}

namespace {

amux::task<> awaits_moved_from(asyncmux<>& mux)
{
    auto description = mux.lock(std::string(100, 'k'));
    auto taken = std::move(description);
    guard other = co_await std::move(description);
}

} // namespace

TEST_CASE("asyncmux: a description that was moved from locks no other key", "[asyncmux][lifetime]")
{
    CHECK_THAT(support::death_of([] {
                   asyncmux<> mux;
                   amux::sync_wait(awaits_moved_from(mux));
               }),
               ContainsSubstring("awaited before"));
}

TEST_CASE("asyncmux: a description that is assigned to asks for the other's key",
          "[asyncmux][lifetime]")
{
    asyncmux<> mux;
    auto description = mux.lock(std::string("first"));
    description = mux.lock(std::string("second"));
    auto& itself = description;
    description = std::move(itself); // stays as it is
    request asked{std::move(description)};
    REQUIRE(asked.state() == "owns");
    CHECK(*asked.guard().key() == "second");
}

TEST_CASE("asyncmux: a request arrives when it is awaited, not when it is described",
          "[asyncmux][lifetime]")
{
    asyncmux<> mux;
    request holder{mux.lock("k")};
    auto described_first = mux.lock("k");
    request awaited_first{mux.lock("k")};
    request awaited_second{std::move(described_first)};
    holder.unlock();
    CHECK(awaited_first.state() == "owns");
    CHECK(awaited_second.state() == "waits");
}

TEST_CASE("asyncmux: an rvalue key outlives the expression that names it", "[asyncmux][lifetime]")
{
    asyncmux<> mux;
    const std::string name(100, 'n');
    guard held = mux.try_lock(name);
    auto one = mux.lock(std::string(name));
    auto listed = mux.lock_all(std::string(name), std::string("other"));
    auto range = mux.lock_all(std::vector<std::string>{name, "other"});
    auto timed = mux.try_lock_for(std::string(name), 0s);
    {
        std::vector<std::string> overwrite(8, std::string(100, 'x')); // where the temporaries stood
    }
    request a{std::move(one)};
    request b{std::move(listed)};
    request c{std::move(range)};
    CHECK(a.state() == "waits");
    held.unlock();
    CHECK(*a.guard().key() == name);
    a.unlock();
    CHECK(b.state() == "owns");
    b.unlock();
    CHECK(c.state() == "owns");
    (void)timed;
}

namespace {

/// The mux dies in the hands of the coroutine that was resumed by its release.
support::fire_and_forget destroys_mux(std::unique_ptr<asyncmux<>>& mux)
{
    {
        guard g = co_await mux->lock("k");
    }
    mux.reset();
}

} // namespace

TEST_CASE("asyncmux: a resumed waiter may destroy the mux inside the call that released",
          "[asyncmux][lifetime]")
{
    auto mux = std::make_unique<asyncmux<>>();
    guard holder = mux->try_lock("k");
    destroys_mux(mux);
    SECTION("unlock")
    {
        holder.unlock();
    }
    SECTION("move assignment")
    {
        holder = {};
    }
    SECTION("a whole-mux lock")
    {
        holder = {};
        mux = std::make_unique<asyncmux<>>();
        guard whole = mux->try_lock();
        destroys_mux(mux);
        whole.unlock();
    }
    CHECK(mux == nullptr);
}

namespace {

support::fire_and_forget stopped_destroys_mux(std::unique_ptr<asyncmux<>>& mux, guard& holder,
                                              std::stop_token stop)
{
    try {
        guard g = co_await mux->lock("k", std::move(stop));
    } catch (const amux::lock_error&) {
        holder = {};
    }
    mux.reset();
}

} // namespace

TEST_CASE(
    "asyncmux: a resumed waiter may destroy the mux inside the stop or the close that told it",
    "[asyncmux][lifetime]")
{
    auto mux = std::make_unique<asyncmux<>>();
    guard holder = mux->try_lock("k");
    std::stop_source stop;
    stopped_destroys_mux(mux, holder, stop.get_token());
    SECTION("stop")
    {
        stop.request_stop();
    }
    SECTION("close")
    {
        mux->close();
    }
    CHECK(mux == nullptr);
}

TEST_CASE("asyncmux: destroying a mux that is in use ends the program and names the mux",
          "[asyncmux][lifetime]")
{
    using support::death_of;
    const auto named = [] {
        return std::make_unique<asyncmux<>>(amux::asyncmux_options{.name = "sessions"});
    };
    CHECK_THAT(death_of([&] {
                   auto mux = named();
                   guard g = mux->try_lock("k");
                   support::destroy(mux);
               }),
               ContainsSubstring("held or waited for: sessions"));
    CHECK_THAT(death_of([&] {
                   auto mux = named();
                   guard g = mux->try_lock_shared();
                   support::destroy(mux);
               }),
               ContainsSubstring("sessions"));
    CHECK_THAT(death_of([&] {
                   auto mux = named();
                   amux::manual_event_loop loop;
                   request holder{mux->lock("k")};
                   request granted{mux->lock("k"), {.where = &loop}};
                   holder.unlock();
                   support::destroy(mux);
               }),
               ContainsSubstring("sessions"));
    CHECK_THAT(death_of([&] {
                   auto mux = std::make_unique<amux::unsynchronized_asyncmux<int>>();
                   auto g = mux->try_lock(1);
                   support::destroy(mux);
               }),
               ContainsSubstring("it has no name"));
}

TEST_CASE("asyncmux: a mux with an empty set of keys held may go", "[asyncmux][lifetime]")
{
    auto mux = std::make_unique<asyncmux<>>();
    {
        guard g = mux->try_lock_all(std::vector<std::string>{});
        CHECK(g.owns_lock());
    }
    mux.reset();
    CHECK(mux == nullptr);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a stop or a time-out may lose a lock, give it twice, or strand those who wait behind.
#include "support/request.hpp"

#include <amux/asyncmux.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/spawn.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <type_traits>
#include <vector>

using namespace std::chrono_literals;
using amux::asyncmux;
using support::form;
using support::journal;
using support::request;
using guard = asyncmux<>::guard;

TEST_CASE("asyncmux: a stop that comes after the grant changes nothing", "[asyncmux][cancel]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    std::stop_source stop;
    request holder{mux.lock("k")};
    request first{mux.lock("k", stop.get_token()), {.where = &loop}};
    request second{mux.lock("k"), {.where = &loop}};

    holder.unlock(); // grants, and posts the resumption
    stop.request_stop();
    loop.run_ready();
    CHECK(first.state() == "owns");
    CHECK(second.state() == "waits");
    first.unlock();
    loop.run_ready();
    CHECK(second.state() == "owns");
}

TEST_CASE("asyncmux: a release that comes after a stop passes the stopped request over",
          "[asyncmux][cancel]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    std::stop_source stop;
    request holder{mux.lock("k")};
    request first{mux.lock("k", stop.get_token()), {.where = &loop}};
    request second{mux.lock("k"), {.where = &loop}};

    stop.request_stop();
    holder.unlock();
    loop.run_ready();
    CHECK(first.state() == "stopped");
    CHECK(second.state() == "owns");
}

TEST_CASE("asyncmux: a release suspends nothing and no stop reaches it", "[asyncmux][cancel]")
{
    static_assert(std::is_void_v<decltype(std::declval<guard&>().unlock())>);
    static_assert(std::is_void_v<decltype(std::declval<guard&>().downgrade())>);
    static_assert(std::is_nothrow_destructible_v<guard>);

    asyncmux<> mux;
    std::stop_source stop;
    request holder{mux.lock("k", stop.get_token())};
    request next{mux.lock("k")};
    stop.request_stop();
    CHECK(holder.state() == "owns");
    holder.unlock();
    CHECK(next.state() == "owns");
}

TEST_CASE("asyncmux: readers behind a stopped writer get in beside the reader that holds",
          "[asyncmux][cancel]")
{
    asyncmux<> mux;
    std::stop_source stop;
    request holder{mux.lock_shared("k")};
    request writer{mux.lock("k", stop.get_token())};
    request first{mux.lock_shared("k")};
    request second{mux.lock_shared("k")};
    CHECK(first.state() == "waits");

    stop.request_stop();
    CHECK(writer.state() == "stopped");
    CHECK(first.state() == "owns");
    CHECK(second.state() == "owns");
    CHECK(holder.guard().owns_lock());
}

TEST_CASE("asyncmux: whichever waiter is stopped, the others keep their order",
          "[asyncmux][cancel]")
{
    const std::size_t waiters = GENERATE(1u, 2u, 5u);
    const std::size_t stopped = GENERATE(0u, 1u, 2u, 4u);
    if (stopped >= waiters)
        return;
    asyncmux<> mux;
    std::vector<std::stop_source> stops(waiters);
    request holder{mux.lock("k")};
    support::requests<asyncmux<>> queue;
    for (auto& s : stops)
        queue.emplace_back(mux.lock("k", s.get_token()));

    stops[stopped].request_stop();
    CHECK(queue[stopped].state() == "stopped");
    holder.unlock();
    for (std::size_t i = 0; i != waiters; ++i) {
        if (i == stopped)
            continue;
        REQUIRE(queue[i].state() == "owns");
        for (std::size_t later = i + 1; later != waiters; ++later)
            REQUIRE((later == stopped || queue[later].state() == "waits"));
        queue[i].unlock();
    }
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: two waiters stopped before either runs leave the third waiting",
          "[asyncmux][cancel]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    std::stop_source stop;
    request holder{mux.lock("k")};
    request first{mux.lock("k", stop.get_token()), {.where = &loop}};
    request second{mux.lock("k", stop.get_token()), {.where = &loop}};
    request third{mux.lock("k"), {.where = &loop}};

    stop.request_stop();
    loop.run_ready();
    CHECK(first.state() == "stopped");
    CHECK(second.state() == "stopped");
    CHECK(third.state() == "waits");
    holder.unlock();
    loop.run_ready();
    CHECK(third.state() == "owns");
}

TEST_CASE("asyncmux: a stopped waiter takes back nothing that it never had", "[asyncmux][cancel]")
{
    const auto asked = GENERATE(form::key, form::whole, form::several);
    asyncmux<> mux;
    std::stop_source stop;
    request reader{mux.lock_shared("k")};
    support::requests<asyncmux<>> stopped;
    ask(stopped, mux, asked, stop.get_token());
    stop.request_stop();
    REQUIRE(stopped[0].state() == "stopped");

    request another{mux.lock_shared("k")};
    CHECK(another.state() == "owns");
    request writer{mux.lock("k")};
    request whole{mux.lock()};
    reader.unlock();
    CHECK(writer.state() == "waits");
    another.unlock();
    CHECK(writer.state() == "owns");
    CHECK(whole.state() == "waits");
    writer.unlock();
    CHECK(whole.state() == "owns");
    whole.unlock();
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: a token that is stopped already is refused alike, free or held",
          "[asyncmux][cancel]")
{
    const auto asked = GENERATE(form::key, form::key_shared, form::whole, form::whole_shared,
                                form::several, form::several_shared);
    const bool held = GENERATE(false, true);
    const bool detects = GENERATE(false, true); // takes another path through the awaiter
    asyncmux<> mux{{.prevent_reentrancy = detects, .name = "m"}};
    guard other;
    if (held)
        other = mux.try_lock("k");
    std::stop_source stop;
    stop.request_stop();

    support::requests<asyncmux<>> asks;
    ask(asks, mux, asked, stop.get_token());
    CHECK(asks[0].state() == "stopped");
    CHECK(asks[0].message().find("mux 'm'") != std::string::npos);
    CHECK(mux.tracked_keys() == (held ? 1u : 0u));
    other = {};
    CHECK(mux.try_lock().owns_lock());
}

TEST_CASE("asyncmux: an empty set of keys is refused to a stopped token too", "[asyncmux][cancel]")
{
    asyncmux<> mux;
    std::stop_source stop;
    stop.request_stop();
    request nothing{mux.lock_all(std::vector<std::string>{}, stop.get_token())};
    CHECK(nothing.state() == "stopped");
}

namespace {

/// Stops a source when it hashes: between the first look at the token and the arrival in the queue.
struct stopping_hash {
    static inline std::stop_source* source = nullptr;
    std::size_t operator()(int key) const
    {
        if (source)
            source->request_stop();
        return static_cast<std::size_t>(key);
    }
};

} // namespace

TEST_CASE("asyncmux: a stop that comes while the request arrives is not lost", "[asyncmux][cancel]")
{
    using mux_type = asyncmux<int, amux::multi_threaded, stopping_hash>;
    mux_type mux;
    request holder{mux.lock(1)};
    std::stop_source stop;
    stopping_hash::source = &stop;
    request waiter{mux.lock(1, stop.get_token())};
    stopping_hash::source = nullptr;
    CHECK(waiter.state() == "stopped");
    holder.unlock();
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: a stop that comes between the attempt and the wait is not lost",
          "[asyncmux][cancel]")
{
    // With a time limit the token is looked at before the key is hashed for the queue, once.
    using mux_type = asyncmux<int, amux::multi_threaded, stopping_hash>;
    amux::manual_event_loop loop;
    mux_type mux;
    request holder{mux.lock(1)};
    std::stop_source stop;
    stopping_hash::source = &stop;
    request waiter{mux.try_lock_for(1, 1s, stop.get_token()), {.where = &loop}};
    stopping_hash::source = nullptr;
    loop.run_ready();
    CHECK(waiter.state() == "empty");
}

namespace {

support::fire_and_forget ends_when_stopped(asyncmux<>& mux, std::stop_token stop, bool& told)
{
    try {
        guard g = co_await mux.lock("k", std::move(stop));
    } catch (const amux::lock_cancelled_error&) {
        told = true;
    }
    // The frame, and the stop callback in it, go inside the callback.
}

} // namespace

TEST_CASE("asyncmux: a waiter may end inside the call that stops it", "[asyncmux][cancel]")
{
    asyncmux<> mux;
    std::stop_source stop;
    bool told[3] = {};
    request holder{mux.lock("k")};
    for (bool& t : told)
        ends_when_stopped(mux, stop.get_token(), t);
    stop.request_stop();
    CHECK((told[0] && told[1] && told[2]));
    CHECK(mux.snapshot().keys.at(0).waiters == 0);
}

TEST_CASE("asyncmux: a stopped request resumes before those it held back", "[asyncmux][cancel]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    journal log;
    std::stop_source stop;
    request holder{mux.lock_shared("k")};
    request writer{mux.lock("k", stop.get_token()), {&loop, nullptr, &log, "writer"}};
    request first{mux.lock_shared("k"), {&loop, nullptr, &log, "first"}};
    request second{mux.lock_shared("k"), {&loop, nullptr, &log, "second"}};
    stop.request_stop();
    loop.run_ready();
    CHECK(log == journal{"writer", "first", "second"});
}

TEST_CASE("asyncmux: a set of keys that is stopped half way gives back what it had reserved",
          "[asyncmux][cancel]")
{
    asyncmux<> mux;
    std::stop_source stop;
    request holder{mux.lock("b")};
    request both{mux.lock_all("a", "b", stop.get_token())};
    request behind_a{mux.lock("a")};
    request behind_b{mux.lock("b")};
    CHECK(both.state() == "waits");
    CHECK(behind_a.state() == "waits"); // an earlier request for it waits

    stop.request_stop();
    CHECK(both.state() == "stopped");
    CHECK(behind_a.state() == "owns");
    CHECK(behind_b.state() == "waits");
    holder.unlock();
    CHECK(behind_b.state() == "owns");
}

TEST_CASE("asyncmux: a wait that expires just after the grant owns the lock", "[asyncmux][timed]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    request holder{mux.lock("k")};
    request waiter{mux.try_lock_for("k", 10ms), {.where = &loop}};
    holder.unlock();
    loop.advance(1h);
    loop.run_ready();
    CHECK(waiter.state() == "owns");
}

TEST_CASE("asyncmux: a wait that expires just before the release is empty, and the next one owns",
          "[asyncmux][timed]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    request holder{mux.lock("k")};
    request waiter{mux.try_lock_for("k", 10ms), {.where = &loop}};
    request next{mux.lock("k"), {.where = &loop}};
    loop.advance(9ms);
    loop.run_ready();
    CHECK(waiter.state() == "waits");
    loop.advance(1ms);
    loop.run_ready();
    CHECK(waiter.state() == "empty");
    holder.unlock();
    loop.run_ready();
    CHECK(next.state() == "owns");
}

TEST_CASE("asyncmux: a time-out lets in those whom the request held back", "[asyncmux][timed]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    journal log;
    request reader{mux.lock_shared("k")};
    request writer{mux.try_lock_until("k", loop.now() + 1s), {&loop, nullptr, &log, "writer"}};
    request behind{mux.try_lock_shared_for("k", 1h), {&loop, nullptr, &log, "behind"}};
    loop.advance(1s);
    loop.run_ready();
    CHECK(log == journal{"writer", "behind"});
    CHECK(writer.state() == "empty");
    CHECK(behind.state() == "owns");
}

TEST_CASE("asyncmux: a time of zero or less is one attempt", "[asyncmux][timed]")
{
    const auto limit = GENERATE(0ns, -1ns, std::chrono::nanoseconds::min());
    amux::manual_event_loop loop;
    asyncmux<> mux;
    {
        request free{mux.try_lock_for("k", limit), {.where = &loop}};
        CHECK(free.state() == "owns");
        request held{mux.try_lock_for("k", limit), {.where = &loop}};
        CHECK(held.state() == "empty");
        request past{mux.try_lock_until("k", loop.now() + limit / 2), {.where = &loop}};
        CHECK(past.state() == "empty");
        request whole{mux.try_lock_shared_for(limit), {.where = &loop}};
        CHECK(whole.state() == "empty");
        request several{mux.try_lock_all_for(std::vector{"a", "k"}, limit), {.where = &loop}};
        CHECK(several.state() == "empty");
    }
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: a time beyond the end of the clock never ends", "[asyncmux][timed]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    loop.advance(24h);
    request holder{mux.lock("k")};
    request hours{mux.try_lock_for("k", std::chrono::hours::max()), {.where = &loop}};
    request seconds{mux.try_lock_for("k", std::chrono::duration<double>{1e300}), {.where = &loop}};
    request until{mux.try_lock_until("k", amux::clock::time_point::max()), {.where = &loop}};
    loop.advance(24h * 365 * 200);
    loop.run_ready();
    CHECK(hours.state() == "waits");
    CHECK(seconds.state() == "waits");
    holder.unlock();
    loop.run_ready();
    CHECK(hours.state() == "owns");
    hours.unlock();
    loop.run_ready();
    CHECK(seconds.state() == "owns");
    seconds.unlock();
    loop.run_ready();
    CHECK(until.state() == "owns");
}

TEST_CASE("asyncmux: a timed form answers a stop with an empty guard, also an early one",
          "[asyncmux][timed]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    std::stop_source stop;
    request holder{mux.lock("k")};
    request waiting{mux.try_lock_for("k", 1h, stop.get_token()), {.where = &loop}};
    request behind{mux.try_lock_shared_for("k", 1h, stop.get_token()), {.where = &loop}};
    stop.request_stop();
    loop.run_ready();
    CHECK(waiting.state() == "empty");
    CHECK(behind.state() == "empty");

    request early{mux.try_lock_for("free", 1h, stop.get_token()), {.where = &loop}};
    CHECK(early.state() == "empty");
    request zero{mux.try_lock_for("free", 0s, stop.get_token()), {.where = &loop}};
    CHECK(zero.state() == "empty");
    CHECK(mux.tracked_keys() == 1);
}

TEST_CASE("asyncmux: a timed wait without a scheduler is a logic error, unless it is given one",
          "[asyncmux][timed]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    request nowhere{mux.try_lock_for("k", 1s)}; // its type has a scheduler, which is null
    CHECK(nowhere.state() == "threw");
    request placed{mux.try_lock_for("k", 1s).resume_on(loop)};
    CHECK(placed.state() == "owns");
    request waits{mux.try_lock_for("k", 1s).resume_on(loop)};
    loop.advance(1s);
    loop.run_ready();
    CHECK(waits.state() == "empty");
    amux::scheduler* const none = nullptr;
    request null{mux.try_lock_for("k", 1s).resume_on(none)};
    CHECK(null.state() == "threw");
    request falls_through{mux.try_lock_for("k", 0s).resume_on(none), {.where = &loop}};
    CHECK(falls_through.state() == "empty");
}

TEST_CASE("asyncmux: every timed form waits, expires and is granted", "[asyncmux][timed]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    const support::asker here{.where = &loop};
    const std::vector<std::string> keys{"k", "l"};
    const auto until = loop.now() + 5ms;
    guard holder = mux.try_lock("k");
    support::requests<asyncmux<>> all;
    all.emplace_back(mux.try_lock_for("k", 5ms), here);
    all.emplace_back(mux.try_lock_until("k", until), here);
    all.emplace_back(mux.try_lock_shared_for("k", 5ms), here);
    all.emplace_back(mux.try_lock_shared_until("k", until), here);
    all.emplace_back(mux.try_lock_for(5ms), here);
    all.emplace_back(mux.try_lock_until(until), here);
    all.emplace_back(mux.try_lock_shared_for(5ms), here);
    all.emplace_back(mux.try_lock_shared_until(until), here);
    all.emplace_back(mux.try_lock_all_for(keys, 5ms), here);
    all.emplace_back(mux.try_lock_all_until(keys, until), here);
    all.emplace_back(mux.try_lock_all_shared_for(keys, 5ms), here);
    all.emplace_back(mux.try_lock_all_shared_until(keys, until), here);
    SECTION("expires")
    {
        loop.advance(5ms);
        loop.run_ready();
        for (const auto& r : all)
            CHECK(r.state() == "empty");
    }
    SECTION("is granted")
    {
        holder.unlock();
        for (auto& r : all) {
            loop.run_ready();
            REQUIRE(r.state() == "owns");
            r.unlock();
        }
    }
}

// SPDX-License-Identifier: BSL-1.0
// Without this file with_lock, reentrancy detection, snapshots, observers and threading policies are promises only.
#include "support/death.hpp"
#include "support/request.hpp"

#include <amux/asyncmux.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>
#include <amux/task_group.hpp>
#include <amux/when_all.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::asyncmux;
using amux::lock_mode;
using amux::sync_wait;
using Catch::Matchers::ContainsSubstring;
using support::form;
using support::journal;
using support::request;
using guard = asyncmux<>::guard;

static_assert(std::is_trivially_copyable_v<amux::asyncmux_options>);
static_assert(!std::is_copy_constructible_v<asyncmux<>> &&
              !std::is_move_constructible_v<asyncmux<>>);
static_assert(!std::is_convertible_v<amux::asyncmux_options, asyncmux<>>);
static_assert(
    std::is_same_v<amux::unsynchronized_asyncmux<int>, asyncmux<int, amux::single_threaded>>);
static_assert(noexcept(std::declval<asyncmux<>&>().close()));

// ---- with_lock

TEST_CASE("with_lock: it runs a plain function under the lock and gives its result",
          "[asyncmux][with_lock]")
{
    asyncmux<> mux;
    const bool held = sync_wait(mux.with_lock("k", [&] { return !mux.try_lock_shared("k"); }));
    CHECK(held);
    CHECK(sync_wait(mux.with_lock_shared(
        "k", [&] { return mux.try_lock_shared("k").owns_lock() && !mux.try_lock("k"); })));
    CHECK(sync_wait(mux.with_lock([&] { return !mux.try_lock_shared("any"); })));
    CHECK(sync_wait(mux.with_lock_shared([&] { return !mux.try_lock("any"); })));
    sync_wait(mux.with_lock("k", [] {}));
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("with_lock: a coroutine is awaited under the lock", "[asyncmux][with_lock]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    int result = 0;
    const auto slow = [&]() -> amux::task<int> {
        co_await loop.sleep_for(10ms);
        co_return mux.try_lock("k") ? -1 : 5;
    };
    const auto outer = [&]() -> amux::task<> { result = co_await mux.with_lock("k", slow); };
    loop.spawn(outer());
    loop.run_ready();
    CHECK(mux.tracked_keys() == 1);
    loop.advance(10ms);
    loop.run_ready();
    CHECK(result == 5);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("with_lock: an exception of the function passes, and the lock is released",
          "[asyncmux][with_lock]")
{
    asyncmux<> mux;
    CHECK_THROWS_AS(sync_wait(mux.with_lock("k", [] { throw std::out_of_range{"plain"}; })),
                    std::out_of_range);
    const auto fails = [&]() -> amux::task<> {
        co_await mux.with_lock("other", [] {});
        throw std::domain_error{"coroutine"};
    };
    CHECK_THROWS_AS(sync_wait(mux.with_lock("k", fails)), std::domain_error);
    CHECK(mux.tracked_keys() == 0);
    CHECK(mux.try_lock());
}

TEST_CASE("with_lock: results may be references, or only movable", "[asyncmux][with_lock]")
{
    asyncmux<> mux;
    int value = 1;
    static_assert(
        std::is_same_v<decltype(sync_wait(mux.with_lock([&]() -> int& { return value; }))), int&>);
    sync_wait(mux.with_lock([&]() -> int& { return value; })) = 7;
    CHECK(value == 7);
    const auto coroutine = [&]() -> amux::task<int&> { co_return value; };
    CHECK(&sync_wait(mux.with_lock("k", coroutine)) == &value);
    auto made = sync_wait(
        mux.with_lock("k", [p = std::make_unique<int>(3)]() mutable { return std::move(p); }));
    CHECK(*made == 3);
}

TEST_CASE("with_lock: a stop before the grant means that the function never runs",
          "[asyncmux][with_lock]")
{
    asyncmux<> mux;
    std::stop_source stop;
    stop.request_stop();
    bool ran = false;
    const auto run = [&] { ran = true; };
    CHECK_THROWS_AS(sync_wait(mux.with_lock("k", run, stop.get_token())),
                    amux::lock_cancelled_error);
    CHECK_THROWS_AS(sync_wait(mux.with_lock(run, stop.get_token())), amux::lock_cancelled_error);
    CHECK_THROWS_AS(sync_wait(mux.with_lock_shared(std::string("k"), run, stop.get_token())),
                    amux::lock_cancelled_error);
    CHECK_THROWS_AS(sync_wait(mux.with_lock_shared(run, stop.get_token())),
                    amux::lock_cancelled_error);
    CHECK_FALSE(ran);
    mux.close();
    CHECK_THROWS_AS(sync_wait(mux.with_lock("k", run)), amux::lock_closed_error);
}

TEST_CASE("with_lock: an rvalue key moves in when it is called, not when it is awaited",
          "[asyncmux][with_lock]")
{
    asyncmux<> mux;
    auto work = mux.with_lock(std::string(50, 'k'), [&] { return mux.snapshot().keys.at(0).key; });
    CHECK(mux.tracked_keys() == 0);
    CHECK(sync_wait(std::move(work)) == std::string(50, 'k'));
}

// ---- reentrancy

TEST_CASE("reentrancy: whoever holds a lock is told when it asks for what would wait for it",
          "[asyncmux][reentrancy]")
{
    const auto forms = {form::key,          form::key_shared, form::whole,
                        form::whole_shared, form::several,    form::several_shared};
    for (const form held : forms) {
        for (const form asked : forms) {
            asyncmux<> mux{{.prevent_reentrancy = true}};
            amux::context me;
            amux::context child{&me};
            amux::context grandchild{&child};
            amux::context other;
            support::requests<asyncmux<>> asks;
            INFO(static_cast<int>(held) << " then " << static_cast<int>(asked));
            ask(asks, mux, held, {}, {.who = &me});
            for (const amux::context* who : {&me, &child, &grandchild}) {
                ask(asks, mux, asked, {}, {.who = who});
                CHECK(asks.back().state() == "reentrant"); // shared after shared too
            }
            ask(asks, mux, asked, {}, {.who = &other});
            CHECK(asks.back().state() != "reentrant");
            ask(asks, mux, asked); // has no context
            CHECK(asks.back().state() != "reentrant");
        }
    }
}

TEST_CASE("reentrancy: other keys may be asked for, the whole mux may not",
          "[asyncmux][reentrancy]")
{
    asyncmux<> mux{{.prevent_reentrancy = true}};
    amux::context me;
    request a{mux.lock("a"), {.who = &me}};
    request b{mux.lock_shared("b"), {.who = &me}};
    request both{mux.lock_all("c", "d"), {.who = &me}};
    CHECK(b.state() == "owns");
    CHECK(both.state() == "owns");
    request crossing{mux.lock_all("e", "d"), {.who = &me}};
    CHECK(crossing.state() == "reentrant");
    request whole{mux.lock_shared(), {.who = &me}};
    CHECK(whole.state() == "reentrant");
    CHECK(mux.tracked_keys() == 4); // e was not taken
}

TEST_CASE("reentrancy: a parent and a sibling of the holder just wait", "[asyncmux][reentrancy]")
{
    asyncmux<> mux{{.prevent_reentrancy = true}};
    amux::context parent;
    amux::context child{&parent};
    amux::context sibling{&parent};
    request holder{mux.lock("k"), {.who = &child}};
    request asks_sibling{mux.lock("k"), {.who = &sibling}};
    request asks_parent{mux.lock("k"), {.who = &parent}};
    CHECK(asks_sibling.state() == "waits");
    CHECK(asks_parent.state() == "waits");
    holder.unlock();
    CHECK(asks_sibling.state() == "owns");
    request again{mux.lock("k"), {.who = &sibling}}; // granted after a wait, it counts as well
    CHECK(again.state() == "reentrant");
}

TEST_CASE("reentrancy: after the release, and after a failed request, one may ask again",
          "[asyncmux][reentrancy]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux{{.prevent_reentrancy = true}};
    amux::context me;
    request first{mux.lock("k"), {.who = &me}};
    first.unlock();
    request second{mux.lock("k"), {.who = &me}};
    CHECK(second.state() == "owns");
    request other{mux.lock("busy")};
    request timed{mux.try_lock_for("busy", 1ms), {.where = &loop, .who = &me}};
    loop.advance(1ms);
    loop.run_ready();
    CHECK(timed.state() == "empty");
    request again{mux.try_lock_for("busy", 1ms), {.where = &loop, .who = &me}};
    CHECK(again.state() == "waits");
    second.guard() = {};
    request third{mux.lock("k"), {.who = &me}};
    CHECK(third.state() == "owns");
}

TEST_CASE("reentrancy: a moved guard counts for the context that was granted it",
          "[asyncmux][reentrancy]")
{
    asyncmux<> mux{{.prevent_reentrancy = true}};
    amux::context giver;
    amux::context taker;
    request from{mux.lock("k"), {.who = &giver}};
    guard moved = std::move(from.guard());
    request again{mux.lock("k"), {.who = &giver}};
    CHECK(again.state() == "reentrant");
    request waits{mux.lock("k"), {.who = &taker}};
    CHECK(waits.state() == "waits");
    moved.unlock();
    CHECK(waits.state() == "owns");
}

TEST_CASE("reentrancy: timed requests are told, tries are neither told nor seen",
          "[asyncmux][reentrancy]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux{{.prevent_reentrancy = true}};
    amux::context me;
    const support::asker as{.where = &loop, .who = &me};
    {
        guard tried = mux.try_lock("k"); // by nobody
        request waits{mux.lock("k"), as};
        CHECK(waits.state() == "waits");
    }
    request holder{mux.lock("k"), as};
    request timed{mux.try_lock_for("k", 1s), as};
    request attempt{mux.try_lock_shared_for("k", 0s), as};
    request whole{mux.try_lock_until(loop.now() + 1s), as};
    CHECK(timed.state() == "reentrant");
    CHECK(attempt.state() == "reentrant");
    CHECK(whole.state() == "reentrant");
    CHECK_FALSE(mux.try_lock("k"));
}

TEST_CASE("reentrancy: off by default, and an own request waits like any other",
          "[asyncmux][reentrancy]")
{
    asyncmux<> mux;
    amux::context me;
    request holder{mux.lock("k"), {.who = &me}};
    request again{mux.lock("k"), {.who = &me}};
    CHECK(again.state() == "waits");
    holder.unlock();
    CHECK(again.state() == "owns");
}

namespace {

amux::task<> asks_again(asyncmux<>& mux)
{
    guard g = co_await mux.lock("k");
}

amux::task<std::string> says_who(asyncmux<>& mux, amux::task_group& group,
                                 amux::manual_event_loop& loop)
{
    std::string said;
    guard g = co_await mux.lock("k");
    g.downgrade();
    try {
        co_await asks_again(mux); // awaited: the same context
    } catch (const amux::reentrant_lock_error& e) {
        said += e.key() + ' ' + to_string(e.held_mode()) + ' ' + to_string(e.asked_mode()) + ", ";
    }
    try {
        (void)co_await amux::when_all(asks_again(mux), asks_again(mux)); // children of it
    } catch (const amux::reentrant_lock_error&) {
        said += "when_all, ";
    }
    group.spawn(asks_again(mux)); // another context: it waits
    co_await loop.schedule();
    said += mux.snapshot().keys.at(0).waiters == 1 ? "group waits, " : "group does not wait, ";
    g.unlock();
    co_await group.join();
    (void)co_await amux::when_all(asks_again(mux), asks_again(mux)); // one after the other
    co_return said;
}

} // namespace

TEST_CASE("reentrancy: tasks share, inherit or do not share the context, by how they are started",
          "[asyncmux][reentrancy]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux{{.prevent_reentrancy = true}};
    amux::task_group group{loop};
    std::string said;
    const auto root = [&]() -> amux::task<> { said = co_await says_who(mux, group, loop); };
    loop.spawn(root());
    while (loop.run_ready() != 0) {
    }
    CHECK(said == "k shared exclusive, when_all, group waits, ");
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("errors: the message names the key and the mux", "[asyncmux][errors]")
{
    amux::context me;
    asyncmux<> mux{{.prevent_reentrancy = true, .max_waiters = 0, .name = "accounts"}};
    request holder{mux.lock("alice"), {.who = &me}};
    request again{mux.lock("alice"), {.who = &me}};
    request full{mux.lock("alice")};
    for (const auto& text : {again.message(), full.message()})
        CHECK_THAT(text, ContainsSubstring("accounts") && ContainsSubstring("alice"));
    asyncmux<int> numbers{{.max_waiters = 0}};
    request seventeen{numbers.lock(17)};
    request refused{numbers.lock(17)};
    CHECK_THAT(refused.message(), ContainsSubstring("key '17'") && !ContainsSubstring("mux '"));
}

// ---- snapshots

TEST_CASE("snapshot: it names holders, waiters and who was granted and has not run",
          "[asyncmux][snapshot]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux{{.name = "m"}};
    request a{mux.lock("a")};
    request a2{mux.lock_shared("a"), {.where = &loop}};
    request a3{mux.lock_shared("a"), {.where = &loop}};
    request a4{mux.lock("a"), {.where = &loop}};
    a.unlock();
    auto snapshot = mux.snapshot();
    CHECK(snapshot.name == "m");
    CHECK_FALSE(snapshot.closed);
    CHECK_FALSE(snapshot.whole.mode);
    REQUIRE(snapshot.keys.size() == 1);
    CHECK(snapshot.keys[0].key == "a");
    CHECK(snapshot.keys[0].mode == lock_mode::shared);
    CHECK(snapshot.keys[0].holders == 2);
    CHECK(snapshot.keys[0].waiters == 1);
    CHECK(snapshot.keys[0].granted_not_resumed == 2);
    loop.run_ready();
    snapshot = mux.snapshot();
    CHECK(snapshot.keys[0].granted_not_resumed == 0);
    a2.unlock();
    a3.unlock();
    snapshot = mux.snapshot();
    CHECK(snapshot.keys[0].mode == lock_mode::exclusive);
    CHECK(snapshot.keys[0].holders == 1);
    CHECK(snapshot.keys[0].granted_not_resumed == 1);
}

TEST_CASE("snapshot: locks on the whole mux stand apart from the keys", "[asyncmux][snapshot]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    request whole{mux.lock()};
    request shared{mux.lock_shared(), {.where = &loop}};
    request key{mux.lock("k"), {.where = &loop}};
    auto snapshot = mux.snapshot();
    CHECK(snapshot.whole.mode == lock_mode::exclusive);
    CHECK(snapshot.whole.holders == 1);
    CHECK(snapshot.whole.waiters == 1);
    REQUIRE(snapshot.keys.size() == 1);
    CHECK_FALSE(snapshot.keys[0].mode);
    CHECK(snapshot.keys[0].waiters == 1);
    CHECK(mux.tracked_keys() == 1);
    whole.unlock();
    snapshot = mux.snapshot();
    CHECK(snapshot.whole.mode == lock_mode::shared);
    CHECK(snapshot.whole.granted_not_resumed == 1);
    CHECK(snapshot.keys[0].holders == 0);
    mux.close();
    CHECK(mux.snapshot().closed);
}

TEST_CASE("snapshot: what a set of keys has reserved is waited for, not held",
          "[asyncmux][snapshot]")
{
    asyncmux<> mux;
    request holder{mux.lock("b")};
    request both{mux.lock_all("a", "b")};
    for (const auto& k : mux.snapshot().keys) {
        CHECK(k.holders == (k.key == "b" ? 1u : 0u));
        CHECK(k.waiters == 1);
    }
    holder.unlock();
    for (const auto& k : mux.snapshot().keys) {
        CHECK(k.holders == 1);
        CHECK(k.waiters == 0);
    }
}

// ---- policies

namespace {

/// Writes down what it is told, and lets nobody else in while it does.
struct recorder {
    std::vector<std::string> seen;
    std::vector<const void*> waited;

    static std::string text(const amux::lock_observation& o)
    {
        const std::string what = o.whole ? "whole"
                                 : o.key ? "key " + *static_cast<const std::string*>(o.key)
                                         : std::to_string(o.keys) + " keys";
        return what + ' ' + to_string(o.mode);
    }
    void on_wait(const amux::lock_observation& o) noexcept
    {
        seen.push_back("wait " + text(o));
        waited.push_back(o.request);
    }
    void on_grant(const amux::lock_observation& o) noexcept
    {
        const bool known = std::find(waited.begin(), waited.end(), o.request) != waited.end();
        seen.push_back((known ? "late grant " : "grant ") + text(o));
    }
    void on_release(const amux::lock_observation& o) noexcept
    {
        seen.push_back("release " + text(o));
    }
};

struct recorded : amux::multi_threaded {
    using mutex = std::mutex;
    using observer = recorder;
};

struct leaving_recorder : recorder {
    void on_leave(const amux::lock_observation& o) noexcept { seen.push_back("leave " + text(o)); }
};

struct leaving_recorded : recorded {
    using observer = leaving_recorder;
};

/// Writes into the note of each request which one it is, and reads it when the wait is over.
struct noting_recorder {
    using note = int;

    void on_wait(const amux::lock_observation& o) noexcept
    {
        *static_cast<int*>(o.note) = ++waits;
        sets.push_back(o.set);
    }
    void on_leave(const amux::lock_observation& o) noexcept { ended(o); }
    void on_grant(const amux::lock_observation& o) noexcept
    {
        ended(o);
        sets.push_back(o.set);
    }
    void on_downgrade(const amux::lock_observation& o) noexcept
    {
        sets.push_back(o.set);
        downgraded += recorder::text(o) + ';';
    }
    void on_release(const amux::lock_observation& o) noexcept { sets.push_back(o.set); }

    int waits = 0;
    std::vector<int> notes; // 0: there is none
    std::vector<const void*> sets;
    std::string downgraded;

private:
    void ended(const amux::lock_observation& o)
    {
        notes.push_back(o.note ? *static_cast<int*>(o.note) : 0);
    }
};

struct noting : recorded {
    using observer = noting_recorder;
};

/// Divides itself at the first lock.
struct in_parts : amux::multi_threaded {
    struct mutex : std::mutex {
        bool try_lock() { return false; }
    };
    static constexpr std::size_t shards = 32;
    static constexpr unsigned collisions_to_grow = 1;
};

} // namespace

TEST_CASE("policy: its observer is told of waits, grants and releases in order",
          "[asyncmux][policy]")
{
    asyncmux<std::string, recorded> mux;
    {
        request a{mux.lock("a")};
        request a2{mux.lock_shared("a")};
        request two{mux.lock_all_shared("a", "b", "b")};
        request whole{mux.lock()};
        CHECK_FALSE(mux.try_lock("a"));
        a.unlock();
        two.unlock();
        a2.unlock();
    }
    CHECK(mux.observer().seen ==
          journal{"grant key a exclusive", "wait key a shared", "wait 2 keys shared",
                  "wait whole exclusive", "release key a exclusive", "late grant key a shared",
                  "late grant 2 keys shared", "release 2 keys shared", "release key a shared",
                  "late grant whole exclusive", "release whole exclusive"});
}

TEST_CASE("policy: an observer that asks for it is told of waits that end without a grant",
          "[asyncmux][policy]")
{
    asyncmux<std::string, leaving_recorded> mux;
    request a{mux.lock("a")};
    {
        std::stop_source stop;
        request stopped{mux.lock("a", stop.get_token())};
        request destroyed{mux.lock_all("a", "b")};
        request b{mux.lock_shared("b")};
        request whole{mux.lock()};
        mux.observer().seen.clear();
        stop.request_stop();
    }
    request closed{mux.lock_shared("a")};
    mux.close();
    CHECK(mux.observer().seen == journal{"leave key a exclusive", "leave whole exclusive",
                                         "leave key b shared", "leave 2 keys exclusive",
                                         "wait key a shared", "leave key a shared"});
}

TEST_CASE("policy: an observer's note stays with the request while it waits", "[asyncmux][policy]")
{
    asyncmux<std::string, noting> mux;
    request a{mux.lock("a")};
    std::stop_source stop;
    request second{mux.lock("a")};
    request third{mux.lock_all("a", "b")};
    request fourth{mux.lock("a", stop.get_token())};
    stop.request_stop();
    a.unlock();
    second.unlock();
    CHECK(mux.observer().notes == std::vector{0, 3, 1, 2});
}

TEST_CASE("policy: its observer knows a set of keys again, from the wait to the release",
          "[asyncmux][policy]")
{
    asyncmux<std::string, noting> mux;
    request first{mux.lock_all("a", "b")};
    request second{mux.lock_all("b", "c")};
    first.unlock();
    second.unlock();
    const auto& sets = mux.observer().sets;
    REQUIRE(sets.size() == 5); // grant, wait, release, grant, release
    CHECK(sets[0] != nullptr);
    CHECK(sets[2] == sets[0]);
    CHECK(sets[1] != sets[0]);
    CHECK(std::vector{sets[3], sets[4]} == std::vector{sets[1], sets[1]});
    CHECK(mux.try_lock("a").owns_lock());
    CHECK(sets.back() == nullptr);
    asyncmux<std::string, noting> recording{{.record_requests = true}};
    {
        request one_key{recording.lock("a")};
    }
    CHECK(recording.observer().sets == std::vector<const void*>{nullptr, nullptr});
}

TEST_CASE("policy: an observer that asks for it is told of downgrades", "[asyncmux][policy]")
{
    asyncmux<std::string, noting> mux;
    mux.try_lock("a").downgrade();
    mux.try_lock_all("a", "b").downgrade();
    mux.try_lock().downgrade();
    CHECK(mux.observer().downgraded == "key a shared;2 keys shared;whole shared;");
}

TEST_CASE("policy: a mux of many parts keeps the same promises", "[asyncmux][policy]")
{
    asyncmux<std::string, in_parts> mux;
    request a{mux.lock("a")};
    request whole{mux.lock_shared()};
    request b{mux.lock("b")};
    request c{mux.lock_all("b", "c", "d")};
    a.unlock();
    CHECK(whole.state() == "owns");
    whole.unlock();
    CHECK(b.state() == "owns");
    b.unlock();
    CHECK(c.state() == "owns");
}

TEST_CASE("policy: in debug builds a second thread in a single_threaded mux ends the program",
          "[asyncmux][policy]")
{
#if defined(NDEBUG)
    SKIP("the check is compiled out");
#else
    const std::string end = support::death_of([] {
        amux::unsynchronized_asyncmux<int> mux;
        auto g = mux.try_lock(1);
        std::thread{[&] { (void)mux.try_lock(2); }}.join();
    });
    CHECK_THAT(end, ContainsSubstring("single_threaded"));
#endif
}

TEST_CASE("policy: a single_threaded mux may be made, used and destroyed on three threads",
          "[asyncmux][policy]")
{
    auto mux = std::make_unique<amux::unsynchronized_asyncmux<int>>();
    std::thread{[&] {
        request holder{mux->lock(1)};
        request waiter{mux->lock(1)};
        holder.unlock();
    }}.join();
    mux.reset();
    CHECK(mux == nullptr);
}

TEST_CASE("policy: a single_threaded mux waits, stops, times out and closes", "[asyncmux][policy]")
{
    amux::manual_event_loop loop;
    amux::unsynchronized_asyncmux<> mux{{.prevent_reentrancy = true, .max_waiters = 4}};
    std::stop_source stop;
    request holder{mux.lock("k")};
    request stopped{mux.lock("k", stop.get_token())};
    request timed{mux.try_lock_for("k", 1ms), {.where = &loop}};
    request whole{mux.lock_shared()};
    request several{mux.lock_all("k", "l")};
    request full{mux.lock("k")};
    stop.request_stop();
    loop.advance(1ms);
    loop.run_ready();
    CHECK(stopped.state() == "stopped");
    CHECK(timed.state() == "empty");
    CHECK(full.state() == "full");
    holder.unlock();
    CHECK(whole.state() == "owns");
    mux.close();
    CHECK(several.state() == "closed");
}

// ---- every public member compiles

namespace {

struct sum_hash {
    std::size_t operator()(const std::vector<int>& v) const noexcept
    {
        std::size_t sum = 0;
        for (const int i : v)
            sum += static_cast<std::size_t>(i);
        return sum;
    }
};

/// Makes, and drops, a description of each form; gives how many.
template <class Mux, class Key = typename Mux::key_type>
int describe_every_form(Mux& mux, Key key)
{
    const std::stop_token stop;
    const Key& same = key;
    const std::vector<Key> keys{key};
    const auto d = 1ms;
    const amux::clock::time_point t{};
    const auto fn = [] { return 1; };
    const auto count = [](auto&&... descriptions) {
        return static_cast<int>(sizeof...(descriptions));
    };
    return count(mux.lock(), mux.lock(stop), mux.lock(same), mux.lock(Key(key)),
                 mux.lock(same, stop), mux.lock_shared(), mux.lock_shared(stop),
                 mux.lock_shared(key), mux.lock_shared(Key(key), stop)) +
           count(mux.try_lock(), mux.try_lock(same), mux.try_lock(Key(key)), mux.try_lock_shared(),
                 mux.try_lock_shared(same), mux.try_lock_shared(Key(key)), mux.try_lock_all(keys),
                 mux.try_lock_all(key, key), mux.try_lock_all_shared(std::vector<Key>(keys)),
                 mux.try_lock_all_shared(key, Key(key))) +
           count(mux.try_lock_for(d), mux.try_lock_for(same, d), mux.try_lock_for(Key(key), d),
                 mux.try_lock_shared_for(d, stop), mux.try_lock_shared_for(key, d, stop),
                 mux.try_lock_shared_for(Key(key), d), mux.try_lock_until(t, stop),
                 mux.try_lock_until(same, t), mux.try_lock_until(Key(key), t, stop),
                 mux.try_lock_shared_until(t), mux.try_lock_shared_until(key, t, stop),
                 mux.try_lock_shared_until(Key(key), t)) +
           count(mux.lock_all(keys), mux.lock_all(keys, stop), mux.lock_all(key, Key(key)),
                 mux.lock_all(key, same, key, stop), mux.lock_all_shared(std::vector<Key>(keys)),
                 mux.lock_all_shared(key, key, stop), mux.try_lock_all_for(keys, d, stop),
                 mux.try_lock_all_until(std::vector<Key>(keys), t),
                 mux.try_lock_all_shared_for(keys, d), mux.try_lock_all_shared_until(keys, t)) +
           count(mux.with_lock(fn), mux.with_lock(fn, stop), mux.with_lock(key, fn),
                 mux.with_lock(Key(key), fn, stop), mux.with_lock_shared(fn),
                 mux.with_lock_shared(fn, stop), mux.with_lock_shared(same, fn),
                 mux.with_lock_shared(key, fn, stop));
}

} // namespace

template class amux::asyncmux<std::string>;
template class amux::asyncmux<int>;
template class amux::asyncmux<std::vector<int>, amux::single_threaded, sum_hash, std::equal_to<>>;

TEST_CASE("asyncmux: every form exists for every kind of key and policy", "[asyncmux]")
{
    asyncmux<> text;
    CHECK(describe_every_form(text, "k") == 49);
    asyncmux<long> numbers;
    CHECK(describe_every_form(numbers, 5) == 49);
    asyncmux<std::vector<int>, amux::single_threaded, sum_hash, std::equal_to<>> vectors;
    CHECK(describe_every_form(vectors, {1, 2}) == 49);
    amux::unsynchronized_asyncmux<std::shared_ptr<int>> pointers;
    CHECK(describe_every_form(pointers, {}) == 49);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a coroutine, a loop, a node or a redlock that goes in the middle of a call may take others with it.
#include "support/foreign_coroutine.hpp"
#include "support/redlock_world.hpp"

#include <amux/distributed_lock.hpp>
#include <amux/memory_backend.hpp>
#include <amux/redlock.hpp>
#include <amux/testing/conformance.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

using namespace std::chrono_literals;
using amux::backend_error_kind;
using amux::redlock;
using amux::testing::course;
using amux::testing::operation;
using amux::testing::plain_scripted_backend;
using Catch::Matchers::ContainsSubstring;
using support::asked;
using support::hooked_coroutine;
using support::redlock_world;
using support::scripted_node;

namespace {

hooked_coroutine acquire_into(redlock<scripted_node>& l, bool& granted)
{
    auto result = co_await l.acquire("k", "a", 10s);
    granted = result.acquired;
}

hooked_coroutine wait_into(redlock<scripted_node>& l, std::stop_token stop, bool& over)
{
    co_await l.wait_for_release("k", stop);
    over = true;
}

} // namespace

TEST_CASE("redlock: a grant whose coroutine is destroyed before it is resumed is given back",
          "[redlock][lifetime]")
{
    redlock_world w;
    for (auto& s : w.stores)
        s.always(operation::acquire, course::late(50ms));
    bool granted = false;
    amux::manual_event_loop home;
    hooked_coroutine c = acquire_into(*w.lock, granted);
    c.start(&home);
    w.pass(50ms); // decided, and posted to its home
    CHECK(w.held_by("a") == 3);
    c.destroy();
    CHECK(home.run_ready() == 0);
    CHECK(!granted);
    w.pass(10ms);
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: an older acquire that fails or reaches nobody ends no newer lease of its token",
          "[redlock][lifetime]")
{
    const bool fails = GENERATE(false, true), refused = GENERATE(false, true);
    redlock_world w;
    for (auto& s : w.stores) {
        s.next(operation::acquire,
               fails ? course::fails(backend_error_kind::not_applied, 50ms) : course::late(50ms));
        if (refused)
            s.usurp(w.key, "other", 1min);
    }
    bool granted = false;
    amux::manual_event_loop home;
    hooked_coroutine older = acquire_into(*w.lock, granted);
    older.start(&home);
    for (auto& s : w.stores) {
        if (refused)
            s.drop(w.key);
    }
    w.grant("a");
    w.pass(50ms); // the older one is decided, and posted to its home
    older.destroy();
    w.pass(1s);
    CHECK(!granted);
    CHECK(w.held_by("a") == 3);
}

TEST_CASE("redlock: without a scheduler a call goes on where the deciding answer comes",
          "[redlock][lifetime]")
{
    redlock_world w;
    for (auto& s : w.stores)
        s.always(operation::acquire, course::late(50ms));
    bool granted = false;
    hooked_coroutine c = acquire_into(*w.lock, granted);
    c.start(nullptr);
    w.pass(50ms);
    CHECK(granted);
    CHECK(c.done());
}

TEST_CASE("redlock: a wait that is destroyed, waiting or about to go on, leaves nobody listening",
          "[redlock][lifetime]")
{
    redlock_world w;
    w.grant("a");
    std::stop_source stop;
    bool over = false;
    hooked_coroutine waiting = wait_into(*w.lock, stop.get_token(), over);
    SECTION("while it waits")
    {
        waiting.start(nullptr);
        waiting.destroy();
    }
    SECTION("when it is about to go on at its home")
    {
        amux::manual_event_loop home;
        waiting.start(&home);
        auto r = w.release("a");
        w.loop.run_ready();
        stop.request_stop(); // too late to matter
        waiting.destroy();
        CHECK(home.run_ready() == 0);
    }
    SECTION("when it stands behind the one that destroys it")
    {
        struct killer {
            static hooked_coroutine run(redlock<scripted_node>& l, std::stop_source& s,
                                        hooked_coroutine& other)
            {
                co_await l.get("k");
                s.request_stop(); // queued behind this one, on this thread
                other.destroy();
            }
        };
        waiting.start(nullptr);
        for (auto& s : w.stores)
            s.always(operation::get, course::late(10ms));
        hooked_coroutine first = killer::run(*w.lock, stop, waiting);
        first.start(nullptr);
        w.pass(10ms);
        CHECK(first.done());
    }
    w.pass(10ms);
    CHECK(!over);
    for (auto& s : w.stores)
        CHECK(s.count(operation::wait) == 1);
}

TEST_CASE("redlock: a wait that was stopped before is over at once", "[redlock][lifetime]")
{
    redlock_world w;
    w.grant("a");
    std::stop_source stop;
    stop.request_stop();
    bool over = false;
    hooked_coroutine waiting = wait_into(*w.lock, stop.get_token(), over);
    waiting.start(nullptr);
    CHECK(over);
}

TEST_CASE("redlock: a wait without a scheduler goes on inside the call that stops it",
          "[redlock][lifetime]")
{
    redlock_world w;
    w.grant("a");
    std::stop_source stop;
    bool over = false;
    hooked_coroutine waiting = wait_into(*w.lock, stop.get_token(), over);
    waiting.start(nullptr);
    stop.request_stop();
    CHECK(over);
}

TEST_CASE("redlock: what a node throws is trouble, whatever it is", "[redlock][faults]")
{
    redlock_world w;
    w.stores[0].always(operation::extend,
                       course::throws(std::make_exception_ptr(std::runtime_error{"odd"})));
    w.stores[1].always(operation::extend, course::throws(std::make_exception_ptr(7)));
    auto a = w.acquire("a");
    auto e = w.extend("a");
    w.loop.run_ready();
    REQUIRE(e.state() == "trouble");
    CHECK_THAT(e.message(), ContainsSubstring("node 1: the node threw: odd") &&
                                ContainsSubstring("node 2: the node threw something"));
}

TEST_CASE("redlock: when it is gone, calls end with the nodes, and nothing is tried again",
          "[redlock][lifetime]")
{
    redlock_world w;
    w.grant("a");
    w.stores[2].always(operation::release, course::fails(backend_error_kind::not_applied));
    auto r = w.release("a");
    w.loop.run_ready();
    CHECK(r.value());
    w.stores[1].next(operation::release, course::held());
    auto open = w.release("b");
    w.loop.run_ready();
    w.stores[0].next(operation::release, course::fails(backend_error_kind::not_applied, 50ms));
    auto failing = w.release("c");
    w.loop.run_ready();
    const auto before = w.calls(operation::release);
    w.lock.reset();
    w.pass(1min);
    CHECK(w.calls(operation::release) == before);
    CHECK(open.state() == "waits");
    w.stores[1].answer(w.stores[1].oldest_in_flight(operation::release));
    w.loop.run_ready();
    CHECK(!open.value());
    CHECK(failing.state() == "trouble");
}

TEST_CASE("redlock: a call that is awaited when it is gone gets no lease", "[redlock][lifetime]")
{
    redlock_world w;
    auto late = [](redlock_world& self) -> amux::task<bool> {
        auto call = self.lock->acquire("k", "a", 10s);
        self.lock.reset();
        const auto result = co_await call;
        co_return result.acquired;
    };
    asked<bool> got{w.loop, late(w)};
    w.loop.run_ready();
    CHECK(got.state() == "trouble");
    CHECK(w.held_by("a") == 0);
}

TEST_CASE("redlock: over nodes that can do no more than they must it keeps the law",
          "[redlock][conformance]")
{
    amux::manual_event_loop loop;
    std::deque<amux::testing::scripted_backend> stores;
    std::vector<plain_scripted_backend> nodes;
    for (int n = 0; n < 3; ++n)
        nodes.emplace_back(stores.emplace_back(loop));
    using plain = redlock<plain_scripted_backend>;
    STATIC_CHECK(!amux::metadata_backend<plain>);
    STATIC_CHECK(!amux::notifying_backend<plain>);
    STATIC_CHECK(!amux::inspecting_backend<plain>);
    plain store{std::move(nodes), loop};
    for (const auto& r :
         amux::testing::run_conformance(store, amux::testing::in_virtual_time(loop))) {
        INFO(r.name << ": " << r.message);
        CHECK(r.ok);
    }
}

TEST_CASE("redlock: of holders that differ the one with a majority is named, with its time there",
          "[redlock]")
{
    redlock_world w{5};
    const std::vector<std::chrono::milliseconds> left{1s, 5s, 3s, 4s, 2s};
    for (std::size_t n = 0; n < 5; ++n)
        w.stores[n].usurp(w.key, n < 1 ? "other" : "a", left[n]);
    auto inspect = [](redlock<scripted_node>& l) -> amux::task<std::optional<amux::lease_info>> {
        auto found = co_await l.inspect("k");
        co_return found;
    };
    asked<std::optional<amux::lease_info>> found{w.loop, inspect(*w.lock)};
    w.loop.run_ready();
    REQUIRE(found.value());
    CHECK(found.value()->token == "a");
    CHECK(!found.value()->fence);
    CHECK(found.value()->remaining ==
          3s); // the third of those that were asked until there was a majority
}

TEST_CASE("redlock: where each node names another holder none is named", "[redlock]")
{
    redlock_world w;
    for (std::size_t n = 0; n < 3; ++n)
        w.stores[n].usurp(w.key, std::to_string(n), 1min);
    auto inspect = [](redlock<scripted_node>& l) -> amux::task<bool> {
        const auto found = co_await l.inspect("k");
        co_return found.has_value();
    };
    asked<bool> found{w.loop, inspect(*w.lock)};
    auto held = w.get();
    w.loop.run_ready();
    CHECK(!found.value());
    CHECK(!held.value());
}

TEST_CASE("redlock: a forked child frees nothing of its parent's", "[redlock][lifetime]")
{
    redlock_world w;
    w.grant("a");
    w.stores[2].always(operation::release, course::fails(backend_error_kind::not_applied));
    auto r = w.release("a");
    w.loop.run_ready();
    const auto before = w.calls(operation::release);
    const pid_t child = fork();
    w.pass(1s);
    const bool more = w.calls(operation::release) > before;
    if (child == 0)
        _exit(more ? 1 : 0);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(status == 0);
    CHECK(more); // the parent does
}

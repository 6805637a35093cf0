// SPDX-License-Identifier: BSL-1.0
// Without this file tasks side by side may lose a result or an error, go on too early, or pass for one another.
#include <amux/when_all.hpp>

#include <amux/manual_event_loop.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>

#include "support/foreign_coroutine.hpp"
#include "support/probe.hpp"
#include "support/scale.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

using amux::manual_event_loop;
using amux::sync_wait;
using amux::task;
using amux::when_all;
using namespace std::chrono_literals;

namespace {

task<int> number(int i)
{
    co_return i;
}

task<> nothing()
{
    co_return;
}

task<int> later(manual_event_loop& loop, int i)
{
    co_await loop.sleep_for(std::chrono::milliseconds{i});
    co_return i;
}

task<> fail_after(manual_event_loop& loop, std::chrono::milliseconds d, int error)
{
    co_await loop.sleep_for(d);
    throw error;
}

task<support::place> place_of_child()
{
    const support::place here = co_await support::my_place{};
    co_return here;
}

template <class T>
using result_of = decltype(sync_wait(std::declval<T>()));

} // namespace

static_assert(std::is_same_v<result_of<decltype(when_all(number(1), nothing()))>,
                             std::tuple<int, std::monostate>>);
static_assert(
    std::is_same_v<result_of<decltype(when_all(std::vector<task<int>>{}))>, std::vector<int>>);
static_assert(std::is_void_v<result_of<decltype(when_all(std::vector<task<>>{}))>>);

TEST_CASE("when_all: it gives every result, in the order of the tasks", "[when_all]")
{
    int object = 0;
    const auto refer = [&]() -> task<int&> { co_return object; };
    const auto move_only = []() -> task<std::unique_ptr<int>> {
        co_return std::make_unique<int>(3);
    };
    const auto [i, v, p, r] = sync_wait(when_all(number(1), nothing(), move_only(), refer()));
    CHECK(i == 1);
    CHECK(v == std::monostate{});
    CHECK(*p == 3);
    CHECK(&r == &object);
}

TEST_CASE("when_all: of a vector it gives the results in the order of the tasks, not of their ends",
          "[when_all]")
{
    manual_event_loop loop;
    std::vector<int> results;
    const auto parent = [&]() -> task<> {
        std::vector<task<int>> tasks;
        tasks.push_back(later(loop, 3));
        tasks.push_back(later(loop, 1));
        tasks.push_back(later(loop, 2));
        results = co_await when_all(std::move(tasks));
    };
    loop.spawn(parent());
    loop.run_ready();
    loop.advance(3ms);
    loop.run_ready();
    CHECK(results == std::vector{3, 1, 2});
}

TEST_CASE("when_all: no task at all is done at once", "[when_all]")
{
    CHECK(sync_wait(when_all(std::vector<task<int>>{})).empty());
    sync_wait(when_all(std::vector<task<>>{}));
    CHECK(sync_wait(when_all()) == std::tuple<>{});
}

TEST_CASE("when_all: each task begins as far as it goes, in order, before the next", "[when_all]")
{
    manual_event_loop loop;
    std::string log;
    const auto child = [&](char letter) -> task<> {
        log += letter;
        co_await loop.schedule();
        log += letter;
    };
    const auto parent = [&]() -> task<> {
        co_await when_all(child('a'), child('b'), child('c'));
        log += '.';
    };
    loop.spawn(parent());
    loop.run_ready();
    CHECK(log == "abc");
    loop.run_ready();
    CHECK(log == "abcabc.");
}

TEST_CASE("when_all: it goes on where the last task ends, inside that", "[when_all]")
{
    support::gate first;
    support::gate second;
    bool done = false;
    const auto wait = [](support::gate& g) -> task<> { co_await g; };
    const auto root = [&]() -> support::fire_and_forget {
        co_await when_all(wait(first), wait(second));
        done = true;
    };
    root();
    second.open();
    CHECK_FALSE(done);
    first.open();
    CHECK(done);
}

TEST_CASE("when_all: the first error in time is thrown, after all have ended", "[when_all]")
{
    manual_event_loop loop;
    int caught = 0;
    const auto parent = [&](bool vector) -> task<> {
        try {
            if (vector) {
                std::vector<task<>> tasks;
                tasks.push_back(fail_after(loop, 2ms, 2));
                tasks.push_back(fail_after(loop, 1ms, 1));
                tasks.push_back(fail_after(loop, 3ms, 3));
                co_await when_all(std::move(tasks));
            } else {
                co_await when_all(fail_after(loop, 2ms, 2), fail_after(loop, 1ms, 1),
                                  later(loop, 3));
            }
        } catch (int error) {
            caught = error;
        }
    };
    for (const bool vector : {false, true}) {
        caught = 0;
        loop.spawn(parent(vector));
        loop.run_ready();
        loop.advance(2ms);
        loop.run_ready();
        CHECK(caught == 0);
        loop.advance(1ms);
        loop.run_ready();
        CHECK(caught == 1);
    }
}

TEST_CASE("when_all: the tasks have the scheduler of who awaits them, and child contexts each",
          "[when_all]")
{
    manual_event_loop loop;
    const amux::context who;
    std::vector<support::place> places;
    const auto root = [&]() -> support::hooked_coroutine {
        auto [a, b] = co_await when_all(place_of_child(), place_of_child());
        std::vector<task<support::place>> tasks;
        tasks.push_back(place_of_child());
        places = co_await when_all(std::move(tasks));
        places.push_back(a);
        places.push_back(b);
    };
    auto r = root();
    r.start(&loop, &who);
    REQUIRE(places.size() == 3);
    std::set<std::uint64_t> numbers{who.id()};
    for (const support::place& p : places) {
        CHECK(p.where == &loop);
        CHECK(p.parent == who.id());
        numbers.insert(p.context);
    }
    CHECK(numbers.size() == 4);
}

TEST_CASE("when_all: awaited by a coroutine without hooks the tasks are contexts without parents",
          "[when_all]")
{
    support::place found{nullptr, 0, 1};
    const auto root = [&]() -> support::fire_and_forget {
        auto [p] = co_await when_all(place_of_child());
        found = p;
    };
    root();
    CHECK(found.where == nullptr);
    CHECK(found.context != 0);
    CHECK(found.parent == 0);
}

TEST_CASE("when_all: destroyed while it waits, it destroys the tasks that wait", "[when_all]")
{
    support::gate first;
    support::gate second;
    bool gone[3] = {};
    const auto wait = [](support::gate& g, support::flag_on_destruction) -> task<> { co_await g; };
    const auto quick = [](support::flag_on_destruction) -> task<> { co_return; };
    const auto root = [&]() -> support::hooked_coroutine {
        co_await when_all(wait(first, support::flag_on_destruction{gone[0]}),
                          quick(support::flag_on_destruction{gone[1]}),
                          wait(second, support::flag_on_destruction{gone[2]}));
    };
    auto r = root();
    r.start(nullptr);
    CHECK_FALSE(gone[0]);
    r.destroy();
    CHECK(gone[0]);
    CHECK(gone[1]);
    CHECK(gone[2]);
}

TEST_CASE("when_all: it nests, and a great many tasks need no stack", "[when_all]")
{
    const int count = support::scaled(100'000);
    const auto parent = [&]() -> task<std::size_t> {
        std::vector<task<int>> tasks;
        for (int i = 0; i < count; ++i)
            tasks.push_back(number(i));
        auto [numbers, rest] = co_await when_all(when_all(std::move(tasks)), when_all(number(1)));
        co_return numbers.size();
    };
    CHECK(sync_wait(parent()) == static_cast<std::size_t>(count));
}

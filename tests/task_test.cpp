// SPDX-License-Identifier: BSL-1.0
// Without this file a task may start early, end twice, lose its result or its place, or grow the stack.
#include <amux/task.hpp>

#include <amux/context.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/sync_wait.hpp>

#include "support/death.hpp"
#include "support/foreign_coroutine.hpp"
#include "support/probe.hpp"
#include "support/scale.hpp"

#include <catch2/catch_test_macros.hpp>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

using amux::sync_wait;
using amux::task;
using support::fire_and_forget;

static_assert(std::is_nothrow_move_constructible_v<task<int>>);
static_assert(std::is_nothrow_move_assignable_v<task<int>>);
static_assert(std::is_nothrow_swappable_v<task<int>>);
static_assert(!std::is_copy_constructible_v<task<int>>);
static_assert(!std::is_copy_assignable_v<task<int>>);
static_assert(std::is_same_v<task<>, task<void>>);

namespace {

task<int> give(int i)
{
    co_return i;
}

task<> mark(bool& begun)
{
    begun = true;
    co_return;
}

task<> fail(const char* why)
{
    throw std::runtime_error{why};
    co_return;
}

// It must be destroyed where it was made, as a guard must.
struct pinned {
    pinned() = default;
    pinned(pinned&& other) noexcept { copied |= other.self != &other; }
    pinned& operator=(pinned&&) = delete;
    ~pinned() { copied |= self != this; }

    pinned* self = this;
    static inline bool copied = false;
};

} // namespace

TEST_CASE("task: it begins when it is awaited, and not before", "[task]")
{
    bool begun = false;
    task<> t = mark(begun);
    CHECK_FALSE(begun);
    sync_wait(std::move(t));
    CHECK(begun);
}

TEST_CASE("task: it gives a value that can only be moved", "[task]")
{
    const auto make = []() -> task<std::unique_ptr<int>> { co_return std::make_unique<int>(7); };
    const std::unique_ptr<int> result = sync_wait(make());
    CHECK(*result == 7);
}

TEST_CASE("task: it gives a reference to the very object", "[task]")
{
    int object = 1;
    const auto refer = [](int& i) -> task<int&> { co_return i; };
    CHECK(&sync_wait(refer(object)) == &object);
}

TEST_CASE("task: it gives what converts to its type, and what is written in braces", "[task]")
{
    const auto text = []() -> task<std::string> { co_return "text"; };
    const auto pair = []() -> task<std::pair<int, int>> { co_return {1, 2}; };
    CHECK(sync_wait(text()) == "text");
    CHECK(sync_wait(pair()).second == 2);
}

TEST_CASE("task: a result that knows its own address arrives whole", "[task]")
{
    pinned::copied = false;
    const auto inner = []() -> task<pinned> {
        pinned p;
        co_return p;
    };
    const auto outer = [&]() -> task<pinned> {
        pinned p = co_await inner();
        co_return p;
    };
    {
        const pinned p = sync_wait(outer());
    }
    CHECK_FALSE(pinned::copied);
}

TEST_CASE("task: an exception that leaves it is thrown where it is awaited", "[task]")
{
    const auto catcher = []() -> task<std::string> {
        std::string caught;
        try {
            co_await fail("inner");
        } catch (const std::runtime_error& e) {
            caught = e.what();
        }
        co_return caught;
    };
    CHECK(sync_wait(catcher()) == "inner");
    CHECK_THROWS_AS(sync_wait(fail("outer")), std::runtime_error);
}

TEST_CASE("task: a moved-from, a default and an awaited task are empty", "[task]")
{
    task<int> a = give(1);
    CHECK(a.valid());
    task<int> b = std::move(a);
    CHECK_FALSE(a.valid()); // NOLINT(bugprone-use-after-move)
    CHECK(static_cast<bool>(b));
    CHECK_FALSE(task<int>{}.valid());

    a = give(2);
    std::swap(a, b);
    const auto await_both = [](task<int>& x, task<int>& y) -> task<int> {
        const int first = co_await std::move(x);
        const int second = co_await std::move(y);
        co_return 10 * first + second;
    };
    CHECK(sync_wait(await_both(a, b)) == 12);
    CHECK_FALSE(a.valid()); // NOLINT(bugprone-use-after-move)
}

TEST_CASE("task: one that is never awaited destroys its parameters, and nothing else happens",
          "[task]")
{
    bool begun = false;
    bool gone = false;
    const auto keep = [](bool& b, support::flag_on_destruction) -> task<> {
        b = true;
        co_return;
    };
    {
        const task<> t = keep(begun, support::flag_on_destruction{gone});
        CHECK_FALSE(gone);
    }
    CHECK(gone);
    CHECK_FALSE(begun);
}

TEST_CASE("task: assigning to it destroys the coroutine that it had", "[task]")
{
    bool gone = false;
    const auto keep = [](support::flag_on_destruction) -> task<> { co_return; };
    task<> t = keep(support::flag_on_destruction{gone});
    t = task<>{};
    CHECK(gone);
}

TEST_CASE("task: its parameters live until the end of the expression that awaits it", "[task]")
{
    bool gone = false;
    const auto keep = [](support::flag_on_destruction, bool& g) -> task<bool*> { co_return &g; };
    const auto look = [&]() -> task<std::pair<bool, bool>> {
        const bool within = *co_await keep(support::flag_on_destruction{gone}, gone);
        co_return std::pair{within, gone};
    };
    CHECK(sync_wait(look()) == std::pair{false, true});
}

TEST_CASE("task: destroying a chain that waits destroys all of it, the innermost first", "[task]")
{
    support::gate gate;
    std::string order;
    struct note {
        std::string& to;
        char what;
        ~note() { to += what; }
    };
    const auto inner = [&]() -> task<> {
        const note n{order, 'i'};
        co_await gate;
    };
    const auto outer = [&]() -> task<> {
        const note n{order, 'o'};
        co_await inner();
    };
    const auto root = [&]() -> support::hooked_coroutine { co_await outer(); };
    {
        auto r = root();
        r.start(nullptr);
        REQUIRE(gate.is_awaited());
        CHECK(order.empty());
    }
    CHECK(order == "io");
}

TEST_CASE("task: it hands its scheduler and its context to the tasks that it awaits", "[task]")
{
    amux::manual_event_loop loop;
    const amux::context who;
    support::place outer_place;
    support::place inner_place;
    const auto inner = [&]() -> task<> { inner_place = co_await support::my_place{}; };
    const auto outer = [&]() -> task<> {
        outer_place = co_await support::my_place{};
        co_await inner();
    };
    const auto root = [&]() -> support::hooked_coroutine { co_await outer(); };
    auto r = root();
    r.start(&loop, &who);
    REQUIRE(r.done());
    CHECK(outer_place.where == &loop);
    CHECK(inner_place.where == &loop);
    CHECK(outer_place.context == who.id());
    CHECK(inner_place.context == who.id());
}

TEST_CASE("task: awaited by a coroutine without hooks it has no scheduler and no context", "[task]")
{
    support::place found{reinterpret_cast<amux::scheduler*>(&found), 1, 1};
    const auto child = [&]() -> task<> { found = co_await support::my_place{}; };
    const auto root = [&]() -> fire_and_forget { co_await child(); };
    root();
    CHECK(found.where == nullptr);
    CHECK(found.context == 0);
}

TEST_CASE("task: awaited through a type-erased handle it has no scheduler and no context", "[task]")
{
    struct erasing {
        explicit erasing(task<support::place> t) : inner{std::move(t).operator co_await()} {}
        amux::detail::task_awaiter<support::place> inner;
        bool await_ready() const noexcept { return false; }
        bool await_suspend(std::coroutine_handle<> h) noexcept { return inner.await_suspend(h); }
        support::place await_resume() { return inner.await_resume(); }
    };
    amux::manual_event_loop loop;
    support::place found{&loop, 1, 1};
    const auto child = []() -> task<support::place> {
        const support::place here = co_await support::my_place{};
        co_return here;
    };
    const auto root = [&]() -> support::hooked_coroutine { found = co_await erasing{child()}; };
    auto r = root();
    r.start(&loop);
    REQUIRE(r.done());
    CHECK(found.where == nullptr);
    CHECK(found.context == 0);
}

TEST_CASE("task: it resumes who awaits it inside the call that lets it end", "[task]")
{
    support::gate gate;
    bool ended = false;
    const auto child = [&]() -> task<int> {
        co_await gate;
        co_return 5;
    };
    const auto root = [&]() -> fire_and_forget {
        const int i = co_await child();
        ended = i == 5;
    };
    root();
    CHECK_FALSE(ended);
    gate.open();
    CHECK(ended);
}

TEST_CASE("task: one that ends on another thread shows its result to who awaits it", "[task]")
{
    support::gate gate;
    std::string result;
    const auto child = [&]() -> task<std::string> {
        co_await gate;
        co_return "from the other thread";
    };
    const auto root = [&]() -> fire_and_forget { result = co_await child(); };
    root();
    std::thread other{[&] { gate.open(); }};
    other.join();
    CHECK(result == "from the other thread");
}

namespace {

// How far apart the stack pointers are that were seen.
struct stack_extent {
    std::uintptr_t low = UINTPTR_MAX;
    std::uintptr_t high = 0;

    [[gnu::noinline]] void look() noexcept
    {
        const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
        low = here < low ? here : low;
        high = here > high ? here : high;
    }
    std::size_t size() const noexcept { return high - low; }
};

} // namespace

TEST_CASE("task: a million that end at once, awaited in a loop, need the stack of one", "[task]")
{
    stack_extent extent;
    const auto child = [&](int i) -> task<int> {
        extent.look();
        co_return i;
    };
    const auto root = [&](int rounds) -> task<std::int64_t> {
        std::int64_t sum = 0;
        for (int i = 0; i < rounds; ++i)
            sum += co_await child(i);
        co_return sum;
    };
    const int rounds = support::scaled(1'000'000);
    CHECK(sync_wait(root(rounds)) == std::int64_t{rounds} * (rounds - 1) / 2);
    CHECK(extent.size() == 0);
}

TEST_CASE("task: those that wait and end one after another need the stack of one", "[task]")
{
    stack_extent extent;
    amux::event_loop loop;
    const auto child = [&]() -> task<> {
        co_await loop.schedule();
        extent.look();
    };
    const auto root = [&](int rounds) -> task<> {
        for (int i = 0; i < rounds; ++i)
            co_await child();
    };
    loop.block_on(root(support::scaled(100'000)));
    CHECK(extent.size() == 0);
}

TEST_CASE("task: one that is awaited twice ends the program with a message", "[task][death]")
{
    const std::string said = support::death_of([] {
        const auto twice = []() -> task<> {
            task<int> t = give(1);
            co_await std::move(t);
            co_await std::move(t); // NOLINT(bugprone-use-after-move)
        };
        sync_wait(twice());
    });
    CHECK(said.starts_with("amux: a task is started that is empty"));
}

TEST_CASE("task: an empty one given to a loop ends the program with a message", "[task][death]")
{
    const std::string said = support::death_of([] { sync_wait(task<int>{}); });
    CHECK(said.starts_with("amux: a task is started that is empty"));
}

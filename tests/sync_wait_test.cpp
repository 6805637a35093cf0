// SPDX-License-Identifier: BSL-1.0
// Without this file a thread may wait for a coroutine for ever, or go on without its result.
#include <amux/sync_wait.hpp>

#include <amux/task.hpp>

#include "support/probe.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <coroutine>
#include <memory>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>

using amux::sync_wait;
using amux::task;
using namespace std::chrono_literals;

namespace {

struct ready_awaiter {
    int value;
    bool await_ready() const noexcept { return true; }
    void await_suspend(std::coroutine_handle<>) const noexcept {}
    int await_resume() const noexcept { return value; }
};

struct with_member {
    int value;
    ready_awaiter operator co_await() const noexcept { return {value}; }
};

struct with_free {
    int value;
};
ready_awaiter operator co_await(with_free f) noexcept
{
    return {f.value};
}

struct only_once {
    std::unique_ptr<int> value = std::make_unique<int>(4);
    struct awaiter {
        std::unique_ptr<int>& value;
        bool await_ready() const noexcept { return true; }
        void await_suspend(std::coroutine_handle<>) const noexcept {}
        std::unique_ptr<int>&& await_resume() const noexcept { return std::move(value); }
    };
    awaiter operator co_await() && noexcept { return {value}; }
};

} // namespace

TEST_CASE("sync_wait: it gives the result of a task", "[sync_wait]")
{
    const auto give = []() -> task<int> { co_return 3; };
    CHECK(sync_wait(give()) == 3);
    static_assert(std::is_void_v<decltype(sync_wait(std::declval<task<>>()))>);
    static_assert(std::is_same_v<decltype(sync_wait(std::declval<task<int&>>())), int&>);
}

TEST_CASE("sync_wait: it takes whatever can be awaited, in whatever way", "[sync_wait]")
{
    CHECK(sync_wait(ready_awaiter{1}) == 1);
    CHECK(sync_wait(with_member{2}) == 2);
    CHECK(sync_wait(with_free{3}) == 3);
    const with_member lvalue{5};
    CHECK(sync_wait(lvalue) == 5);
    // A reference into what is awaited would dangle.
    static_assert(std::is_same_v<decltype(sync_wait(only_once{})), std::unique_ptr<int>>);
    CHECK(*sync_wait(only_once{}) == 4);
}

TEST_CASE("sync_wait: it throws what the awaited one throws", "[sync_wait]")
{
    const auto fail = []() -> task<> {
        throw std::runtime_error{"no"};
        co_return;
    };
    CHECK_THROWS_AS(sync_wait(fail()), std::runtime_error);
}

TEST_CASE("sync_wait: what it runs has a scheduler with real time, and a context", "[sync_wait]")
{
    const auto look = []() -> task<support::place> {
        const support::place here = co_await support::my_place{};
        co_return here;
    };
    const support::place a = sync_wait(look());
    const support::place b = sync_wait(look());
    CHECK(a.where != nullptr);
    CHECK(a.context != 0);
    CHECK(a.context != b.context);

    const auto sleep = []() -> task<bool> {
        const support::place here = co_await support::my_place{};
        const auto now = here.where->now();
        const bool up = co_await amux::detail::sleep_awaiter{*here.where, now + 1ms, {}};
        co_return up&& here.where->now() >= now + 1ms;
    };
    CHECK(sync_wait(sleep()));
}

TEST_CASE("sync_wait: the thread goes on when another thread lets the coroutine end", "[sync_wait]")
{
    // The other thread waits for the coroutine to wait: no sleeping for luck.
    struct handed_over {
        std::thread& other;
        bool await_ready() const noexcept { return false; }
        void await_suspend(std::coroutine_handle<> h) const
        {
            other = std::thread{[h] { h.resume(); }};
        }
        int await_resume() const noexcept { return 6; }
    };
    std::thread other;
    CHECK(sync_wait(handed_over{other}) == 6);
    other.join();
}

TEST_CASE("sync_wait: it may be called inside a coroutine that another one runs", "[sync_wait]")
{
    const auto inner = []() -> task<int> { co_return 1; };
    const auto outer = [&]() -> task<int> { co_return 1 + sync_wait(inner()); };
    CHECK(sync_wait(outer()) == 2);
}

TEST_CASE("sync_wait: an awaiter that cannot be copied is awaited where it is", "[sync_wait]")
{
    struct pinned {
        pinned() = default;
        pinned(const pinned&) = delete;
        bool await_ready() const noexcept { return true; }
        void await_suspend(std::coroutine_handle<>) const noexcept {}
        int await_resume() const noexcept { return 4; }
    };
    CHECK(sync_wait(pinned{}) == 4);
    pinned named;
    CHECK(sync_wait(named) == 4);
    CHECK(sync_wait(std::move(named)) == 4);
}

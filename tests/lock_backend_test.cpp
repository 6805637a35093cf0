// SPDX-License-Identifier: BSL-1.0
// Without this file a store of another author may not fit, and its callers may be resumed anywhere.
#include "support/death.hpp"
#include "support/foreign_coroutine.hpp"
#include "support/lease_bench.hpp"

#include <amux/distributed_lock.hpp>
#include <amux/lock_backend.hpp>
#include <amux/memory_backend.hpp>
#include <amux/task.hpp>
#include <amux/testing/scripted_backend.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <coroutine>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

using namespace std::chrono_literals;
using amux::acquire_result;
using amux::acquired_lock;
using amux::distributed_lock;
using amux::memory_backend;
using amux::task;
using std::string_view;
using support::asked;
using milliseconds = std::chrono::milliseconds;

namespace {

// Ways to be awaitable.

template <class T>
struct plain {
    T value;
    bool await_ready() const noexcept { return true; }
    void await_suspend(std::coroutine_handle<>) const noexcept {}
    T await_resume() { return std::move(value); }
};

template <class T>
struct by_member {
    T value;
    plain<T> operator co_await() && { return {std::move(value)}; }
};

template <class T>
struct by_function {
    T value;
};
template <class T>
plain<T> operator co_await(by_function<T>&& a)
{
    return {std::move(a.value)};
}

template <class T>
struct by_task {
    static task<T> of(T value) { co_return value; }
};

template <template <class> class Way, class T>
auto answer(T value)
{
    if constexpr (std::is_same_v<Way<T>, by_task<T>>)
        return by_task<T>::of(std::move(value));
    else
        return Way<T>{std::move(value)};
}

/// The four operations, each awaitable in the same way; `Answer` is what acquire gives.
template <template <class> class Way, class Answer = bool>
struct four {
    std::shared_ptr<memory_backend> store;

    auto acquire(string_view key, string_view token, milliseconds ttl)
    {
        const acquire_result r = store->acquire(key, token, ttl).await_resume();
        if constexpr (std::is_same_v<Answer, bool>)
            return answer<Way>(r.acquired);
        else
            return answer<Way>(r);
    }
    auto extend(string_view key, string_view token, milliseconds ttl)
    {
        return answer<Way>(store->extend(key, token, ttl).await_resume());
    }
    auto release(string_view key, string_view token)
    {
        return answer<Way>(store->release(key, token).await_resume());
    }
    auto get(string_view key) { return answer<Way>(store->get(key).await_resume()); }
};

struct immovable : four<plain, acquire_result> {
    explicit immovable(std::shared_ptr<memory_backend> s) : four{std::move(s)} {}
    immovable(immovable&&) = delete;
};

struct move_only : four<by_task> {
    explicit move_only(std::shared_ptr<memory_backend> s) : four{std::move(s)} {}
    move_only(move_only&&) = default;
};

// The concepts: what fits, and for each requirement one that lacks it.

using amux::lock_backend;

static_assert(lock_backend<four<plain>>);
static_assert(lock_backend<four<by_member>>);
static_assert(lock_backend<four<by_function>>);
static_assert(lock_backend<four<by_task>>);
static_assert(lock_backend<four<plain, acquire_result>>);
static_assert(lock_backend<immovable>);
static_assert(lock_backend<memory_backend>);
static_assert(lock_backend<amux::testing::scripted_backend>);

static_assert(amux::fencing_backend<four<plain, acquire_result>>);
static_assert(!amux::fencing_backend<four<plain>>);
static_assert(!amux::metadata_backend<four<plain>>);
static_assert(!amux::notifying_backend<four<plain>>);
static_assert(!amux::inspecting_backend<four<plain>>);
static_assert(amux::fencing_backend<memory_backend>);
static_assert(amux::metadata_backend<memory_backend>);
static_assert(amux::notifying_backend<memory_backend>);
static_assert(amux::inspecting_backend<memory_backend>);

struct no_acquire : four<plain> {
    void acquire(string_view, string_view, milliseconds) = delete;
};
struct acquire_gives_int : four<plain> {
    plain<int> acquire(string_view, string_view, milliseconds);
};
struct acquire_not_awaitable : four<plain> {
    bool acquire(string_view, string_view, milliseconds);
};
struct no_extend : four<plain> {
    void extend(string_view, string_view, milliseconds) = delete;
};
struct extend_gives_int : four<plain> {
    plain<int> extend(string_view, string_view, milliseconds);
};
struct no_release : four<plain> {
    void release(string_view, string_view) = delete;
};
struct release_gives_nothing : four<plain> {
    task<> release(string_view, string_view);
};
struct no_get : four<plain> {
    void get(string_view) = delete;
};
struct get_gives_string : four<plain> {
    plain<std::string> get(string_view);
};
static_assert(!lock_backend<no_acquire>);
static_assert(!lock_backend<acquire_gives_int>);
static_assert(!lock_backend<acquire_not_awaitable>);
static_assert(!lock_backend<no_extend>);
static_assert(!lock_backend<extend_gives_int>);
static_assert(!lock_backend<no_release>);
static_assert(!lock_backend<release_gives_nothing>);
static_assert(!lock_backend<no_get>);
static_assert(!lock_backend<get_gives_string>);
static_assert(!lock_backend<int>);

/// The life of two leases, whatever the store is like.
template <class Locks>
void live_and_let_go(amux::manual_event_loop& loop, Locks& locks, memory_backend& store)
{
    asked l{loop, locks.acquire("k", {.ttl = 1s, .renew = true})};
    asked waits{loop, locks.acquire("k", {.poll_interval = 10ms})};
    asked now{loop, locks.try_acquire("k")};
    loop.run_ready();
    REQUIRE(l.state() == "done");
    CHECK(store.get("k").await_resume() == l.value().token());
    CHECK(waits.state() == "waits");
    CHECK_FALSE(now.value());
    for (int i = 0; i < 30; ++i) {
        loop.advance(100ms);
        loop.run_ready();
    }
    CHECK(l.value().is_held());
    asked seen{loop, locks.inspect("k")};
    asked ours{loop, l.value().verify()};
    loop.run_ready();
    CHECK(seen.value()->token == l.value().token());
    CHECK(ours.value());
    asked released{loop, l.value().release()};
    loop.run_ready();
    CHECK(released.value());
    CHECK(waits.state() == "done");
    waits.drop();
    asked drained{loop, locks.drain(1s)};
    loop.run_ready();
    CHECK(drained.value());
    CHECK(store.size() == 0);
}

} // namespace

TEMPLATE_TEST_CASE("lock_backend: operations may be awaitable in any way", "[lease][backend]",
                   four<plain>, four<by_member>, four<by_function>, four<by_task>,
                   (four<plain, acquire_result>), (four<by_task, acquire_result>))
{
    amux::manual_event_loop loop;
    const auto store = std::make_shared<memory_backend>(loop);
    SECTION("an lvalue")
    {
        TestType backend{store};
        distributed_lock locks{backend, loop};
        live_and_let_go(loop, locks, *store);
    }
    SECTION("an rvalue")
    {
        distributed_lock locks{TestType{store}, loop};
        live_and_let_go(loop, locks, *store);
    }
}

TEST_CASE("lock_backend: one that only moves, and one that does not", "[lease][backend]")
{
    amux::manual_event_loop loop;
    const auto store = std::make_shared<memory_backend>(loop);
    SECTION("only moves")
    {
        distributed_lock locks{move_only{store}, loop};
        live_and_let_go(loop, locks, *store);
    }
    SECTION("does not")
    {
        immovable backend{store};
        distributed_lock locks{backend, loop};
        live_and_let_go(loop, locks, *store);
    }
}

TEST_CASE("lock_backend: a backend that was moved in goes with its lock", "[lease][backend]")
{
    amux::manual_event_loop loop;
    const auto store = std::make_shared<memory_backend>(loop);
    {
        distributed_lock locks{four<plain>{store}, loop};
        asked l{loop, locks.acquire("k", {.ttl = 1s, .renew = true})};
        loop.run_ready();
        CHECK(store.use_count() == 2);
        l.drop();
    }
    CHECK(store.use_count() == 1);
}

// Where callers are resumed.

namespace {

struct two_loops {
    amux::manual_event_loop loop; // of the lock
    amux::manual_event_loop home; // of the callers
    amux::testing::scripted_backend store{loop};
    distributed_lock<amux::testing::scripted_backend&> locks{store, loop};
};

} // namespace

TEST_CASE("distributed_lock: a caller is resumed at its own place, by every call",
          "[lease][places]")
{
    two_loops b;
    std::string trace;
    auto fn = [&](acquired_lock&) { trace += 'f'; };
    auto caller = [&]() -> task<> {
        acquired_lock l = co_await b.locks.acquire("k", {.ttl = 1s});
        trace += 'a';
        std::optional<acquired_lock> none = co_await b.locks.try_acquire("k");
        trace += 't';
        co_await l.extend();
        trace += 'e';
        co_await l.verify();
        trace += 'v';
        co_await b.locks.inspect("k");
        trace += 'i';
        co_await l.release();
        trace += 'r';
        co_await l.ended();
        trace += 'E';
        co_await b.locks.release("k", "nobody");
        trace += 'R';
        co_await b.locks.with_lock("k", fn);
        trace += 'w';
        co_await b.locks.run_as_leader("k", fn);
        trace += 'l';
        co_await b.locks.drain(1s);
        trace += 'd';
    };
    asked run{b.home, caller()};
    while (run.state() == "waits") {
        const std::string before = trace;
        b.loop.run_ready();
        REQUIRE(trace == before); // nothing of the caller's runs on the lock's loop
        REQUIRE(b.home.run_ready() > 0);
    }
    CHECK(run.state() == "done");
    CHECK(trace == "atevirERfwfld");
}

TEST_CASE("distributed_lock: errors come home, too", "[lease][places]")
{
    two_loops b;
    b.store.always(amux::testing::operation::acquire,
                   amux::testing::course::fails(amux::backend_error_kind::permanent));
    asked run{b.home, b.locks.acquire("k")};
    b.home.run_ready();
    b.loop.run_ready();
    CHECK(run.state() == "waits");
    b.home.run_ready();
    CHECK(run.state() == "trouble");
}

TEST_CASE("distributed_lock: a foreign coroutine is resumed where its hook says, or on the loop",
          "[lease][places]")
{
    two_loops b;
    int resumed = 0;
    const auto foreign = [](two_loops& all, int& count) -> support::hooked_coroutine {
        acquired_lock l = co_await all.locks.acquire("k");
        ++count;
        co_await l.release();
        ++count;
    };
    const auto simple = [](two_loops& all, int& count) -> support::fire_and_forget {
        acquired_lock l = co_await all.locks.acquire("k");
        ++count;
        co_await l.release();
        ++count;
    };
    SECTION("its hook gives a scheduler")
    {
        auto c = foreign(b, resumed);
        c.start(&b.home);
        b.loop.run_ready();
        CHECK(resumed == 0);
        b.home.run_ready();
        CHECK(resumed == 1);
        b.loop.run_ready();
        CHECK(resumed == 1);
        b.home.run_ready();
        CHECK(resumed == 2);
    }
    SECTION("its hook gives none")
    {
        auto c = foreign(b, resumed);
        c.start(nullptr);
        b.loop.run_ready();
        CHECK(resumed == 2);
    }
    SECTION("it has no hook")
    {
        simple(b, resumed);
        CHECK(resumed == 0);
        b.loop.run_ready();
        CHECK(resumed == 2);
    }
    CHECK(b.home.run_ready() == 0);
}

// Lifetimes.

TEST_CASE("distributed_lock: destroyed before a lease of it, it ends the program", "[lease][death]")
{
    amux::manual_event_loop loop;
    memory_backend store{loop};
    auto locks = std::make_unique<distributed_lock<memory_backend&>>(store, loop);
    asked l{loop, locks->acquire("k")};
    loop.run_ready();
    REQUIRE(l.state() == "done");
    const std::string live = support::death_of([&] { locks = nullptr; });
    CHECK(live.find("destroyed before a lease that it has granted") != std::string::npos);
    // One that is over is a handle all the same.
    asked answer{loop, l.value().release()};
    loop.run_ready();
    const std::string over = support::death_of([&] { locks = nullptr; });
    CHECK(over.find("destroyed before a lease that it has granted") != std::string::npos);
    l.drop();
    locks = nullptr;
}

TEST_CASE("distributed_lock: destroyed while a call is awaited, it ends the program",
          "[lease][death]")
{
    amux::manual_event_loop loop;
    memory_backend store{loop};
    REQUIRE(store.acquire("k", "stranger", 1h).await_resume().acquired);
    auto locks = std::make_unique<distributed_lock<memory_backend&>>(store, loop);
    asked waits{loop, locks->acquire("k")};
    loop.run_ready();
    const std::string text = support::death_of([&] { locks = nullptr; });
    CHECK(text.find("destroyed while a call of it is awaited") != std::string::npos);
    asked drained{loop, locks->drain(1s)};
    loop.run_ready();
    CHECK(waits.state() == "closed");
    locks = nullptr;
}

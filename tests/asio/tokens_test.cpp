// SPDX-License-Identifier: BSL-1.0
// Without this file nobody knows whether locks, leases and tasks do in Asio what its users are used to.
#include "asio/support/library.hpp"
#include "support/allocation_counter.hpp"

#include <amux/amux.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using mux_type = amux::asyncmux<>;
using guard_type = mux_type::guard;
using told = support::told<guard_type>;

namespace {

/// Counts what it has given and not got back.
template <class T>
struct counting_allocator {
    using value_type = T;

    explicit counting_allocator(int& n) : live{&n} {}
    template <class U>
    counting_allocator(const counting_allocator<U>& other) : live{other.live}
    {}
    T* allocate(std::size_t n)
    {
        ++*live;
        return std::allocator<T>{}.allocate(n);
    }
    void deallocate(T* p, std::size_t n)
    {
        --*live;
        std::allocator<T>{}.deallocate(p, n);
    }
    bool operator==(const counting_allocator&) const = default;

    int* live;
};

/// Keeps what it is to run; it has a context that runs nothing.
struct plain_executor {
    struct job {
        virtual ~job() = default;
        virtual void run() = 0;
    };
    using queue = std::deque<std::unique_ptr<job>>;

    template <class F>
    void execute(F f) const
    {
        struct one : job {
            explicit one(F g) : function{std::move(g)} {}
            void run() override { function(); }
            F function;
        };
        jobs->push_back(std::make_unique<one>(std::move(f)));
    }
    static constexpr asio::execution::blocking_t query(asio::execution::blocking_t::never_t)
    {
        return asio::execution::blocking.never;
    }
    asio::execution_context& query(asio::execution::context_t) const { return *context; }
    bool operator==(const plain_executor&) const = default;

    queue* jobs;
    asio::execution_context* context;
};

void run(plain_executor::queue& jobs)
{
    for (; !jobs.empty(); jobs.pop_front())
        jobs.front()->run();
}

/// A key that cannot be copied any more, once that is said.
struct fragile_key {
    explicit fragile_key(bool& b) : broken{&b} {}
    fragile_key(const fragile_key& other) : broken{other.broken}
    {
        if (*broken)
            throw std::length_error{"no copy"};
    }
    fragile_key(fragile_key&&) noexcept = default;
    fragile_key& operator=(fragile_key&&) noexcept = default;
    bool operator==(const fragile_key&) const = default;

    bool* broken;
};
struct hash_of_fragile {
    std::size_t operator()(const fragile_key&) const noexcept { return 1; }
};

asio::awaitable<void> lock_twice(mux_type& mux, std::string& log, char name)
{
    for (int i = 0; i != 2; ++i) {
        const auto guard = co_await mux.lock("k");
        log += name;
        co_await asio::post(asio::use_awaitable); // the others run, and wait
        log += name;
    }
}

} // namespace

TEST_CASE("asio: an awaitable awaits a lock like any other coroutine, and they take turns",
          "[asio]")
{
    mux_type mux;
    asio::io_context io;
    std::string log;
    asio::co_spawn(io, lock_twice(mux, log, 'a'), asio::detached);
    asio::co_spawn(io, lock_twice(mux, log, 'b'), asio::detached);
    support::run(io);
    CHECK(log == "aabbaabb");
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio: every form of a lock may be awaited directly", "[asio]")
{
    mux_type mux;
    asio::io_context io;
    const auto work = [](mux_type& m) -> asio::awaitable<void> {
        const std::vector<std::string> keys{"a", "b"};
        {
            const auto one = co_await m.lock_shared("k");
            const auto all = co_await m.lock_shared();
            CHECK(one.mode() == amux::lock_mode::shared);
            CHECK(all.owns_lock());
        }
        {
            const auto both = co_await m.lock_all(keys);
            CHECK(m.tracked_keys() == 2);
            const auto none = co_await m.try_lock_for("a", 1ms);
            CHECK_FALSE(none.owns_lock());
            const auto other = co_await m.try_lock_until("c", amux::clock::now() + 1min);
            CHECK(other.owns_lock());
        }
        const auto whole = co_await m.lock();
        CHECK_FALSE(m.try_lock("k").owns_lock());
    };
    support::run(io, work(mux));
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio: every function that takes a token locks what its name says", "[asio]")
{
    mux_type mux;
    asio::io_context io;
    const auto work = [](mux_type& m) -> asio::awaitable<void> {
        const auto& token = asio::use_awaitable;
        const std::vector<std::string> keys{"a", "b"}; // g++ takes no braces in a co_await
        {
            const auto all = co_await amux::async_lock_all(m, keys, token);
            CHECK(m.tracked_keys() == 2);
            CHECK_FALSE(m.try_lock_shared("b").owns_lock());
            const auto none = co_await amux::async_try_lock_shared_for(m, "a", 1ms, token);
            CHECK_FALSE(none.owns_lock());
        }
        {
            const auto all = co_await amux::async_lock_all_shared(m, keys, token);
            const auto beside = co_await amux::async_try_lock_shared_for(m, "a", 1min, token);
            CHECK(beside.owns_lock());
            CHECK_FALSE(m.try_lock("b").owns_lock());
            const auto whole = co_await amux::async_lock_shared(m, token);
            CHECK_FALSE(m.try_lock("c").owns_lock());
        }
        const auto whole = co_await amux::async_lock(m, token);
        CHECK_FALSE(m.try_lock_shared("c").owns_lock());
    };
    support::run(io, work(mux));
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio: an awaitable goes on where its executor runs", "[asio]")
{
    mux_type mux;
    asio::thread_pool pool{1};
    auto guard = mux.try_lock("k");
    std::promise<std::thread::id> where;
    const auto work = [](mux_type& m, std::promise<std::thread::id>& p) -> asio::awaitable<void> {
        const auto g = co_await m.lock("k");
        p.set_value(std::this_thread::get_id());
    };
    asio::co_spawn(pool, work(mux, where), asio::detached);
    std::promise<std::thread::id> pool_thread;
    asio::post(pool, [&] { pool_thread.set_value(std::this_thread::get_id()); });
    const auto there = pool_thread.get_future().get();
    guard.unlock(); // here
    CHECK(where.get_future().get() == there);
    pool.join();
}

TEST_CASE("asio: an error of amux is thrown where the lock is awaited", "[asio]")
{
    mux_type mux{{.max_waiters = 0}};
    asio::io_context io;
    const auto guard = mux.try_lock("k");
    const auto direct = [](mux_type& m) -> asio::awaitable<void> {
        const auto g = co_await m.lock("k");
    };
    const auto by_token = [](mux_type& m) -> asio::awaitable<void> {
        const auto g = co_await amux::async_lock(m, "k", asio::use_awaitable);
    };
    const auto deferred = [](mux_type& m) -> asio::awaitable<void> {
        auto later = amux::async_lock(m, "k", asio::deferred);
        const auto g = co_await std::move(later);
    };
    CHECK_THROWS_AS(support::run(io, direct(mux)), amux::lock_queue_full_error);
    CHECK_THROWS_AS(support::run(io, by_token(mux)), amux::lock_queue_full_error);
    mux.close();
    CHECK_THROWS_AS(support::run(io, deferred(mux)), amux::lock_closed_error);
}

TEST_CASE("asio: the handler is called neither in the call that asks nor in the one that releases",
          "[asio]")
{
    mux_type mux;
    asio::io_context io;
    told first;
    told second;
    amux::async_lock(mux, "k", asio::bind_executor(io, first.handler()));
    amux::async_lock(mux, "k", asio::bind_executor(io, second.handler()));
    CHECK(first.times == 0);
    support::run_ready(io);
    CHECK(first.times == 1);
    CHECK(second.times == 0);
    asio::post(io, [&] {
        first.value.unlock();
        CHECK(second.times == 0);
    });
    support::run(io);
    CHECK(second.times == 1);
    CHECK(second.value.owns_lock());
}

TEST_CASE("asio: an operation that waits keeps run from returning", "[asio]")
{
    mux_type mux;
    asio::io_context io;
    auto guard = mux.try_lock("k");
    told t;
    amux::async_lock(mux, "k", asio::bind_executor(io, t.handler()));
    std::jthread releaser{[&] {
        std::this_thread::sleep_for(20ms);
        guard.unlock();
    }};
    support::run(io);
    CHECK(t.times == 1);
    CHECK(t.value.owns_lock());
}

TEST_CASE("asio: a handler without an executor is called on a thread of Asio", "[asio]")
{
    mux_type mux;
    const auto where = std::make_shared<std::promise<std::thread::id>>();
    {
        const auto guard = mux.try_lock("k");
        amux::async_lock(mux, "k", [where](const std::exception_ptr&, guard_type g) {
            g.unlock();
            where->set_value(std::this_thread::get_id());
        });
    }
    CHECK(where->get_future().get() != std::this_thread::get_id());
}

TEST_CASE("asio: an executor of one's own will do, if it tells its context", "[asio]")
{
    mux_type mux{{.max_waiters = 1}};
    plain_executor::queue jobs;
    asio::execution_context context;
    const plain_executor there{&jobs, &context};
    told first;
    told second;
    told third;
    for (told* t : {&first, &second, &third})
        amux::async_lock(mux, "k", asio::bind_executor(there, t->handler()));
    run(jobs);
    CHECK(first.value.owns_lock());
    CHECK(second.times == 0);
    CHECK(third.failed_with<amux::lock_queue_full_error>());
    first.value.unlock();
    CHECK(second.times == 0);
    run(jobs);
    CHECK(second.value.owns_lock());
}

TEST_CASE("asio: what is thrown when a request is made is given to its handler", "[asio]")
{
    amux::asyncmux<fragile_key, amux::multi_threaded, hash_of_fragile, std::equal_to<>> mux;
    asio::io_context io;
    bool broken = false;
    const fragile_key key{broken};
    auto guard = mux.try_lock();
    broken = true;
    support::told<decltype(guard)> t;
    mux.lock(key)(asio::bind_executor(io, t.handler())); // would wait, with a copy
    support::run(io);
    CHECK(t.failed_with<std::length_error>());
    guard.unlock();
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio: use_future gives the lock to a thread that blocks, or the error", "[asio]")
{
    mux_type mux;
    auto guard = mux.try_lock("k");
    auto waits = amux::async_lock(mux, "k", asio::use_future);
    CHECK(waits.wait_for(0s) == std::future_status::timeout);
    guard.unlock();
    const auto got = waits.get();
    CHECK(got.owns_lock());

    auto gives_up = amux::async_try_lock_for(mux, "k", 5ms, asio::use_future);
    const auto none = gives_up.get();
    CHECK_FALSE(none.owns_lock());
    mux.close();
    auto fails = amux::async_lock_shared(mux, asio::use_future);
    CHECK_THROWS_AS((void)fails.get(), amux::lock_closed_error);
}

TEST_CASE("asio: as_tuple gives error and lock as values", "[asio]")
{
    mux_type mux;
    asio::io_context io;
    const auto work = [](mux_type& m) -> asio::awaitable<void> {
        constexpr auto token = asio::as_tuple(asio::use_awaitable);
        auto [error, guard] = co_await amux::async_lock(m, "k", token);
        CHECK_FALSE(error);
        CHECK(guard.owns_lock());
        m.close();
        auto [closed, none] = co_await amux::async_lock(m, "k", token);
        CHECK(closed);
        CHECK_FALSE(none.owns_lock());
    };
    support::run(io, work(mux));
}

TEST_CASE("asio: a deferred lock arrives when it is started, with a key of its own", "[asio]")
{
    mux_type mux;
    asio::io_context io;
    told t;
    {
        std::string key = "a key that is too long to lie inside the string";
        auto later = amux::async_lock(mux, key, asio::deferred);
        key.assign(key.size(), 'x');
        CHECK(mux.tracked_keys() == 0);
        std::move(later)(asio::bind_executor(io, t.handler()));
    }
    support::run(io);
    REQUIRE(t.value.owns_lock());
    CHECK(*t.value.key() == "a key that is too long to lie inside the string");
}

TEST_CASE("asio: an exception of a handler leaves run, and the lock is released", "[asio]")
{
    mux_type mux;
    asio::io_context io;
    const auto throws = [](std::exception_ptr, guard_type) { throw 1; };
    auto guard = mux.try_lock("k");
    amux::async_lock(mux, "k", asio::bind_executor(io, throws)); // waits
    guard.unlock();
    CHECK_THROWS_AS(support::run(io), int);
    amux::async_lock(mux, "k", asio::bind_executor(io, throws)); // does not
    CHECK_THROWS_AS(support::run(io), int);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE(
    "asio: the memory of an operation comes from the handler's allocator, and is back before "
    "the handler runs",
    "[asio]")
{
    mux_type mux;
    asio::io_context io;
    int live = 0;
    int seen = -1;
    auto guard = mux.try_lock("k");
    const auto handler = [&](std::exception_ptr, guard_type) { seen = live; };
    amux::async_lock(
        mux, "k",
        asio::bind_allocator(counting_allocator<char>{live}, asio::bind_executor(io, handler)));
    CHECK(live == 1);
    guard.unlock();
    support::run(io);
    CHECK(seen == 0);
    CHECK(live == 0);
}

TEST_CASE("asio: a lease is awaited, extended and released in an awaitable", "[asio][lease]")
{
    asio::io_context io;
    amux::asio_scheduler loop{io.get_executor()};
    amux::memory_backend store{loop};
    amux::distributed_lock locks{store, loop};
    using locks_type = decltype(locks);
    const auto work = [](locks_type& l) -> asio::awaitable<void> {
        auto lease = co_await l.acquire("k", {.ttl = 10s});
        const auto until = co_await lease.extend(20s);
        CHECK(until == lease.valid_until());
        const auto none = co_await amux::async_try_acquire(l, "k", asio::use_awaitable);
        CHECK_FALSE(none.has_value());
        const bool released = co_await lease.release();
        CHECK(released);
        const auto again = co_await amux::async_acquire(l, "k", asio::use_awaitable);
        CHECK(again.is_held());
        const bool drained = co_await l.drain(1s);
        CHECK(drained);
    };
    support::run(io, work(locks));
    CHECK(store.size() == 0);
}

TEST_CASE("asio: a task is awaited in an awaitable, and is resumed where that runs", "[asio]")
{
    mux_type mux;
    asio::io_context io;
    const auto child = [](mux_type& m) -> amux::task<int> {
        const auto guard = co_await m.try_lock_for("k", 1min);
        co_return guard.owns_lock() ? 1 : 0;
    };
    const auto fails = []() -> amux::task<> {
        throw std::runtime_error{"of the task"};
        co_return;
    };
    int ended = 0;
    const auto no_result = [](int& n) -> amux::task<> {
        ++n;
        co_return;
    };
    const auto work = [&](mux_type& m) -> asio::awaitable<void> {
        co_await no_result(ended);
        const int n = co_await child(m);
        CHECK(n == 1);
        const int result = co_await m.with_lock("k", [] { return 2; });
        CHECK(result == 2);
        co_await fails();
    };
    auto guard = mux.try_lock("k");
    asio::post(io, [&] { guard.unlock(); });
    CHECK_THROWS_AS(support::run(io, work(mux)), std::runtime_error);
    CHECK(ended == 1);
}

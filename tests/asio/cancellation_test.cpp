// SPDX-License-Identifier: BSL-1.0
// Without this file a lock may be lost, or a handler called twice or never, when an operation of Asio is cancelled.
#include "asio/support/library.hpp"
#include "support/scale.hpp"

#include <amux/amux.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <array>
#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <variant>

using namespace std::chrono_literals;
using mux_type = amux::asyncmux<>;
using guard_type = mux_type::guard;
using told = support::told<guard_type>;
constexpr auto terminal = asio::cancellation_type::terminal;

namespace {

/// A request with a slot; it writes its name down when it has got the lock, and in brackets when it was cancelled.
class request {
public:
    request(asio::io_context& io, std::string& log, char name) : io_{io}, log_{log}, name_{name} {}

    auto handler()
    {
        const auto tell = [this](std::exception_ptr e, guard_type g) {
            t.handler()(e, std::move(g));
            if (t.value)
                log_ += name_;
            else
                log_ += std::string{'['} + name_ + ']';
        };
        return asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(io_, tell));
    }

    asio::cancellation_signal signal;
    told t;

private:
    asio::io_context& io_;
    std::string& log_;
    char name_;
};

} // namespace

TEST_CASE("asio cancellation: a request that waits ends with lock_cancelled_error, once",
          "[asio][cancellation]")
{
    mux_type mux;
    asio::io_context io;
    std::string log;
    request a{io, log, 'a'};
    const auto type = GENERATE(asio::cancellation_type::terminal, asio::cancellation_type::partial,
                               asio::cancellation_type::total, asio::cancellation_type::all);
    const auto guard = mux.try_lock("k");
    amux::async_lock(mux, "k", a.handler());
    a.signal.emit(asio::cancellation_type::none);
    support::run_ready(io);
    CHECK(log.empty());
    a.signal.emit(type);
    CHECK(log.empty()); // not inside
    a.signal.emit(type);
    support::run(io);
    CHECK(log == "[a]");
    CHECK(a.t.failed_with<amux::lock_cancelled_error>());
    CHECK_FALSE(a.signal.slot().has_handler());
}

TEST_CASE("asio cancellation: whom a cancelled writer held back gets in at once",
          "[asio][cancellation]")
{
    mux_type mux;
    asio::io_context io;
    std::string log;
    request w{io, log, 'w'};
    request r{io, log, 'r'};
    request s{io, log, 's'};
    const auto reader = mux.try_lock_shared("k");
    amux::async_lock(mux, "k", w.handler());
    amux::async_lock_shared(mux, "k", r.handler());
    amux::async_lock_shared(mux, "k", s.handler());
    w.signal.emit(terminal);
    support::run(io);
    CHECK(log == "[w]rs");
}

TEST_CASE("asio cancellation: wherever in the line it stands, the others keep their order",
          "[asio][cancellation]")
{
    mux_type mux;
    asio::io_context io;
    std::string log;
    std::deque<request> line;
    for (const char name : {'a', 'b', 'c', 'd'})
        line.emplace_back(io, log, name);
    auto guard = mux.try_lock("k");
    for (request& r : line)
        amux::async_lock(mux, "k", r.handler());
    const std::size_t first = GENERATE(0u, 1u, 2u, 3u);
    const std::size_t second = GENERATE(0u, 1u, 2u, 3u);
    line[first].signal.emit(terminal);
    line[second].signal.emit(terminal);
    guard.unlock();
    for (request& r : line) {
        support::run_ready(io);
        r.t.value = {};
    }
    support::run(io);
    std::string wanted;
    for (const std::size_t i : {first, second})
        if (i != second || first != second || wanted.empty())
            wanted += std::string{'['} + "abcd"[i] + ']';
    for (std::size_t i = 0; i != 4; ++i)
        if (i != first && i != second)
            wanted += "abcd"[i];
    CHECK(log == wanted);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio cancellation: between the grant and the handler it changes nothing",
          "[asio][cancellation]")
{
    mux_type mux;
    asio::io_context io;
    std::string log;
    request a{io, log, 'a'};
    const bool at_once = GENERATE(true, false);
    auto guard = at_once ? guard_type{} : mux.try_lock("k");
    amux::async_lock(mux, "k", a.handler());
    guard = {};
    a.signal.emit(terminal);
    support::run(io);
    CHECK(log == "a");
    CHECK(a.t.times == 1);
}

TEST_CASE("asio cancellation: before the operation begins, or after its handler, it is not heard",
          "[asio][cancellation]")
{
    mux_type mux;
    asio::io_context io;
    std::string log;
    request a{io, log, 'a'};
    a.signal.emit(terminal);
    amux::async_lock(mux, "k", a.handler());
    support::run(io);
    CHECK(log == "a");
    a.signal.emit(terminal);
    CHECK(a.t.value.owns_lock());
}

TEST_CASE("asio cancellation: an awaitable that was cancelled before it asks is told by Asio",
          "[asio][cancellation]")
{
    mux_type mux;
    asio::io_context io;
    asio::cancellation_signal signal;
    std::exception_ptr error;
    const auto work = [](mux_type& m) -> asio::awaitable<void> {
        const auto first = co_await m.lock("k");
        co_await asio::post(asio::use_awaitable); // it is cancelled here
        const auto second = co_await m.lock("l");
    };
    asio::co_spawn(
        io, work(mux),
        asio::bind_cancellation_slot(signal.slot(), [&](std::exception_ptr e) { error = e; }));
    io.run_one(); // it has begun
    signal.emit(terminal);
    support::run(io);
    REQUIRE(error);
    CHECK_THROWS_AS(std::rethrow_exception(error), support::system_error);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio cancellation: a timed request that is cancelled, or too late, gets an empty guard",
          "[asio][cancellation]")
{
    mux_type mux;
    asio::io_context io;
    std::string log;
    request a{io, log, 'a'};
    auto guard = mux.try_lock("k");
    const auto start = amux::clock::now();
    SECTION("cancelled")
    {
        amux::async_try_lock_for(mux, "k", 10min, a.handler());
        a.signal.emit(terminal);
    }
    SECTION("too late")
    {
        amux::async_try_lock_for(mux, "k", 5ms, a.handler());
    }
    SECTION("one attempt")
    {
        amux::async_try_lock_for(mux, "k", 0ms, a.handler());
    }
    support::run(io);
    CHECK(log == "[a]");
    CHECK_FALSE(a.t.error);
    CHECK(amux::clock::now() < start + 5min);
}

TEST_CASE("asio cancellation: a timed request that gets its lock disarms its timer",
          "[asio][cancellation]")
{
    mux_type mux;
    asio::io_context io;
    std::string log;
    request a{io, log, 'a'};
    auto guard = mux.try_lock("k");
    const auto start = amux::clock::now();
    amux::async_try_lock_for(mux, "k", 10min, a.handler());
    support::run_ready(io);
    guard.unlock();
    a.signal.emit(terminal); // too late
    support::run(io);
    CHECK(log == "a");
    CHECK(amux::clock::now() < start + 5min);
}

TEST_CASE("asio cancellation: the stop token of the description and the slot both end the wait",
          "[asio][cancellation]")
{
    mux_type mux;
    asio::io_context io;
    std::string log;
    request a{io, log, 'a'};
    std::stop_source stop;
    const auto guard = mux.try_lock("k");
    SECTION("the slot")
    {
        mux.lock("k", stop.get_token())(a.handler());
        a.signal.emit(terminal);
    }
    SECTION("the token")
    {
        mux.lock("k", stop.get_token())(a.handler());
        stop.request_stop();
    }
    SECTION("the token, beforehand")
    {
        stop.request_stop();
        mux.lock("k", stop.get_token())(a.handler());
    }
    support::run(io);
    CHECK(a.t.failed_with<amux::lock_cancelled_error>());
}

TEST_CASE("asio cancellation: a lock or a timer, whichever comes first; the lock is never lost",
          "[asio][cancellation]")
{
    using namespace asio::experimental::awaitable_operators;
    mux_type mux;
    asio::io_context io;
    const auto work = [](mux_type& m, asio::steady_timer& t,
                         std::size_t& won) -> asio::awaitable<void> {
        auto result = co_await (amux::async_lock(m, "k", asio::use_awaitable) ||
                                t.async_wait(asio::use_awaitable));
        won = result.index();
        if (won == 0)
            CHECK(std::get<0>(result).owns_lock());
    };
    std::size_t won = 2;
    auto guard = mux.try_lock("k");
    SECTION("the lock")
    {
        asio::steady_timer timer{io, 10min};
        asio::co_spawn(io, work(mux, timer, won), asio::detached);
        support::run_ready(io);
        guard.unlock();
        support::run(io);
        CHECK(won == 0);
    }
    SECTION("the timer")
    {
        asio::steady_timer timer{io, 5ms};
        asio::co_spawn(io, work(mux, timer, won), asio::detached);
        support::run(io);
        CHECK(won == 1);
        guard.unlock();
    }
    SECTION("both at once")
    {
        asio::steady_timer timer{io, 5ms};
        asio::co_spawn(io, work(mux, timer, won), asio::detached);
        support::run_ready(io);
        while (timer.expiry() > std::chrono::steady_clock::now())
            continue;
        guard.unlock();
        support::run(io);
        CHECK(won < 2);
    }
    CHECK(mux.tracked_keys() == 0);
}

#if AMUX_ASIO_VERSION >= 103100
TEST_CASE("asio cancellation: cancel_after ends the wait, and spares a lock that came in time",
          "[asio][cancellation]")
{
    const auto work = [](mux_type& m, guard_type& g) -> asio::awaitable<void> {
        asio::steady_timer timer{co_await asio::this_coro::executor};
        auto token = asio::cancel_after(timer, 5ms, asio::use_awaitable);
        g = co_await m.lock("k")(token);
    };
    mux_type mux;
    asio::io_context io;
    guard_type got;
    support::run(io, work(mux, got));
    CHECK(got.owns_lock());
    CHECK_THROWS_AS(support::run(io, work(mux, got)), amux::lock_cancelled_error);
    CHECK(mux.tracked_keys() == 1);
}
#endif

TEST_CASE("asio cancellation: of a group of locks each is in the result, or was never taken",
          "[asio][cancellation]")
{
    mux_type mux;
    asio::io_context io;
    auto guard = mux.try_lock("b");
    std::array<std::size_t, 3> order{};
    std::array<bool, 3> owned{};
    const bool all_free = GENERATE(true, false);
    if (all_free)
        guard.unlock();
    const auto lock = [&](const char* key) {
        return amux::async_lock(mux, key, asio::bind_executor(io, asio::deferred));
    };
    asio::experimental::make_parallel_group(lock("a"), lock("b"), lock("c"))
        .async_wait(asio::experimental::wait_for_one{},
                    asio::bind_executor(io, [&](std::array<std::size_t, 3> o, std::exception_ptr,
                                                guard_type a, std::exception_ptr, guard_type b,
                                                std::exception_ptr, guard_type c) {
                        order = o;
                        owned = {a.owns_lock(), b.owns_lock(), c.owns_lock()};
                        CHECK(mux.tracked_keys() == 3);
                    }));
    support::run(io);
    CHECK(owned[order[0]]);
    CHECK(owned[1] == all_free);
    guard = {};
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio cancellation: a task does not hear the slot, and goes on", "[asio][cancellation]")
{
    const auto work = [](mux_type& m) -> amux::task<bool> {
        const auto guard = co_await m.lock("k");
        co_return guard.owns_lock();
    };
    mux_type mux;
    asio::io_context io;
    asio::cancellation_signal signal;
    bool owned = false;
    const auto keep = [&](const std::exception_ptr&, bool owns) { owned = owns; };
    auto guard = mux.try_lock("k");
    work(mux)(asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(io, keep)));
    signal.emit(terminal);
    support::run_ready(io);
    CHECK_FALSE(owned);
    guard.unlock();
    support::run(io);
    CHECK(owned);
}

TEST_CASE("asio cancellation: when the mux closes all who wait are told, in order",
          "[asio][cancellation]")
{
    mux_type mux;
    asio::io_context io;
    std::string log;
    request a{io, log, 'a'};
    request b{io, log, 'b'};
    request c{io, log, 'c'};
    auto guard = mux.try_lock("k");
    amux::async_lock(mux, "k", a.handler());
    amux::async_lock(mux, b.handler());
    amux::async_lock_shared(mux, "k", c.handler());
    mux.close();
    support::run(io);
    CHECK(log == "[a][b][c]");
    for (const request* r : {&a, &b, &c})
        CHECK(r->t.failed_with<amux::lock_closed_error>());
    CHECK(guard.owns_lock());
}

TEST_CASE("asio cancellation: a long line is served, and cancelled, on a small stack",
          "[asio][cancellation]")
{
    amux::asyncmux<int> mux;
    asio::io_context io;
    const int count = support::scaled(50'000);
    const auto work = [](amux::asyncmux<int>& m, int& served) -> asio::awaitable<void> {
        const auto guard = co_await m.lock(1);
        ++served;
    };
    int served = 0;
    auto guard = mux.try_lock(1);
    for (int i = 0; i != count; ++i)
        asio::co_spawn(io, work(mux, served), asio::detached);
    io.poll();
    guard.unlock();
    support::run(io);
    CHECK(served == count);

    std::stop_source stop;
    int told_of_it = 0;
    guard = mux.try_lock(1);
    const auto handler = [&](const std::exception_ptr& e, const auto&) { told_of_it += e ? 1 : 0; };
    for (int i = 0; i != count; ++i)
        mux.lock(1, stop.get_token())(asio::bind_executor(io, handler));
    stop.request_stop();
    support::run(io);
    CHECK(told_of_it == count);
}

TEST_CASE("asio cancellation: with the context go its requests, and the lock goes on",
          "[asio][cancellation][lifetime]")
{
    mux_type mux;
    asio::io_context other;
    told t;
    {
        auto guard = mux.try_lock("k");
        asio::io_context io;
        const auto alive = std::make_shared<int>();
        const std::weak_ptr<int> seen = alive;
        const auto never = [alive](std::exception_ptr, guard_type) { FAIL(); };
        auto there = asio::bind_executor(io, never);
        amux::async_lock(mux, "k", there);
        amux::async_lock(mux, "k", asio::bind_executor(asio::make_strand(io), never));
        amux::async_lock(mux, "k",
                         asio::bind_executor(asio::any_io_executor{io.get_executor()}, never));
        amux::async_try_lock_for(mux, "k", 10min, there);
        amux::async_lock(mux, "free", there); // its handler is on its way
        amux::async_lock(mux, asio::bind_executor(io, std::move(never))); // the whole mux
        amux::async_lock_shared(mux, "k", asio::bind_executor(other, t.handler()));
        const bool granted = GENERATE(true, false);
        if (granted)
            guard.unlock();
        support::run_ready(other);
        CHECK(t.times == 0);
    }
    support::run(other);
    CHECK(t.times == 1);
    CHECK(t.value.owns_lock());
    t.value.unlock();
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio cancellation: with the context go those that have ended, without their handlers",
          "[asio][cancellation][lifetime]")
{
    const auto lock = [](mux_type& m) -> amux::task<guard_type> { co_return co_await m.lock("k"); };
    mux_type mux;
    auto guard = mux.try_lock("k");
    {
        asio::io_context io;
        auto never = asio::bind_executor(io, [](std::exception_ptr, guard_type) { FAIL(); });
        SECTION("a lock with a time limit")
        {
            amux::async_try_lock_for(mux, "k", 1h, never);
        }
        SECTION("a task")
        {
            lock(mux)(never);
        }
        support::run_ready(io);
        guard.unlock();
        io.restart();
        io.run_one(); // the coroutine ends; its handler is on its way
    }
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio cancellation: awaitables that hold and wait may be destroyed with their context",
          "[asio][cancellation][lifetime]")
{
    mux_type mux;
    const auto work = [](mux_type& m, int& ran) -> asio::awaitable<void> {
        const auto first = co_await m.lock("k");
        ++ran;
        const auto both = co_await m.lock_shared(); // waits for its own "k", for ever
        ++ran;
    };
    int ran = 0;
    {
        asio::io_context io;
        for (int i = 0; i != 100; ++i)
            asio::co_spawn(io, work(mux, ran), asio::detached);
        io.poll();
    }
    CHECK(ran == 1);
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio cancellation: a lease that is granted while it is cancelled is given back",
          "[asio][cancellation][lease]")
{
    asio::io_context io;
    asio::io_context caller;
    amux::asio_scheduler loop{io.get_executor()};
    amux::memory_backend store{loop};
    amux::distributed_lock locks{store, loop};
    support::told<amux::acquired_lock> t;
    asio::cancellation_signal signal;
    amux::async_acquire(
        locks, "k",
        asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(caller, t.handler())));
    SECTION("while it waits")
    {
        signal.emit(terminal);
    }
    SECTION("when it is granted, and its handler not called yet")
    {
        support::run_ready(io);
        CHECK(store.size() == 1);
        signal.emit(terminal);
    }
    for (int i = 0; i != 10; ++i) {
        support::run_ready(io);
        support::run_ready(caller);
    }
    CHECK(t.times == 1);
    CHECK(t.failed_with<amux::lock_cancelled_error>());
    CHECK_FALSE(t.value.is_held());
    CHECK(store.size() == 0);
}

TEST_CASE("asio cancellation: a lease that its handler has got is not ended by the slot",
          "[asio][cancellation][lease]")
{
    asio::io_context io;
    amux::asio_scheduler loop{io.get_executor()};
    amux::memory_backend store{loop};
    amux::distributed_lock locks{store, loop};
    support::told<amux::acquired_lock> t;
    asio::cancellation_signal signal;
    amux::async_acquire(
        locks, "k",
        asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(io, t.handler())));
    while (t.times == 0)
        io.run_one();
    signal.emit(terminal);
    support::run_ready(io);
    CHECK(t.value.is_held());
    t.value = {};
    support::run_ready(io);
    CHECK(store.size() == 0);
}

TEST_CASE("asio cancellation: with the context go the calls of leases that wait there",
          "[asio][cancellation][lease][lifetime]")
{
    amux::manual_event_loop loop;
    amux::memory_backend store{loop};
    amux::distributed_lock locks{store, loop};
    const bool granted = GENERATE(true, false);
    {
        asio::io_context io;
        const auto work = [](decltype(locks)& l) -> asio::awaitable<void> {
            const auto lease = co_await l.acquire("k");
            FAIL();
        };
        asio::co_spawn(io, work(locks), asio::detached);
        io.poll();
        if (granted)
            loop.run_ready();
    }
    loop.run_ready();
    CHECK(store.size() == 0);
}

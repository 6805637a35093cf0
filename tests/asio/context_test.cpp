// SPDX-License-Identifier: BSL-1.0
// Without this file a request may stay in a mux, and use its context, when that is gone.
#include "asio/support/library.hpp"

#include <amux/amux.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

using namespace std::chrono_literals;
using mux_type = amux::asyncmux<>;
using guard_type = mux_type::guard;

namespace {

// They tell of their context as executors did before there were properties.
using old_executors = std::tuple<asio::io_context::strand, asio::executor>;

template <class Executor>
Executor make(asio::io_context& io)
{
    if constexpr (std::is_same_v<Executor, asio::executor>)
        return io.get_executor();
    else
        return Executor{io};
}

/// Asks for locks when it goes.
struct last_wish {
    last_wish(mux_type& m, asio::io_context& i, std::shared_ptr<int> t, long& k)
        : mux{m}, io{i}, token{std::move(t)}, kept{k}
    {}
    ~last_wish()
    {
        const auto never = [t = token](std::exception_ptr, guard_type) { FAIL(); };
        const long before = token.use_count();
        amux::async_lock(mux, "k", asio::bind_executor(io, never));
        amux::async_try_lock_for(mux, "k", 1h, asio::bind_executor(io, never));
        kept = token.use_count() - before;
        amux::async_lock(mux, "free", asio::bind_executor(io, never));
    }

    mux_type& mux;
    asio::io_context& io;
    std::shared_ptr<int> token;
    long& kept; // handlers
};

/// What a handler keeps alive: all that it has asked.
struct session {
    explicit session(asio::io_context& io) : loop{io.get_executor()} {}

    mux_type mux;
    amux::memory_backend store;
    amux::asio_scheduler<> loop;
    amux::distributed_lock<amux::memory_backend&> leases{store, loop};
};

enum class kind { lock, lock_with_limit, coroutine, task, lease };

std::weak_ptr<session> start(kind wanted, asio::io_context& io)
{
    const auto self = std::make_shared<session>(io);
    auto there = asio::bind_executor(io, [self](std::exception_ptr, const auto&) {});
    const auto coroutine = [](std::shared_ptr<session> s) -> asio::awaitable<void> {
        const auto guard = co_await s->mux.lock("k");
    };
    const auto task = [](mux_type& m) -> amux::task<guard_type> { co_return co_await m.lock("k"); };
    if (wanted == kind::lock)
        amux::async_lock(self->mux, "k", there);
    else if (wanted == kind::lock_with_limit)
        amux::async_try_lock_for(self->mux, "k", 1h, there);
    else if (wanted == kind::coroutine)
        asio::co_spawn(io, coroutine(self), asio::detached);
    else if (wanted == kind::task)
        task(self->mux)(there);
    else
        amux::async_acquire(self->leases, "k", there);
    return self;
}

} // namespace

TEMPLATE_LIST_TEST_CASE("asio context: a strand of the old kind, and an executor, lose no lock",
                        "[asio][lifetime]", old_executors)
{
    mux_type mux;
    const auto token = std::make_shared<int>();
    auto guard = mux.try_lock("k");
    {
        asio::io_context io;
        auto there = asio::bind_executor(make<TestType>(io),
                                         [token](std::exception_ptr, guard_type) { FAIL(); });
        amux::async_lock(mux, "k", there);
        amux::async_try_lock_for(mux, "k", 1h, std::move(there));
        const bool granted = GENERATE(true, false);
        if (granted)
            guard.unlock();
    }
    CHECK(token.use_count() == 1);
    guard = {};
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio context: what asks while its context goes is dropped, at once when the others were",
          "[asio][lifetime]")
{
    mux_type mux;
    const auto token = std::make_shared<int>();
    const auto guard = mux.try_lock("k");
    long kept = -1;
    long expected = 0;
    {
        asio::io_context io;
        auto there = asio::bind_executor(io, [](std::exception_ptr, guard_type) { FAIL(); });
        auto wish = std::make_unique<last_wish>(mux, io, token, kept);
        SECTION("by a context that was not asked for a lock before")
        {
            expected = 2;
            asio::post(io, [w = std::move(wish)] {});
        }
        SECTION("by the context of others, after them")
        {
            amux::async_lock(mux, "k", there);
            asio::post(io, [w = std::move(wish)] {});
        }
        SECTION("by one of the others")
        {
            auto last = [w = std::move(wish)](std::exception_ptr, guard_type) { FAIL(); };
            amux::async_lock(mux, "k", asio::bind_executor(io, std::move(last)));
        }
    }
    CHECK(kept == expected);
    CHECK(token.use_count() == 1);
    CHECK(mux.tracked_keys() == 1); // of the guard
}

TEST_CASE("asio context: a handler that is dropped may own what its result needs",
          "[asio][lifetime]")
{
    const auto wanted =
        GENERATE(kind::lock, kind::lock_with_limit, kind::coroutine, kind::task, kind::lease);
    const int steps = GENERATE(range(0, 5));
    std::weak_ptr<session> seen;
    {
        asio::io_context io;
        seen = start(wanted, io);
        for (int i = 0; i != steps; ++i)
            io.poll_one();
        io.stop();
    } // the program ends here when a mux, or a lock, goes before what it has given
    CHECK(seen.expired());
}

TEST_CASE("asio context: a mux that was closed may go before its handlers are called, or dropped",
          "[asio][lifetime]")
{
    support::told<guard_type> first;
    support::told<guard_type> timed;
    const bool called = GENERATE(true, false);
    {
        asio::io_context io;
        {
            mux_type mux;
            auto guard = mux.try_lock("k");
            amux::async_lock(mux, "k", asio::bind_executor(io, first.handler()));
            amux::async_try_lock_for(mux, "k", 1h, asio::bind_executor(io, timed.handler()));
            mux.close();
        }
        if (called)
            support::run(io);
    }
    CHECK(first.failed_with<amux::lock_closed_error>() == called);
    CHECK(timed.failed_with<amux::lock_closed_error>() == called);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file the locks are known to work in the coroutine types of amux and of Asio, and in none that others write.
#include "support/foreign_coroutine.hpp"

#include <amux/amux.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <coroutine>
#include <exception>
#include <optional>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>

using namespace std::chrono_literals;
using mux_type = amux::asyncmux<>;

namespace {

/// Begins when it is awaited, and goes over to its awaiter by symmetric transfer when it ends: what most libraries have.
template <class T>
class lazy {
public:
    struct promise_type {
        lazy get_return_object() noexcept
        {
            return lazy{std::coroutine_handle<promise_type>::from_promise(*this)};
        }
        std::suspend_always initial_suspend() const noexcept { return {}; }
        struct transfer {
            bool await_ready() const noexcept { return false; }
            std::coroutine_handle<> await_suspend(
                std::coroutine_handle<promise_type> h) const noexcept
            {
                return h.promise().next;
            }
            void await_resume() const noexcept {}
        };
        transfer final_suspend() const noexcept { return {}; }
        void return_value(T v) { value.emplace(std::move(v)); }
        void unhandled_exception() noexcept { error = std::current_exception(); }

        std::coroutine_handle<> next;
        std::optional<T> value;
        std::exception_ptr error;
    };

    lazy(lazy&& other) noexcept : frame_{std::exchange(other.frame_, nullptr)} {}
    lazy& operator=(lazy&&) = delete;
    ~lazy()
    {
        if (frame_)
            frame_.destroy();
    }

    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> h) noexcept
    {
        frame_.promise().next = h;
        return frame_;
    }
    T await_resume()
    {
        if (frame_.promise().error)
            std::rethrow_exception(frame_.promise().error);
        return std::move(*frame_.promise().value);
    }

private:
    explicit lazy(std::coroutine_handle<promise_type> f) noexcept : frame_{f} {}

    std::coroutine_handle<promise_type> frame_;
};

/// Moves whatever it awaits into an awaiter of its own, as libraries do that add something to each wait.
struct by_value {
    template <class Awaiter>
    struct wrapped {
        bool await_ready() { return inner.await_ready(); }
        template <class Promise>
        auto await_suspend(std::coroutine_handle<Promise> h)
        {
            return inner.await_suspend(h);
        }
        decltype(auto) await_resume() { return inner.await_resume(); }

        Awaiter inner;
    };

    struct promise_type {
        by_value get_return_object() const noexcept { return {}; }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }

        template <class Awaitable>
        auto await_transform(Awaitable a)
        {
            using awaiter = decltype(std::move(a).operator co_await());
            return wrapped<awaiter>{std::move(a).operator co_await()};
        }
    };
};

lazy<std::string> name_under_lock(mux_type& mux, std::stop_token stop)
{
    const auto guard = co_await mux.lock("k", std::move(stop));
    co_return *guard.key();
}

// One coroutine of each kind: takes the lock, and writes down what came of it.
support::fire_and_forget lock_in(support::fire_and_forget, mux_type& mux, std::stop_token stop,
                                 std::string& log)
{
    try {
        const auto guard = co_await mux.lock("k", std::move(stop));
        log += *guard.key();
    } catch (const amux::lock_cancelled_error&) {
        log += '!';
    }
}

by_value lock_in(by_value, mux_type& mux, std::stop_token stop, std::string& log)
{
    try {
        const auto guard = co_await mux.lock("k", std::move(stop));
        log += *guard.key();
    } catch (const amux::lock_cancelled_error&) {
        log += '!';
    }
}

struct lazy_kind {};
support::fire_and_forget lock_in(lazy_kind, mux_type& mux, std::stop_token stop, std::string& log)
{
    try {
        auto name = name_under_lock(mux, std::move(stop));
        log += co_await name;
    } catch (const amux::lock_cancelled_error&) {
        log += '!';
    }
}

} // namespace

TEMPLATE_TEST_CASE("foreign coroutine: it waits for a lock, is handed it, and hands it on",
                   "[foreign]", support::fire_and_forget, by_value, lazy_kind)
{
    mux_type mux;
    std::string log;
    lock_in(TestType{}, mux, {}, log);
    CHECK(log == "k"); // nobody was in the way
    auto guard = mux.try_lock("k");
    lock_in(TestType{}, mux, {}, log);
    lock_in(TestType{}, mux, {}, log);
    CHECK(log == "k");
    guard.unlock(); // they go on inside
    CHECK(log == "kkk");
    CHECK(mux.tracked_keys() == 0);
}

TEMPLATE_TEST_CASE("foreign coroutine: it is stopped while it waits, and told so", "[foreign]",
                   support::fire_and_forget, by_value, lazy_kind)
{
    mux_type mux;
    std::string log;
    std::stop_source stop;
    auto guard = mux.try_lock("k");
    lock_in(TestType{}, mux, stop.get_token(), log);
    lock_in(TestType{}, mux, {}, log);
    stop.request_stop();
    CHECK(log == "!");
    guard.unlock();
    CHECK(log == "!k");
    lock_in(TestType{}, mux, stop.get_token(), log); // stopped beforehand
    CHECK(log == "!k!");
}

TEST_CASE("foreign coroutine: a task of amux awaits it, and it awaits a task", "[foreign]")
{
    mux_type mux;
    amux::manual_event_loop loop;
    std::string log;
    const auto outer = [](mux_type& m, std::string& l) -> amux::task<> {
        auto name = name_under_lock(m, {});
        l += co_await name;
    };
    const auto inner = [](amux::task<int> t, std::string& l) -> support::fire_and_forget {
        l += std::to_string(co_await std::move(t));
    };
    auto guard = mux.try_lock("k");
    loop.spawn(outer(mux, log));
    inner(mux.with_lock("k", [] { return 7; }), log);
    loop.run_ready();
    CHECK(log.empty());
    guard.unlock();
    loop.run_ready();
    CHECK(log.find('k') != std::string::npos);
    CHECK(log.find('7') != std::string::npos);
}

TEST_CASE("foreign coroutine: with hooks it goes on where it belongs, in time, and is told apart",
          "[foreign]")
{
    mux_type mux{{.prevent_reentrancy = true}};
    amux::manual_event_loop loop;
    const amux::context who;
    std::string log;
    const auto work = [](mux_type& m, std::string& l) -> support::hooked_coroutine {
        const auto guard = co_await m.lock("k");
        l += 'k';
        try {
            const auto again = co_await m.lock_shared("k");
        } catch (const amux::reentrant_lock_error&) {
            l += 'r';
        }
        const auto other = co_await m.try_lock_for("o", 1s);
        l += other ? 'o' : 't';
    };
    auto guard = mux.try_lock("k");
    const auto other = mux.try_lock("o");
    auto coroutine = work(mux, log);
    coroutine.start(&loop, &who);
    guard.unlock();
    CHECK(log.empty());
    loop.run_ready();
    CHECK(log == "kr");
    loop.advance(1s);
    loop.run_ready();
    CHECK(log == "krt");
    CHECK(coroutine.done());
}

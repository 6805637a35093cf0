// SPDX-License-Identifier: BSL-1.0
// Without this file the order that the locks promise may be lost on the way through Asio, or a lock pass somebody by.
#include "asio/support/library.hpp"
#include "support/death.hpp"

#include <amux/amux.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <deque>
#include <exception>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

using namespace std::chrono_literals;
using mux_type = amux::asyncmux<>;
using guard_type = mux_type::guard;

namespace {

/// Handlers that write their names down, and keep what they get until it is released.
class queue_of_handlers {
public:
    /// A completion token: its handler writes `name`, or `name!` when there is an error.
    auto as(char name)
    {
        kept& k = all_.emplace_back();
        k.name = name;
        const auto told = [this, &k](const std::exception_ptr& e, guard_type g) {
            log += k.name;
            if (e)
                log += '!';
            k.guard = std::move(g);
        };
        return asio::bind_cancellation_slot(k.signal.slot(), asio::bind_executor(io, told));
    }

    void release(char name) { at(name).guard.unlock(); }
    void downgrade(char name) { at(name).guard.downgrade(); }
    void cancel(char name) { at(name).signal.emit(asio::cancellation_type::total); }
    bool owns(char name) { return at(name).guard.owns_lock(); }

    /// What was written since the last call, when all is run that can be.
    std::string told()
    {
        support::run_ready(io);
        return std::exchange(log, {});
    }

    std::string log;
    asio::io_context io;

private:
    struct kept {
        char name = ' ';
        asio::cancellation_signal signal;
        guard_type guard;
    };

    kept& at(char name)
    {
        for (kept& k : all_) {
            if (k.name == name)
                return k;
        }
        std::terminate();
    }

    std::deque<kept> all_;
};

} // namespace

TEST_CASE("asio admission: five who wait are told in order of arrival, readers together", "[asio]")
{
    mux_type mux;
    queue_of_handlers q;
    auto guard = mux.try_lock("k");
    for (const char name : {'a', 'b', 'c'})
        amux::async_lock_shared(mux, "k", q.as(name));
    amux::async_lock(mux, "k", q.as('d'));
    amux::async_lock_shared(mux, "k", q.as('e'));
    guard.unlock();
    CHECK(q.told() == "abc");
    q.release('b');
    q.release('a');
    CHECK(q.told().empty());
    q.release('c');
    CHECK(q.told() == "d");
    q.release('d');
    CHECK(q.told() == "e");
}

TEST_CASE("asio admission: the whole mux is not passed by, and only what conflicts waits behind it",
          "[asio]")
{
    mux_type mux;
    queue_of_handlers q;
    auto a = mux.try_lock("a");
    amux::async_lock(mux, "a", q.as('1'));
    amux::async_lock(mux, "b", q.as('2')); // nobody is there
    amux::async_lock_shared(mux, q.as('3'));
    amux::async_lock(mux, "c", q.as('4'));
    amux::async_lock_shared(mux, "d", q.as('5'));
    CHECK(q.told() == "25");
    a.unlock();
    CHECK(q.told() == "1");
    q.release('1');
    q.release('2');
    CHECK(q.told() == "3");
    q.release('3');
    CHECK(q.told() == "4");
}

TEST_CASE("asio admission: several keys have their place in each line, and leave it when cancelled",
          "[asio]")
{
    mux_type mux;
    queue_of_handlers q;
    auto a = mux.try_lock("a");
    amux::async_lock_all(mux, {"a", "b"}, q.as('1'));
    amux::async_lock_all(mux, {"b", "a"}, q.as('2'));
    amux::async_lock(mux, "b", q.as('3'));
    CHECK(q.told().empty());
    const bool cancelled = GENERATE(true, false);
    if (cancelled)
        q.cancel('1');
    CHECK(q.told() == (cancelled ? "1!" : ""));
    a.unlock();
    CHECK(q.told() == (cancelled ? "2" : "1"));
    q.release(cancelled ? '2' : '1');
    CHECK(q.told() == (cancelled ? "3" : "2"));
}

TEST_CASE("asio admission: from the grant on it is held, so nobody gets in before the handler",
          "[asio]")
{
    mux_type mux;
    queue_of_handlers q;
    auto guard = mux.try_lock("k");
    amux::async_lock(mux, "k", q.as('1'));
    guard.unlock();
    CHECK_FALSE(mux.try_lock("k").owns_lock());
    CHECK_FALSE(mux.try_lock().owns_lock());
    CHECK(mux.snapshot().keys.front().granted_not_resumed == 1);
    CHECK(q.told() == "1");
    CHECK(mux.snapshot().keys.front().granted_not_resumed == 0);
}

TEST_CASE("asio admission: a guard from a handler that is downgraded lets the readers in", "[asio]")
{
    mux_type mux;
    queue_of_handlers q;
    amux::async_lock(mux, "k", q.as('1'));
    amux::async_lock_shared(mux, "k", q.as('2'));
    amux::async_lock(mux, "k", q.as('3'));
    amux::async_lock_shared(mux, "k", q.as('4'));
    CHECK(q.told() == "1");
    q.downgrade('1');
    CHECK(q.told() == "2");
    q.release('1');
    q.release('2');
    CHECK(q.told() == "3");
}

TEST_CASE("asio admission: a queue that is full says so, and counts right when some have left",
          "[asio]")
{
    mux_type mux{{.max_waiters = 2}};
    queue_of_handlers q;
    const auto guard = mux.try_lock("k");
    amux::async_lock(mux, q.as('1'));
    amux::async_lock_all(mux, {"k", "l"}, q.as('2'));
    amux::async_lock(mux, "k", q.as('3'));
    amux::async_try_lock_for(mux, "k", 1h, q.as('4'));
    CHECK(q.told() == "3!4!");
    q.cancel('1');
    amux::async_lock_shared(mux, "k", q.as('5'));
    amux::async_lock_shared(mux, "k", q.as('6'));
    CHECK(q.told() == "1!6!");
}

TEST_CASE("asio admission: a limit that is over between the grant and the handler changes nothing",
          "[asio]")
{
    const auto attempt = []() -> std::string {
        mux_type mux;
        queue_of_handlers q;
        auto guard = mux.try_lock("k");
        const auto end = amux::clock::now() + 20ms;
        amux::async_try_lock_for(mux, "k", 20ms, q.as('1'));
        support::run_ready(q.io); // it is armed
        guard.unlock();
        if (amux::clock::now() >= end)
            return "this thread was too slow";
        while (amux::clock::now() < end)
            std::this_thread::yield();
        support::run(q.io);
        return q.log + (q.owns('1') ? " has it" : " has it not");
    };
    std::string said;
    do
        said = attempt();
    while (said == "this thread was too slow");
    CHECK(said == "1 has it");
}

TEST_CASE(
    "asio admission: a request that nobody starts, or that was stopped beforehand, leaves nothing",
    "[asio]")
{
    mux_type mux;
    queue_of_handlers q;
    {
        const auto never = amux::async_lock(mux, "k", asio::deferred);
        CHECK(mux.tracked_keys() == 0);
    }
    std::stop_source stop;
    stop.request_stop();
    const bool is_free = GENERATE(true, false);
    auto guard = is_free ? guard_type{} : mux.try_lock("k");
    mux.lock("k", stop.get_token())(q.as('1'));
    CHECK(q.told() == "1!");
    guard = {};
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio admission: a mux that goes before its context ends the program, and is named",
          "[asio][lifetime]")
{
    const std::string said = support::death_of([] {
        queue_of_handlers q;
        mux_type mux{{.name = "carts"}};
        const auto guard = mux.try_lock("k");
        amux::async_lock(mux, "k", q.as('1'));
    });
    CHECK(said.find("carts") != std::string::npos);
}

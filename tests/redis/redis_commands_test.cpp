// SPDX-License-Identifier: BSL-1.0
// Without this file a request could wait for its answer longer than its caller was promised.
#include <amux/detail/redis_commands.hpp>

#include <redis/support/fake_server.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <memory>
#include <string_view>

#include <poll.h>

using namespace std::chrono_literals;
using amux::detail::redis_commands;
using amux::detail::redis_operation;
using amux::detail::redis_shared;
using support::fake_answer;
using support::fake_server;

namespace {

struct question final : redis_operation {
    explicit question(std::string_view k) : redis_operation{kind::acquire, k, "token", 60s} {}
    void answered() noexcept override {}
};

/// A connection whose time the test moves, as the I/O thread would.
struct connection {
    explicit connection(const fake_server& s)
        : shared{amux::detail::redis_settings{amux::redis_options{.port = s.port()}}}
    {
        shared.waker = std::make_shared<amux::detail::redis_waker>();
    }
    void turn()
    {
        commands.step(now);
        pollfd watched = commands.watched();
        poll(&watched, 1, 100);
        commands.receive(watched.revents);
        commands.digest(now);
        commands.forget_replies();
    }
    void turn_until(const question& q, redis_operation::place p)
    {
        for (int n = 0; q.where != p; ++n) {
            REQUIRE(n < 600);
            turn();
        }
    }

    amux::clock::time_point now = amux::clock::now();
    redis_shared shared;
    redis_commands commands{shared};
};

} // namespace

TEST_CASE(
    "redis_commands: who is asked again is due in time, though younger ones are answered first",
    "[redis]")
{
    fake_server server{[](const fake_server::words& command) -> fake_answer {
        if (!fake_server::is_script(command))
            return fake_server::greet(command);
        // Said when the younger one is there, and meant for the older one. Nothing else is answered.
        return {command[3] == "{amux}:lock:younger" ? "-NOSCRIPT no such script\r\n" : ""};
    }};
    connection c{server};
    question older{"older"};
    question younger{"younger"};
    c.commands.submit(older, c.now);
    c.turn_until(older, redis_operation::place::sent);
    c.now += 1s;
    c.commands.submit(younger, c.now);
    c.turn_until(younger, redis_operation::place::sent);
    c.turn_until(older, redis_operation::place::again);
    c.turn_until(older, redis_operation::place::sent);
    CHECK(c.commands.due(c.now) == older.deadline);
    c.now = older.deadline;
    c.turn();
    CHECK(older.trouble);
    CHECK(younger.trouble); // the connection is given up
    c.commands.close();
}

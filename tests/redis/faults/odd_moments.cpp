// SPDX-License-Identifier: BSL-1.0
// Without this file what falls between two words of a server is met by chance only, when a test of threads is lucky.
#include "redis/support/fake_server.hpp"
#include "redis/support/lease_client.hpp"
#include "support/foreign_coroutine.hpp"

#include <amux/event_loop.hpp>
#include <amux/redis_backend.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <chrono>
#include <stop_token>
#include <string>
#include <thread>

using namespace std::chrono_literals;
using amux::event_loop;
using amux::redis_backend;
using amux::sync_wait;
using amux::task;
using support::bulk;
using support::fake_answer;
using support::fake_server;
using support::soon;
using words = fake_server::words;

namespace {

constexpr const char* nonsense = ":1\r\n"; // nobody has asked for it, so the connection ends

amux::redis_options at(const fake_server& s, std::chrono::milliseconds limit = 20s)
{
    amux::redis_options o;
    o.port = s.port();
    o.command_timeout = limit;
    o.connect_timeout = limit;
    return o;
}

fake_answer granted(const words& command)
{
    return fake_server::answer(command, 1, {bulk("7")});
}
fake_answer is_free(const words& command)
{
    return fake_server::answer(command, 0);
}
/// For a look of somebody who waits.
fake_answer is_held(const words& command)
{
    return fake_server::answer(command, 1, {":60000\r\n"});
}
fake_answer about_k(const char* what)
{
    return {"*3\r\n" + bulk(what) + bulk("{amux}:free:k") + ":1\r\n"};
}
fake_answer released()
{
    return {"*3\r\n" + bulk("message") + bulk("{amux}:free:k") + bulk("")};
}

/// What is said in one piece is read in one piece.
fake_answer at_once(const fake_answer& a, const fake_answer& b)
{
    return {a.bytes + b.bytes};
}

struct ending {
    bool over = false;
    std::string trouble;
};

task<> acquire(redis_backend& b, std::string key, ending& out)
{
    try {
        co_await b.acquire(key, "token", 60s);
    } catch (const amux::backend_error& e) {
        out.trouble = e.what();
    }
    out.over = true;
}

task<> wait_for_k(redis_backend& b, std::stop_token stop, ending& out)
{
    try {
        co_await b.wait_for_release("k", stop);
    } catch (const amux::backend_error& e) {
        out.trouble = e.what();
    }
    out.over = true;
}

bool ends(event_loop& loop, const ending& o)
{
    return soon([&] { return loop.run_ready(), o.over; });
}

} // namespace

TEST_CASE("redis: a request that waits for a connection may be destroyed", "[redis][faults]")
{
    redis_backend b{"redis://127.0.0.1:1?command_timeout=20000"};
    ending o;
    {
        event_loop loop;
        loop.spawn(acquire(b, "k", o));
        loop.run_ready();
    }
    CHECK_FALSE(o.over);
}

TEST_CASE("redis: a request to a server that does not greet ends by its own limit",
          "[redis][faults]")
{
    fake_server server{[](const words&) { return fake_answer{}; }};
    amux::redis_options where = at(server);
    where.command_timeout = 300ms; // to connect takes longer
    redis_backend b{where};
    event_loop loop;
    ending o;
    loop.spawn(acquire(b, "k", o));
    CHECK(ends(loop, o));
    CHECK(o.trouble.find("has not taken the request in time") != std::string::npos);
}

TEST_CASE("redis: a request that is to be asked again outlives its connection", "[redis][faults]")
{
    fake_server server{[](const words& command) {
        if (command.front() == "EVALSHA")
            return at_once({"-NOSCRIPT no such script\r\n"}, {nonsense});
        return command.front() == "EVAL" ? granted(command) : fake_server::greet(command);
    }};
    redis_backend b{at(server)};
    CHECK(sync_wait(b.acquire("k", "token", 60s)).acquired);
    CHECK(server.accepted() == 2);
}

TEST_CASE("redis: a request that is to be asked again may be destroyed", "[redis][faults]")
{
    std::atomic<bool> asked{false};
    fake_server server{[&](const words& command) -> fake_answer {
        if (command.front() == "EVALSHA") {
            asked = true;
            return at_once({"-NOSCRIPT no such script\r\n"}, {nonsense});
        }
        return asked ? fake_answer{} : fake_server::greet(command); // no other connection
    }};
    redis_backend b{at(server)};
    ending o;
    {
        event_loop loop;
        loop.spawn(acquire(b, "k", o));
        loop.run_ready();
        REQUIRE(soon([&] { return server.accepted() == 2; }));
    }
    CHECK_FALSE(o.over);
}

TEST_CASE("redis: a connection that breaks is told to who waits, and to nobody who has gone",
          "[redis][faults]")
{
    fake_server server{[](const words& command) -> fake_answer {
        if (!fake_server::is_script(command))
            return fake_server::greet(command);
        return {"", command[3] == "{amux}:lock:waits"};
    }};
    redis_backend b{at(server)};
    ending gone;
    ending waits;
    {
        event_loop loop;
        loop.spawn(acquire(b, "gone", gone));
        loop.run_ready();
        REQUIRE(soon([&] { return server.commands() == 4; })); // the greeting, and this
    }
    event_loop loop;
    loop.spawn(acquire(b, "waits", waits));
    CHECK(ends(loop, waits));
    CHECK(waits.trouble.find("broke before the answer") != std::string::npos);
    CHECK_FALSE(gone.over);
}

TEST_CASE("redis: a server that has become a replica is left when it has answered all",
          "[redis][faults]")
{
    std::atomic<bool> has_last{false};
    fake_server server{[&](const words& command) -> fake_answer {
        if (!fake_server::is_script(command))
            return fake_server::greet(command);
        const std::string& key = command[3];
        const fake_answer refusal{"-READONLY You can't write against a read only replica.\r\n"};
        if (key == "{amux}:lock:1" || key == "{amux}:lock:2")
            return {};
        if (key == "{amux}:lock:3") // to the first two; this one is not answered
            return at_once(refusal, refusal);
        has_last = true;
        return granted(command);
    }};
    redis_backend b{at(server, 2s)};
    event_loop loop;
    ending o[4];
    for (const int n : {0, 1, 2})
        loop.spawn(acquire(b, std::to_string(n + 1), o[n]));
    REQUIRE(ends(loop, o[0]));
    REQUIRE(ends(loop, o[1]));
    CHECK(o[1].trouble.find("has become a replica") != std::string::npos);
    loop.spawn(acquire(b, "4", o[3])); // it waits for another connection
    loop.run_ready();
    CHECK_FALSE(has_last);
    CHECK(server.accepted() == 1);
    REQUIRE(ends(loop, o[2]));
    REQUIRE(ends(loop, o[3])); // granted, if there was time left
    CHECK(soon([&] {
        ending after;
        loop.spawn(acquire(b, "5", after));
        return ends(loop, after) && after.trouble.empty();
    }));
    CHECK(server.accepted() == 2);
}

TEST_CASE("redis wait: a subscription that was taken back and made again is another one",
          "[redis][faults]")
{
    int subscribed = 0; // the server's
    std::atomic<bool> taken_back{false};
    fake_server server{[&](const words& command) -> fake_answer {
        if (command.front() == "UNSUBSCRIBE") {
            taken_back = true;
            return released(); // of the first one's time
        }
        if (command.front() == "SUBSCRIBE")
            return ++subscribed == 1
                       ? fake_answer{}
                       : at_once(at_once(about_k("subscribe"), about_k("unsubscribe")),
                                 at_once(about_k("subscribe"), released()));
        return fake_server::is_script(command) ? is_held(command) : fake_server::greet(command);
    }};
    redis_backend b{at(server)};
    event_loop loop;
    std::stop_source stop;
    ending first;
    ending second;
    loop.spawn(wait_for_k(b, stop.get_token(), first));
    loop.run_ready();
    REQUIRE(soon([&] { return server.commands() >= 4; })); // it has greeted, and been asked
    stop.request_stop();
    REQUIRE(ends(loop, first));
    REQUIRE(soon([&] { return taken_back.load(); }));
    loop.spawn(wait_for_k(b, {}, second));
    CHECK(ends(loop, second));
    CHECK(second.trouble.empty());
}

TEST_CASE("redis wait: a refusal of a subscription that was taken back is told to nobody",
          "[redis][faults]")
{
    int subscribed = 0;
    std::atomic<bool> taken_back{false};
    const fake_answer refusal{"-NOPERM you may not\r\n"};
    fake_server server{[&](const words& command) -> fake_answer {
        if (command.front() == "UNSUBSCRIBE") {
            taken_back = true;
            return at_once(refusal, refusal);
        }
        if (command.front() == "SUBSCRIBE")
            return ++subscribed == 1 ? fake_answer{} : refusal;
        return fake_server::is_script(command) ? is_free(command) : fake_server::greet(command);
    }};
    redis_backend b{at(server)};
    event_loop loop;
    std::stop_source stop;
    ending first;
    loop.spawn(wait_for_k(b, stop.get_token(), first));
    loop.run_ready();
    REQUIRE(soon([&] { return server.commands() >= 4; }));
    stop.request_stop();
    REQUIRE(ends(loop, first));
    CHECK(first.trouble.empty());
    REQUIRE(soon([&] { return taken_back.load(); }));
    const int connections = server.accepted();
    sync_wait(b.wait_for_release("k")); // by a look, since subscribing is refused
    CHECK(server.accepted() == connections + 1); // that of the look
}

TEST_CASE("redis wait: who looks when the subscription is lost looks anew when it is there again",
          "[redis][faults]")
{
    int subscribed = 0;
    words first_look;
    fake_server server{[&](const words& command) -> fake_answer {
        if (command.front() == "SUBSCRIBE")
            return ++subscribed == 1 ? at_once(about_k("subscribe"), about_k("subscribe"))
                                     : about_k("subscribe");
        if (!fake_server::is_script(command))
            return fake_server::greet(command);
        if (first_look.empty()) {
            first_look = command;
            return {};
        }
        return at_once(is_held(first_look), is_free(command));
    }};
    redis_backend b{at(server)};
    sync_wait(b.wait_for_release("k"));
    CHECK(server.accepted() == 3); // two for the subscription, one for the looks
}

TEST_CASE("redis wait: who may not subscribe any more after a reconnect goes on", "[redis][faults]")
{
    int subscribed = 0;
    std::atomic<bool> refused{false};
    fake_server server{[&](const words& command) -> fake_answer {
        if (command.front() == "SUBSCRIBE") {
            if (++subscribed == 1)
                return at_once(about_k("subscribe"), {nonsense});
            refused = true;
            return {"-NOPERM you may not any more\r\n"};
        }
        return fake_server::is_script(command) ? fake_answer{} : fake_server::greet(command);
    }};
    redis_backend b{at(server)};
    event_loop loop;
    std::stop_source stop;
    ending o;
    loop.spawn(wait_for_k(b, stop.get_token(), o));
    loop.run_ready();
    REQUIRE(soon([&] { return refused.load(); }));
    loop.run_ready();
    CHECK_FALSE(o.over); // its look has no answer yet
    stop.request_stop();
    CHECK(ends(loop, o));
    CHECK(o.trouble.empty());
}

TEST_CASE("redis wait: a server that does not confirm a subscription is named", "[redis][faults]")
{
    fake_server server{[](const words& command) {
        if (command.front() == "INFO") // what is left of the limit is less than the connection has
            std::this_thread::sleep_for(500ms);
        return command.front() == "SUBSCRIBE" ? fake_answer{} : fake_server::greet(command);
    }};
    redis_backend b{at(server, 2s)};
    event_loop loop;
    ending o;
    loop.spawn(wait_for_k(b, {}, o));
    REQUIRE(ends(loop, o));
    CHECK(o.trouble.find("has not confirmed the subscription in time") != std::string::npos);
    CHECK(o.trouble.find("127.0.0.1:" + std::to_string(server.port())) != std::string::npos);
    ending next;
    loop.spawn(wait_for_k(b, {}, next));
    CHECK(ends(loop, next));
    CHECK(server.accepted() >= 2); // the first connection was given up
}

TEST_CASE("redis wait: who was told and is not resumed yet may be destroyed", "[redis][faults]")
{
    fake_server server{[](const words& command) -> fake_answer {
        if (command.front() == "SUBSCRIBE")
            return about_k("subscribe");
        return fake_server::is_script(command) ? is_free(command) : fake_server::greet(command);
    }};
    redis_backend b{at(server)};
    ending o;
    {
        event_loop loop;
        loop.spawn(wait_for_k(b, {}, o));
        loop.run_ready();
        sync_wait(b.wait_for_release("k")); // who waited before is told before
    }
    CHECK_FALSE(o.over);
}

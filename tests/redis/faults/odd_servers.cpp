// SPDX-License-Identifier: BSL-1.0
// Without this file what a server seldom does, or a user does at a bad moment, may hang a coroutine or leave it untold.
#include "redis/support/fake_server.hpp"
#include "redis/support/redis_server.hpp"
#include "support/foreign_coroutine.hpp"

#include <amux/event_loop.hpp>
#include <amux/redis_backend.hpp>
#include <amux/sync_wait.hpp>
#include <amux/when_all.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::backend_error_kind;
using amux::sync_wait;
using amux::task;
using support::bulk;
using support::fake_answer;
using support::fake_server;

namespace {

fake_answer yes(const fake_server::words& command)
{
    return fake_server::answer(command, 1, {bulk("7")});
}
fake_answer nobody_holds_it(const fake_server::words& command)
{
    return fake_server::answer(command, 0);
}

amux::redis_options fast_options(const fake_server& s, std::chrono::milliseconds limit = 60s)
{
    amux::redis_options o;
    o.port = s.port();
    o.command_timeout = limit;
    o.connect_timeout = limit;
    return o;
}

/// Awaits what `call` gives.
template <class Call>
task<std::string> trouble_of(Call call)
{
    std::string what = "none";
    try {
        co_await call();
    } catch (const amux::backend_error& e) {
        what = std::string{to_string(e.kind())} + ": " + e.what();
    }
    co_return what;
}

} // namespace

TEST_CASE("redis: a server may be given by its name", "[redis][faults]")
{
    fake_server server{[](const fake_server::words& command) {
        return fake_server::is_script(command) ? yes(command) : fake_server::greet(command);
    }};
    amux::redis_options o = fast_options(server);
    o.host = "localhost";
    amux::redis_backend b{o};
    CHECK(sync_wait(b.acquire("k", "t", 10s)).fence == 7u);
}

TEST_CASE("redis: who connects to a socket that is not there is told so", "[redis][faults]")
{
    const char* const url = "unix:///no/such/socket?command_timeout=1000";
    amux::redis_backend b{url};
    const std::string trouble = sync_wait(trouble_of([&] { return b.acquire("k", "t", 10s); }));
    CHECK(trouble.find("connect to /no/such/socket: No such file") != trouble.npos);
    amux::event_loop loop;
    auto locks = amux::make_redis_lock(url, loop);
    const auto same = loop.block_on(trouble_of([&] { return locks.try_acquire("k"); }));
    CHECK(same.find("connect to /no/such/socket: No such file") != same.npos);
}

TEST_CASE("redis: a call that is awaited when its backend is gone says so", "[redis][faults]")
{
    std::optional<amux::redis_backend> b{std::in_place, "redis://127.0.0.1:1"};
    const auto too_late = [&]() -> task<> {
        auto call = b->acquire("k", "t", 10s);
        b.reset();
        co_await call;
    };
    const std::string trouble = sync_wait(trouble_of(too_late));
    CHECK(trouble.find("the backend was destroyed") != trouble.npos);
}

TEST_CASE("redis: who is resumed on the backend's thread may destroy the backend",
          "[redis][faults]")
{
    fake_server server{[](const fake_server::words& command) {
        return fake_server::is_script(command) ? yes(command) : fake_server::greet(command);
    }};
    std::optional<amux::redis_backend> b{std::in_place, fast_options(server)};
    std::atomic<bool> gone{false};
    const auto ask = [&]() -> support::fire_and_forget {
        const bool granted = (co_await b->acquire("k", "t", 10s)).acquired;
        b.reset();
        gone = granted;
    };
    ask();
    for (int i = 0; !gone && i != 60'000; ++i)
        std::this_thread::sleep_for(1ms);
    CHECK(gone);
}

TEST_CASE("redis: a server whose clock runs away is asked twice, then it is a trouble",
          "[redis][faults]")
{
    std::atomic<int> asked{0};
    fake_server server{[&](const fake_server::words& command) {
        if (!fake_server::is_script(command))
            return fake_server::greet(command);
        ++asked;
        return fake_server::answer(command, -1);
    }};
    amux::redis_backend b{fast_options(server)};
    const std::string trouble = sync_wait(trouble_of([&] { return b.extend("k", "t", 10s); }));
    CHECK(trouble.find("came too late") != trouble.npos);
    CHECK(trouble.starts_with(to_string(backend_error_kind::not_applied)));
    CHECK(asked == 2);
}

TEST_CASE("redis: a lease without a value is nonsense", "[redis][faults]")
{
    fake_server server{[](const fake_server::words& command) {
        return fake_server::is_script(command)
                   ? fake_server::answer(command, 1, {":5\r\n", ":6\r\n"})
                   : fake_server::greet(command);
    }};
    amux::redis_backend b{fast_options(server, 2s)};
    const std::string trouble = sync_wait(trouble_of([&] { return b.get("k"); }));
    CHECK(trouble.find("makes no sense") != trouble.npos);
}

TEST_CASE("redis: what the system takes no more of is sent when there is room", "[redis][faults]")
{
    std::atomic<bool> slept{false};
    fake_server server{[&](const fake_server::words& command) {
        if (!fake_server::is_script(command))
            return fake_server::greet(command);
        if (!slept.exchange(true))
            std::this_thread::sleep_for(300ms); // and reads nothing
        return yes(command);
    }};
    amux::redis_backend b{fast_options(server)};
    const std::string metadata(500'000, 'm');
    std::vector<task<std::string>> calls;
    for (int i = 0; i != 48; ++i)
        calls.push_back(trouble_of([&b, &metadata, key = "k" + std::to_string(i)] {
            return b.acquire(key, "t", 10s, metadata);
        }));
    for (const std::string& trouble : sync_wait(amux::when_all(std::move(calls))))
        CHECK(trouble == "none");
}

TEST_CASE("redis wait: an answer to SUBSCRIBE that makes no sense ends by the limit",
          "[redis][faults]")
{
    const std::string answer =
        GENERATE(std::string{"+OK\r\n"}, std::string{"*1\r\n:1\r\n"},
                 "*3\r\n" + bulk("subscribe") + bulk("somebody's channel") + ":1\r\n",
                 "*3\r\n" + bulk("subscribe") + bulk("{amux}:free:another") + ":1\r\n",
                 "*3\r\n" + bulk("unsubscribe") + bulk("{amux}:free:k") + ":0\r\n",
                 std::string{"-LOADING it is\r\n"});
    fake_server server{[answer](const fake_server::words& command) {
        return command.front() == "SUBSCRIBE" ? fake_answer{answer} : fake_server::greet(command);
    }};
    amux::redis_backend b{fast_options(server, 400ms)};
    INFO(answer);
    const auto wait = [&] {
        return sync_wait(trouble_of([&] { return b.wait_for_release("k"); }));
    };
    std::string trouble = wait();
    for (int n = 0; n < 20 && server.accepted() < 2; ++n) // the limit is short
        trouble = wait();
    CHECK(trouble.find("subscription") != trouble.npos); // and no question has been asked
    CHECK(server.accepted() > 1); // it has tried again
}

TEST_CASE("redis wait: of two for one key that may not subscribe one is told, and both go on",
          "[redis][faults]")
{
    fake_server server{[](const fake_server::words& command) {
        if (command.front() == "SUBSCRIBE")
            return fake_answer{"-NOPERM you may not\r\n"};
        return fake_server::is_script(command) ? nobody_holds_it(command)
                                               : fake_server::greet(command);
    }};
    amux::redis_backend b{fast_options(server)};
    std::vector<task<std::string>> calls;
    for (int i = 0; i != 3; ++i)
        calls.push_back(trouble_of([&] { return b.wait_for_release("k"); }));
    std::size_t told = 0;
    for (const std::string& trouble : sync_wait(amux::when_all(std::move(calls))))
        told += trouble.find("NOPERM") != trouble.npos ? 1u : 0u;
    CHECK(told == 1);
}

TEST_CASE("redis wait: a server that will not do for leases is told to all who wait",
          "[redis][faults]")
{
    fake_server server{[](const fake_server::words& command) {
        if (command.front() == "INFO")
            return fake_answer{
                bulk("redis_mode:standalone\r\nrole:slave\r\nmaster_host:h\r\nmaster_port:1\r\n")};
        return fake_server::greet(command);
    }};
    amux::redis_backend b{fast_options(server)};
    std::vector<task<std::string>> calls;
    for (const char* const key : {"a", "a", "b"})
        calls.push_back(trouble_of([&b, key] { return b.wait_for_release(key); }));
    for (const std::string& trouble : sync_wait(amux::when_all(std::move(calls))))
        CHECK(trouble.find("is a replica") != trouble.npos);
}

TEST_CASE("redis: a node of a cluster will do when it serves the prefix", "[redis][faults]")
{
    support::redis_server server{{"--cluster-enabled", "yes"}};
    REQUIRE(!server.cli("CLUSTER", "ADDSLOTSRANGE", "0", "16383").is_error());
    amux::redis_backend b{server.url()};
    while (server.cli("CLUSTER", "INFO").text.find("cluster_state:ok") == std::string::npos)
        std::this_thread::sleep_for(5ms);
    CHECK(sync_wait(b.acquire("k", "t", 60s)).fence.has_value());
    CHECK(sync_wait(b.extend("k", "t", 60s)));
    CHECK(sync_wait(b.release("k", "t")));
    sync_wait(b.wait_for_release("k"));
}

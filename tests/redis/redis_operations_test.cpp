// SPDX-License-Identifier: BSL-1.0
// Without this file the backend could mix up answers, strand a coroutine, or leave things behind in the server.
#include <amux/redis_backend.hpp>

#include <amux/event_loop.hpp>
#include <amux/task.hpp>
#include <amux/when_all.hpp>

#include <redis/support/asked_here.hpp>
#include <redis/support/lease_client.hpp>
#include <redis/support/redis_server.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

using namespace std::chrono_literals;
using amux::backend_error_kind;
using amux::redis_backend;
using support::at;
using support::contains;
using support::in_the_end;
using support::redis_server;
using support::run;
using support::soon;

namespace {

bool take(redis_backend& b, const std::string& key, const std::string& token = "me")
{
    return run([&] { return b.acquire(key, token, 60s); }).acquired;
}

/// The error with which `make()` ends; none when it does not.
template <class F>
std::optional<amux::backend_error> trouble_of(F make)
{
    try {
        run(make);
    } catch (const amux::backend_error& e) {
        return e;
    }
    return std::nullopt;
}

amux::task<bool> take_and_release(redis_backend& b, std::string key)
{
    const auto got = co_await b.acquire(key, key + " token", 60s);
    const auto holder = co_await b.get(key);
    const bool kept = co_await b.extend(key, key + " token", 60s);
    const bool freed = co_await b.release(key, key + " token");
    co_return got.acquired&& holder == key + " token" && kept&& freed;
}

} // namespace

TEST_CASE("redis_backend: each of many operations at once gets its own answer", "[redis]")
{
    redis_server server;
    redis_backend backend{at(server)};
    for (int round = 0; round != 3; ++round) {
        server.cli("SCRIPT", "FLUSH"); // the scripts are unknown to the server again
        std::vector<amux::task<bool>> all;
        for (int n = 0; n != 500; ++n)
            all.push_back(take_and_release(backend, "key " + std::to_string(n)));
        amux::event_loop loop;
        const auto results = loop.block_on(amux::when_all(std::move(all)));
        CHECK(std::count(results.begin(), results.end(), true) == 500);
    }
}

TEST_CASE("redis_backend: what it keeps is one value a lease, and one counter a prefix", "[redis]")
{
    redis_server server;
    redis_backend backend{at(server)};
    for (int n = 0; n != 100; ++n)
        REQUIRE(take(backend, "key " + std::to_string(n)));
    CHECK(server.cli("DBSIZE").number == 101);
    const auto value = server.cli("GET", "{amux}:lock:key 7").text;
    CHECK(value == "amux1:2:me:" +
                       std::to_string(*run([&] { return backend.inspect("key 7"); })->fence) + ":");
    for (int n = 0; n != 100; ++n) {
        const std::string key = "key " + std::to_string(n);
        REQUIRE(run([&] { return backend.release(key, "me"); }));
    }
    CHECK(server.cli("KEYS", "*").parts.size() == 1);
    CHECK(server.cli("TTL", "{amux}:fence").number == -1);
}

TEST_CASE("redis_backend: the whole of a stranger's value counts as his token", "[redis]")
{
    redis_server server;
    redis_backend backend{at(server)};
    const std::string value = GENERATE("maintenance", "amux1:3:abc:", "amux1:2:me");
    server.cli("SET", "{amux}:lock:k", value);
    const auto refused = run([&] { return backend.acquire("k", "me", 60s); });
    CHECK(!refused.acquired);
    CHECK(!refused.holder_ttl);
    CHECK(run([&] { return backend.get("k"); }) == value);
    CHECK(!run([&] { return backend.extend("k", "me", 60s); }));
    CHECK(!run([&] { return backend.release("k", "me"); }));
    const auto info = run([&] { return backend.inspect("k"); });
    REQUIRE(info);
    CHECK(info->token == value);
    CHECK(!info->fence);
    CHECK(!info->remaining);
    const auto again = run([&] { return backend.acquire("k", value, 60s); });
    CHECK(again.acquired);
    CHECK(!again.fence);
    CHECK(run([&] { return backend.release("k", value); }));
    CHECK(!run([&] { return backend.get("k"); }));
}

TEST_CASE("redis_backend: a token that looks like a value of ours owns nothing by that", "[redis]")
{
    redis_server server;
    redis_backend backend{at(server)};
    REQUIRE(take(backend, "k", "me"));
    const std::string value = server.cli("GET", "{amux}:lock:k").text;
    CHECK(!run([&] { return backend.release("k", value); }));
    CHECK(!run([&] { return backend.extend("k", value, 60s); }));
    CHECK(!take(backend, "k", value));
    CHECK(run([&] { return backend.get("k"); }) == "me");
}

TEST_CASE("redis_backend: a key that holds something else is an error that names it", "[redis]")
{
    redis_server server;
    redis_backend backend{at(server)};
    server.cli("LPUSH", "{amux}:lock:k", "x");
    for (const auto& e : {trouble_of([&] { return backend.acquire("k", "t", 1s); }),
                          trouble_of([&] { return backend.extend("k", "t", 1s); }),
                          trouble_of([&] { return backend.release("k", "t"); }),
                          trouble_of([&] { return backend.get("k"); }),
                          trouble_of([&] { return backend.wait_for_release("k"); })}) {
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->kind() == backend_error_kind::permanent);
        CHECK(contains(e->what(), "WRONGTYPE"));
        CHECK(contains(e->what(), "key 'k'"));
        CHECK(contains(e->what(), "127.0.0.1:" + std::to_string(server.port())));
    }
    CHECK(server.cli("LLEN", "{amux}:lock:k").number == 1);
}

TEST_CASE("redis_backend: what no server need be asked for is refused at once", "[redis]")
{
    redis_backend nowhere{amux::redis_options{.port = 1}};
    const std::string long_text(600'000, 'x');
    for (const auto& e : {trouble_of([&] { return nowhere.acquire("k", "t", 0ms); }),
                          trouble_of([&] { return nowhere.extend("k", "t", -1ms); }),
                          trouble_of([&] { return nowhere.acquire("k", "t", 1s, long_text); }),
                          trouble_of([&] { return nowhere.release("k", long_text); })}) {
        REQUIRE(e);
        CHECK(e->kind() == backend_error_kind::permanent);
    }
}

TEST_CASE("redis_backend: without a server an operation ends in its time, and says why", "[redis]")
{
    redis_server server;
    redis_backend backend{at(server, 300ms)};
    server.kill9();
    const auto start = amux::clock::now();
    auto e = trouble_of([&] { return backend.acquire("k", "t", 1s); });
    CHECK(amux::clock::now() - start >= 300ms);
    for (int n = 0; n != 50 && e && contains(e->what(), "in time"); ++n) // to connect was not tried
        e = trouble_of([&] { return backend.acquire("k", "t", 1s); });
    REQUIRE(e);
    CHECK(e->kind() == backend_error_kind::not_applied);
    CHECK(contains(e->what(), "connect to 127.0.0.1:" + std::to_string(server.port())));
    CHECK(contains(e->what(), "Connection refused"));
    server.restart();
    CHECK(soon([&] { return !trouble_of([&] { return backend.get("k"); }); }));
}

TEST_CASE("redis_backend: it waits for a server that is coming", "[redis]")
{
    redis_server server;
    server.kill9();
    redis_backend backend{at(server, 20s)};
    amux::event_loop loop;
    std::optional<amux::acquire_result> got;
    const auto ask = [](redis_backend& b,
                        std::optional<amux::acquire_result>& out) -> amux::task<> {
        out = co_await b.acquire("k", "t", 60s);
    };
    loop.spawn(ask(backend, got));
    loop.run_ready();
    server.restart();
    CHECK(soon([&] { return loop.run_ready(), got.has_value(); }));
    CHECK(got->acquired);
}

TEST_CASE("redis_backend: an acquire that was given up is not carried out later", "[redis]")
{
    redis_server server;
    redis_backend backend{at(server, 200ms)};
    REQUIRE(in_the_end([&] { return take(backend, "other"); }));
    server.pause();
    const auto e = trouble_of([&] { return backend.acquire("k", "t", 60s); });
    REQUIRE(e);
    CHECK(e->kind() == backend_error_kind::indeterminate);
    CHECK(contains(e->what(), "no answer in 200 ms"));
    server.resume();
    CHECK(server.cli("EXISTS", "{amux}:lock:other").number == 1);
    std::this_thread::sleep_for(50ms); // for what the server may have in its buffers
    CHECK(server.cli("EXISTS", "{amux}:lock:k").number == 0);
    CHECK(in_the_end([&] { return take(backend, "k", "another"); }));
}

TEST_CASE("redis_backend: a coroutine that waits for an answer may be destroyed", "[redis]")
{
    redis_server server;
    redis_backend backend{at(server)};
    REQUIRE(take(backend, "k"));
    server.pause();
    {
        amux::event_loop loop;
        for (int n = 0; n != 20; ++n)
            loop.spawn(take_and_release(backend, "destroyed " + std::to_string(n)));
        const auto wait = [](redis_backend& b) -> amux::task<> {
            co_await b.wait_for_release("k");
        };
        for (int n = 0; n != 20; ++n)
            loop.spawn(wait(backend));
        loop.run_ready();
    }
    server.resume();
    // The answers to those who are gone go to nobody else.
    CHECK(run([&] { return backend.get("k"); }) == "me");
    CHECK(run([&] { return take_and_release(backend, "k2"); }));
    CHECK(soon([&] { return server.cli("PUBSUB", "CHANNELS").parts.empty(); }));
}

TEST_CASE("redis_backend: what is awaited when it is destroyed ends with an error", "[redis]")
{
    redis_server server;
    std::optional<redis_backend> backend{at(server)};
    REQUIRE(take(*backend, "k"));
    server.pause();
    amux::event_loop loop;
    int ended = 0;
    const auto count = [&ended](auto make) -> amux::task<> {
        auto ask = std::move(make);
        try {
            co_await ask();
        } catch (const amux::backend_error& e) {
            ended += contains(e.what(), "destroyed") ? 1 : 0;
        }
    };
    loop.spawn(count([&] { return backend->acquire("a", "t", 1s); }));
    loop.spawn(count([&] { return backend->extend("k", "me", 1s); }));
    loop.spawn(count([&] { return backend->get("k"); }));
    loop.spawn(count([&] { return backend->wait_for_release("k"); }));
    loop.run_ready();
    const auto start = amux::clock::now();
    backend.reset();
    CHECK(amux::clock::now() - start < 5s);
    CHECK(soon([&] { return loop.run_ready(), ended == 4; }));
    server.resume();
}

TEST_CASE("redis_backend: it may be moved while it is used", "[redis]")
{
    redis_server server;
    redis_backend first{at(server)};
    REQUIRE(take(first, "k"));
    redis_backend second{std::move(first)};
    CHECK(run([&] { return second.get("k"); }) == "me");
    redis_backend third{at(server)};
    REQUIRE(take(third, "k3"));
    third = std::move(second);
    CHECK(run([&] { return third.release("k", "me"); }));
    auto& self = third;
    third = std::move(self);
    CHECK(take(third, "k"));
}

TEST_CASE("redis_backend: one that was used before a fork is the parent's", "[redis]")
{
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
    SKIP("the thread sanitizer lets no child of a program with threads start one");
#endif
#endif
    redis_server server;
    std::optional<redis_backend> backend{at(server)};
    redis_backend unused{at(server)};
    REQUIRE(take(*backend, "k"));
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const auto e = trouble_of([&] { return backend->release("k", "me"); });
        const bool refused =
            e && e->kind() == backend_error_kind::permanent && contains(e->what(), "fork");
        backend.reset();
        const bool own = take(unused, "child's", "child");
        _exit(refused && own ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(run([&] { return backend->get("k"); }) == "me");
    CHECK(run([&] { return unused.get("child's"); }) == "child");
}

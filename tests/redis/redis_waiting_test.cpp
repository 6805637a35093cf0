// SPDX-License-Identifier: BSL-1.0
// Without this file who waits for a key in Redis could sleep over its release, or leave subscriptions behind.
#include <amux/redis_backend.hpp>

#include <amux/event_loop.hpp>
#include <amux/loop_thread.hpp>
#include <amux/task.hpp>

#include <redis/support/asked_here.hpp>
#include <redis/support/lease_client.hpp>
#include <redis/support/redis_server.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

using namespace std::chrono_literals;
using amux::redis_backend;
using support::at;
using support::redis_server;
using support::run;
using support::soon;

namespace {

bool take_for(redis_backend& b, const std::string& key, std::chrono::milliseconds ttl = 60s)
{
    return run([&] { return b.acquire(key, "me", ttl); }).acquired;
}

bool give(redis_backend& b, const std::string& key)
{
    return run([&] { return b.release(key, "me"); });
}

std::size_t channels_of(redis_server& server)
{
    return server.cli("PUBSUB", "CHANNELS").parts.size();
}

amux::task<> wait_for(redis_backend& b, std::string key, std::stop_token stop, int& ended)
{
    co_await b.wait_for_release(key, stop);
    ++ended;
}

/// Waits, for keys "0" to "count - 1", on a loop.
struct waits {
    waits(redis_backend& b, int count)
    {
        for (int n = 0; n != count; ++n)
            loop.spawn(wait_for(b, std::to_string(n), stop.get_token(), ended));
        loop.run_ready();
    }
    bool have_ended(int count)
    {
        return soon([&] { return loop.run_ready(), ended == count; });
    }

    int ended = 0;
    std::stop_source stop;
    amux::event_loop loop;
};

} // namespace

TEST_CASE("redis wait: it ends when the time of the holder is over", "[redis]")
{
    redis_server server;
    redis_backend backend{at(server)};
    const auto start = amux::clock::now();
    REQUIRE(take_for(backend, "0", 300ms));
    waits w{backend, 1};
    CHECK(w.have_ended(1));
    CHECK(amux::clock::now() - start >= 250ms);
    CHECK(amux::clock::now() - start < 4s);
    CHECK(take_for(backend, "0"));
}

TEST_CASE("redis wait: many wait on one connection, and leave nothing behind", "[redis]")
{
    constexpr int count = 500;
    redis_server server;
    redis_backend backend{at(server)};
    for (int n = 0; n != count; ++n)
        REQUIRE(take_for(backend, std::to_string(n)));
    auto w = std::make_unique<waits>(backend, count);
    REQUIRE(soon([&] { return channels_of(server) == count; }));
    CHECK(server.cli("CLIENT", "LIST", "TYPE", "pubsub").text.find('\n') ==
          server.cli("CLIENT", "LIST", "TYPE", "pubsub").text.size() - 1);
    SECTION("ended by releases")
    {
        for (int n = 0; n != count; ++n)
            CHECK(give(backend, std::to_string(n)));
        CHECK(w->have_ended(count));
    }
    SECTION("ended by a stop")
    {
        w->stop.request_stop();
        CHECK(w->have_ended(count));
    }
    SECTION("destroyed")
    {
        w = nullptr;
    }
    CHECK(soon([&] { return channels_of(server) == 0; }));
}

TEST_CASE("redis wait: several for one key are all told, and share a subscription", "[redis]")
{
    redis_server server;
    redis_backend backend{at(server)};
    REQUIRE(take_for(backend, "0"));
    waits w{backend, 1};
    for (int n = 0; n != 9; ++n)
        w.loop.spawn(wait_for(backend, "0", w.stop.get_token(), w.ended));
    w.loop.run_ready();
    REQUIRE(soon([&] {
        const auto count = server.cli("PUBSUB", "NUMSUB", "{amux}:free:0");
        return count.parts.at(1).number == 1;
    }));
    give(backend, "0");
    CHECK(w.have_ended(10));
}

TEST_CASE("redis wait: who is woken in vain still has his subscription", "[redis]")
{
    redis_server server;
    redis_backend backend{at(server)};
    REQUIRE(take_for(backend, "0"));
    server.cli("CONFIG", "RESETSTAT");
    for (int n = 0; n != 10; ++n) {
        waits w{backend, 1};
        REQUIRE(soon([&] { return channels_of(server) == 1; }));
        // As often as it takes: it may not have looked yet, or may have another 200 ms.
        CHECK(soon([&] {
            server.cli("PUBLISH", "{amux}:free:0", "");
            return w.loop.run_ready(), w.ended == 1;
        }));
    }
    const std::string stats = server.cli("INFO", "commandstats").text;
    const std::string name = "cmdstat_subscribe:calls=";
    REQUIRE(stats.find(name) != stats.npos);
    CHECK(std::stoi(stats.substr(stats.find(name) + name.size())) <= 5); // one, if nothing stalls
    CHECK(soon([&] { return channels_of(server) == 0; }));
}

TEST_CASE("redis wait: subscriptions are made again when the connection was lost", "[redis]")
{
    redis_server server;
    redis_backend holder{at(server)};
    redis_backend other{at(server)};
    REQUIRE(take_for(holder, "0"));
    REQUIRE(take_for(holder, "1"));
    waits w{other, 2};
    REQUIRE(soon([&] { return channels_of(server) == 2; }));
    SECTION("killed: a release afterwards is told")
    {
        server.cli("CLIENT", "KILL", "TYPE", "pubsub");
        REQUIRE(soon([&] { return channels_of(server) == 2; }));
    }
    SECTION("killed: a release in between is seen")
    {
        server.cli("MULTI");
        server.cli("CLIENT", "KILL", "TYPE", "pubsub");
        server.cli("DEL", "{amux}:lock:0", "{amux}:lock:1");
        server.cli("EXEC");
    }
    give(holder, "0");
    give(holder, "1");
    const auto start = amux::clock::now();
    CHECK(w.have_ended(2));
    CHECK(amux::clock::now() - start < 4s);
}

TEST_CASE("redis wait: stops and releases race, and nobody is lost", "[redis]")
{
    redis_server server;
    redis_backend backend{at(server)};
    amux::loop_thread runner;
    for (int round = 0; round != 200; ++round) {
        REQUIRE(take_for(backend, "0"));
        std::stop_source stop;
        std::atomic<int> ended{0};
        const auto wait = [](redis_backend& b, std::stop_token t,
                             std::atomic<int>& n) -> amux::task<> {
            co_await b.wait_for_release("0", t);
            ++n;
        };
        for (int n = 0; n != 3; ++n)
            runner.loop().spawn(wait(backend, stop.get_token(), ended));
        std::thread stopper{[&] { stop.request_stop(); }};
        give(backend, "0");
        stopper.join();
        REQUIRE(soon([&] { return ended == 3; }));
    }
}

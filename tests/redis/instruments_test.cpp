// SPDX-License-Identifier: BSL-1.0
// Without this file a broken instrument would look like a broken library.
#include "redis/support/fake_server.hpp"
#include "redis/support/redis_server.hpp"
#include "redis/support/tcp_proxy.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include <hiredis/hiredis.h>
#include <sys/time.h>

using support::fake_server;
using support::redis_server;
using support::tcp_proxy;
using namespace std::chrono_literals;

namespace {

/// A client that waits for an answer, though not for ever.
class plain_client {
public:
    explicit plain_client(int port, int milliseconds = 10'000)
        : context_{redisConnect("127.0.0.1", port), &redisFree}
    {
        patience(milliseconds);
    }
    void patience(int milliseconds)
    {
        redisSetTimeout(context_.get(), timeval{milliseconds / 1000, milliseconds % 1000 * 1000});
    }
    bool connected() const { return context_ && context_->err == 0; }

    /// What the server said, or what went wrong.
    std::string ask(const char* command)
    {
        redisAppendCommand(context_.get(), command);
        return next();
    }
    std::string next()
    {
        void* got = nullptr;
        if (redisGetReply(context_.get(), &got) != REDIS_OK) {
            context_->err = 0; // the connection itself may be in order, with an answer to come
            return "nothing";
        }
        auto* const reply = static_cast<redisReply*>(got);
        std::string text = reply->str != nullptr ? reply->str : std::to_string(reply->integer);
        freeReplyObject(reply);
        return text;
    }

private:
    std::unique_ptr<redisContext, void (*)(redisContext*)> context_;
};

} // namespace

TEST_CASE("redis_server: it keeps over a kill what it put on the disk", "[redis][instruments]")
{
    redis_server server{{"--appendonly", "yes", "--appendfsync", "always"}};
    REQUIRE(server.cli("SET", "a", 1).text == "OK");
    const int port = server.port();
    server.restart();
    CHECK(server.port() == port);
    CHECK(server.cli("GET", "a").text == "1");
}

TEST_CASE("redis_server: it forgets over a kill what it did not put on the disk",
          "[redis][instruments]")
{
    redis_server server;
    REQUIRE(server.cli("SET", "a", 1).text == "OK");
    server.restart();
    CHECK(server.cli("GET", "a").is_nil());
}

TEST_CASE("redis_server: a password in its arguments is the one that cli uses",
          "[redis][instruments]")
{
    redis_server server{{"--requirepass", "secret"}};
    CHECK(server.cli("PING").text == "PONG");
}

TEST_CASE("tcp_proxy: it passes commands and answers, and closes what is closed",
          "[redis][instruments]")
{
    redis_server server;
    tcp_proxy proxy{server.port()};
    {
        plain_client client{proxy.port()};
        CHECK(client.ask("INCR n") == "1");
        CHECK(client.ask("INCR n") == "2");
        CHECK(proxy.connected() == 1);
    }
    while (proxy.connected() != 0)
        std::this_thread::sleep_for(1ms);
    CHECK(proxy.messages(tcp_proxy::to_server) == 2);
    CHECK(proxy.messages(tcp_proxy::to_client) == 2);
}

TEST_CASE("tcp_proxy: it loses and repeats whole messages", "[redis][instruments]")
{
    redis_server server;
    tcp_proxy proxy{server.port()};
    plain_client client{proxy.port()};
    SECTION("an answer lost")
    {
        proxy.lose(tcp_proxy::to_client, 1);
        client.patience(50);
        CHECK(client.ask("INCR n") == "nothing");
        while (proxy.messages(tcp_proxy::to_client) == 0)
            std::this_thread::sleep_for(1ms);
        CHECK(client.next() == "nothing");
        CHECK(server.cli("GET", "n").text == "1");
    }
    SECTION("a command lost")
    {
        proxy.lose(tcp_proxy::to_server, 1);
        client.patience(50);
        CHECK(client.ask("INCR n") == "nothing");
        while (proxy.messages(tcp_proxy::to_server) == 0)
            std::this_thread::sleep_for(1ms);
        CHECK(client.next() == "nothing");
        CHECK(server.cli("GET", "n").is_nil());
    }
    SECTION("a command twice")
    {
        proxy.repeat(tcp_proxy::to_server, 1);
        CHECK(client.ask("INCR n") == "1");
        CHECK(client.next() == "2");
    }
}

TEST_CASE("tcp_proxy: what it holds up arrives when it heals", "[redis][instruments]")
{
    redis_server server;
    tcp_proxy proxy{server.port()};
    plain_client client{proxy.port()};
    REQUIRE(client.ask("INCR n") == "1");
    proxy.black_hole();
    client.patience(50);
    CHECK(client.ask("INCR n") == "nothing");
    CHECK(server.cli("GET", "n").text == "1");
    proxy.heal();
    client.patience(10'000);
    CHECK(client.next() == "2");
}

TEST_CASE("tcp_proxy: it delays and trickles", "[redis][instruments]")
{
    redis_server server;
    tcp_proxy proxy{server.port()};
    plain_client client{proxy.port()};
    const auto start = std::chrono::steady_clock::now();
    SECTION("a delay each way")
    {
        proxy.delay(30ms);
        CHECK(client.ask("PING") == "PONG");
    }
    SECTION("seven bytes of an answer, and those of the command")
    {
        proxy.trickle(5ms);
        CHECK(client.ask("PING") == "PONG");
    }
    CHECK(std::chrono::steady_clock::now() - start >= 60ms);
}

TEST_CASE("tcp_proxy: it cuts, resets and refuses connections", "[redis][instruments]")
{
    redis_server server;
    tcp_proxy proxy{server.port()};
    plain_client client{proxy.port()};
    REQUIRE(client.ask("INCR n") == "1");
    SECTION("after three bytes of an answer")
    {
        proxy.cut_after(tcp_proxy::to_client, 3);
        CHECK(client.ask("INCR n") == "nothing");
        CHECK(server.cli("GET", "n").text == "2");
    }
    SECTION("reset at once")
    {
        proxy.reset_all();
        CHECK(client.ask("INCR n") == "nothing");
    }
    SECTION("reset by a message")
    {
        proxy.decide([](const tcp_proxy::message& m) {
            tcp_proxy::fate f;
            if (m.bytes.find("GET") != std::string_view::npos)
                f.what = tcp_proxy::fate::kind::reset;
            return f;
        });
        CHECK(client.ask("INCR n") == "2");
        CHECK(client.ask("GET n") == "nothing");
    }
    SECTION("refused, and taken again")
    {
        proxy.refuse();
        while (plain_client{proxy.port()}.connected())
            std::this_thread::sleep_for(1ms);
        CHECK(client.ask("INCR n") == "2");
        proxy.heal();
        while (!plain_client{proxy.port()}.connected())
            std::this_thread::sleep_for(1ms);
    }
}

TEST_CASE("fake_server: it says what the test wants", "[redis][instruments]")
{
    fake_server server{[](const fake_server::words& command) -> support::fake_answer {
        if (command.front() == "HALF")
            return {"$1000\r\nabc"};
        if (command.front() == "BYE")
            return {"", true};
        return fake_server::greet(command);
    }};
    plain_client client{server.port()};
    CHECK(client.ask("PING") == "PONG");
    client.patience(50);
    CHECK(client.ask("HALF") == "nothing");
    CHECK(plain_client{server.port()}.ask("BYE") == "nothing");
    CHECK(server.accepted() == 2);
    CHECK(server.commands() == 3);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file whatever listens on the port, or stands in a URL, may hang, fill or crash a program.
#include "redis/support/fake_server.hpp"
#include "redis/support/lease_client.hpp"
#include "redis/support/redis_server.hpp"
#include "support/scale.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <sys/resource.h>

using namespace std::chrono_literals;
using amux::backend_error_kind;
using amux::sync_wait;
using support::bulk;
using support::fake_answer;
using support::fake_server;

namespace {

/// With the number of the command for each '@'.
std::string numbered(std::string answer, const fake_server::words& command)
{
    for (std::size_t at = 0; (at = answer.find('@', at)) != std::string::npos;)
        answer.replace(at, 1, command.back());
    return answer;
}

/// A server that is healthy until it is asked to run a script; then it says `answer`.
std::unique_ptr<fake_server> sick_server(fake_answer answer)
{
    return std::make_unique<fake_server>([answer](const fake_server::words& command) {
        return fake_server::is_script(command)
                   ? fake_answer{numbered(answer.bytes, command), answer.then_close}
                   : fake_server::greet(command);
    });
}

amux::redis_options at(int port, std::chrono::milliseconds limit = 150ms)
{
    amux::redis_options o;
    o.port = port;
    o.command_timeout = limit;
    o.connect_timeout = limit;
    return o;
}

/// Every operation in turn; what the last one that failed said, or what was answered.
struct outcome {
    int errors = 0;
    std::string last;
    bool granted = false;
};
outcome try_all(amux::redis_backend& b)
{
    outcome o;
    const auto attempt = [&](auto f) {
        try {
            f();
        } catch (const amux::backend_error& e) {
            ++o.errors;
            o.last = e.what();
        }
    };
    attempt([&] { o.granted = sync_wait(b.acquire("the-key", "token", 10s)).acquired; });
    attempt([&] { sync_wait(b.extend("the-key", "token", 10s)); });
    attempt([&] { sync_wait(b.release("the-key", "token")); });
    attempt([&] { sync_wait(b.get("the-key")); });
    attempt([&] { sync_wait(b.inspect("the-key")); });
    return o;
}

long peak_megabytes()
{
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss / 1024;
}

} // namespace

TEST_CASE("redis: an answer of nonsense is a trouble that names key and server, never a grant",
          "[redis][faults]")
{
    const std::string now = fake_server::microseconds_now();
    const std::string answer = GENERATE_COPY(
        std::string{"garbage\r\n"}, std::string{"\r\n\r\n"}, std::string(64, '\0'),
        std::string{"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"},
        std::string{"+OK\r\n"}, std::string{":1\r\n"}, std::string{"$-1\r\n"},
        std::string{"*-1\r\n"}, std::string{"*0\r\n"}, std::string{"$2\r\nhixx"},
        std::string{"$-7\r\n"}, std::string{"*-7\r\n"},
        std::string{":99999999999999999999999999\r\n"}, "*1\r\n:" + now + "\r\n",
        "*3\r\n:" + now + "\r\n:7\r\n:@\r\n", "*3\r\n:" + now + "\r\n$1\r\n1\r\n:@\r\n",
        "*3\r\n:" + now + "\r\n+OK\r\n:@\r\n", "*4\r\n:" + now + "\r\n*1\r\n:1\r\n:1\r\n:@\r\n",
        "*4\r\n:" + now + "\r\n:1\r\n:-5\r\n:@\r\n",
        "*4\r\n:" + now + "\r\n:1\r\n" + bulk("-5") + ":@\r\n",
        "*4\r\n:" + now + "\r\n:1\r\n" + bulk("99999999999999999999999") + ":@\r\n",
        "*4\r\n:" + now + "\r\n:1\r\n" + bulk("5x") + ":@\r\n", "*3\r\n-ERR inside\r\n:1\r\n:@\r\n",
        "*3\r\n+" + now + "\r\n:1\r\n:@\r\n", "*3\r\n:" + now + "\r\n:1\r\n" + bulk("5"),
        "*4\r\n:" + now + "\r\n:1\r\n" + bulk("5") + ":4711\r\n",
        "*4\r\n:" + now + "\r\n:1\r\n" + bulk("5") + bulk("@"));
    const auto server = sick_server({answer});
    amux::redis_backend b{at(server->port())};
    const outcome o = try_all(b);
    INFO(answer);
    CHECK_FALSE(o.granted);
    CHECK(o.errors >= 1);
    CHECK(o.last.find("127.0.0.1:" + std::to_string(server->port())) != std::string::npos);
}

TEST_CASE("redis: half an answer, or none, ends by the limit", "[redis][faults]")
{
    const std::string answer = GENERATE(std::string{}, std::string{"*"}, std::string{"*3\r\n:17"},
                                        std::string{"*3\r\n:1\r\n:1\r\n$10\r\nabc"});
    const bool then_close = GENERATE(false, true);
    const auto server = sick_server({answer, then_close});
    amux::redis_backend b{at(server->port())};
    const outcome o = try_all(b);
    CHECK(o.errors == 5);
    CHECK_FALSE(o.granted);
    CHECK(o.last.find("127.0.0.1:" + std::to_string(server->port())) != std::string::npos);
}

TEST_CASE("redis: an answer that announces more than there can be takes no memory",
          "[redis][faults]")
{
    const std::string answer =
        GENERATE(std::string{"$1073741824\r\n"}, std::string{"$9223372036854775807\r\n"},
                 std::string{"*1073741824\r\n"}, std::string{"*2147483647\r\n:1\r\n"},
                 std::string{"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"},
                 "$1073741824\r\n" + std::string(8'000'000, 'x'));
    const long before = peak_megabytes();
    const auto server = sick_server({answer});
    amux::redis_backend b{at(server->port(), 500ms)};
    const outcome o = try_all(b);
    CHECK(o.errors == 5);
    CHECK_FALSE(o.granted);
    CHECK(peak_megabytes() - before < 300);
}

TEST_CASE("redis: whatever greets like nonsense is no server, and the message says which",
          "[redis][faults]")
{
    const std::string answer = GENERATE(
        std::string{"HTTP/1.1 400 Bad Request\r\n\r\n"}, std::string{"SSH-2.0-OpenSSH\r\n"},
        std::string{"+OK\r\n"}, std::string{":5\r\n"}, std::string{"*0\r\n"},
        std::string{"$-1\r\n"}, std::string{"-ERR unknown command\r\n"}, std::string{});
    fake_server server{[&](const fake_server::words&) { return fake_answer{answer}; }};
    amux::redis_backend b{at(server.port())};
    const outcome o = try_all(b);
    INFO(answer << ": " << o.last);
    CHECK(o.errors == 5);
    CHECK(o.last.find("127.0.0.1:" + std::to_string(server.port())) != std::string::npos);
}

TEST_CASE("redis: a server that is nonsense for a while is asked again later", "[redis][faults]")
{
    std::atomic<bool> sane{false};
    fake_server server{[&](const fake_server::words& command) -> fake_answer {
        if (!sane)
            return {"nonsense\r\n"};
        if (fake_server::is_script(command))
            return fake_server::answer(command, 1, {bulk("5")});
        return fake_server::greet(command);
    }};
    amux::redis_backend b{at(server.port())};
    CHECK(try_all(b).errors == 5);
    sane = true;
    CHECK(support::soon([&] { return try_all(b).granted; }));
}

TEST_CASE("redis: random answers never crash, hang or grant without saying so", "[redis][faults]")
{
    const unsigned seed = Catch::getSeed();
    INFO("seed " << seed);
    std::mt19937 random{seed};
    std::atomic<int> said{0};
    std::vector<std::string> answers;
    const auto pick = [&](std::size_t n) { return random() % n; };
    const int rounds = std::min(2'000, support::scaled(300));
    for (int n = 0; n < rounds; ++n) {
        const std::array parts{std::string{"*3\r\n"},
                               ":" + fake_server::microseconds_now() + "\r\n",
                               std::string{":1\r\n"},
                               std::string{":0\r\n"},
                               std::string{":-1\r\n"},
                               bulk("5"),
                               std::string{"$-1\r\n"},
                               std::string{"-ERR x\r\n"},
                               std::string{"-NOSCRIPT x\r\n"},
                               std::string{":@\r\n"},
                               std::string{"\r\n"}};
        std::string text = pick(2) == 0 ? parts[0] + parts[1] : "";
        for (std::size_t m = pick(5); m > 0; --m)
            text += parts[pick(parts.size())];
        for (std::size_t m = pick(3); m > 0 && !text.empty(); --m)
            text[pick(text.size())] = static_cast<char>(pick(256));
        answers.push_back(text);
    }
    fake_server server{[&](const fake_server::words& command) -> fake_answer {
        if (!fake_server::is_script(command))
            return fake_server::greet(command);
        const auto n = static_cast<std::size_t>(said++);
        if (n % 2 ==
            0) // a sane one in between: else the pauses grow between the attempts to connect
            return fake_server::answer(command, 0, {":5\r\n"});
        return {numbered(answers[n / 2 % answers.size()], command), n % 7 == 0};
    }};
    amux::redis_backend b{at(server.port(), 50ms)};
    while (said < 2 * rounds)
        try_all(b);
    SUCCEED("it came to an end");
}

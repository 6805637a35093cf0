// SPDX-License-Identifier: BSL-1.0
// Without this file an error reply may be read as an answer, or end a lease that it says nothing about.
#include "redis/support/fake_server.hpp"
#include "redis/support/lease_client.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

using namespace std::chrono_literals;
using amux::backend_error_kind;
using amux::sync_wait;
using support::fake_answer;
using support::fake_server;

namespace {

struct reply_of_error {
    const char* text;
    backend_error_kind kind;
};

constexpr auto not_applied = backend_error_kind::not_applied;
constexpr auto permanent = backend_error_kind::permanent;
constexpr auto indeterminate = backend_error_kind::indeterminate;

} // namespace

TEST_CASE("redis: every error reply has one meaning, and the message names key, server and cause",
          "[redis][faults]")
{
    const reply_of_error e = GENERATE(
        reply_of_error{"MOVED 3999 127.0.0.1:6381", permanent},
        reply_of_error{"ASK 3999 127.0.0.1:6381", permanent},
        reply_of_error{"CROSSSLOT Keys in request don't hash to the same slot", permanent},
        reply_of_error{"CLUSTERDOWN The cluster is down", not_applied},
        reply_of_error{"LOADING Redis is loading the dataset in memory", not_applied},
        reply_of_error{"MASTERDOWN Link with MASTER is down", not_applied},
        reply_of_error{"MISCONF Redis is configured to save RDB snapshots", not_applied},
        reply_of_error{"NOREPLICAS Not enough good replicas to write.", not_applied},
        reply_of_error{"TRYAGAIN Multiple keys request during rehashing of slot", not_applied},
        reply_of_error{"OOM command not allowed when used memory > 'maxmemory'.", not_applied},
        reply_of_error{"BUSY Redis is busy running a script.", not_applied},
        reply_of_error{"READONLY You can't write against a read only replica.", not_applied},
        reply_of_error{"NOPERM this user has no permissions to run the 'evalsha' command",
                       permanent},
        reply_of_error{"NOAUTH Authentication required.", permanent},
        reply_of_error{"WRONGTYPE Operation against a key holding the wrong kind of value",
                       permanent},
        reply_of_error{"ERR unknown command 'EVALSHA'", permanent},
        reply_of_error{"ERR something that nobody has heard of", indeterminate},
        reply_of_error{"UNHEARD", indeterminate}, reply_of_error{"", indeterminate},
        reply_of_error{"%s%n", indeterminate});
    fake_server server{[&](const fake_server::words& command) -> fake_answer {
        if (fake_server::is_script(command))
            return {'-' + std::string{e.text} + "\r\n"};
        return fake_server::greet(command);
    }};
    amux::redis_backend b{server.url()};
    const auto check = [&](auto operation) {
        try {
            sync_wait(std::move(operation));
            FAIL("it was answered");
        } catch (const amux::backend_error& trouble) {
            const std::string what = trouble.what();
            INFO(what);
            CHECK(trouble.kind() == e.kind);
            CHECK(what.find("the-key") != std::string::npos);
            CHECK(what.find("127.0.0.1:" + std::to_string(server.port())) != std::string::npos);
            CHECK(what.find(e.text) != std::string::npos);
        }
    };
    check(b.acquire("the-key", "token", 10s));
    check(b.extend("the-key", "token", 10s));
    check(b.release("the-key", "token"));
    check(b.get("the-key"));
    check(b.inspect("the-key"));
}

TEST_CASE("redis: an error in the greeting is told to who asks, with its meaning",
          "[redis][faults]")
{
    const reply_of_error e =
        GENERATE(reply_of_error{"LOADING Redis is loading the dataset in memory", not_applied},
                 reply_of_error{"NOAUTH Authentication required.", permanent},
                 reply_of_error{"ERR max number of clients reached", not_applied},
                 reply_of_error{"MASTERDOWN Link with MASTER is down", not_applied});
    const bool then_close = GENERATE(false, true);
    fake_server server{[&](const fake_server::words&) -> fake_answer {
        return {'-' + std::string{e.text} + "\r\n", then_close};
    }};
    amux::redis_options o;
    o.port = server.port();
    o.command_timeout = 300ms;
    amux::redis_backend b{o};
    const auto ask = [&] {
        try {
            sync_wait(b.acquire("the-key", "token", 10s));
        } catch (const amux::backend_error& trouble) {
            return trouble;
        }
        throw std::logic_error("it was answered");
    };
    auto trouble = ask();
    // A limit so short may be over before the first greeting was answered.
    for (int n = 0; n < 50 && std::string{trouble.what()}.find("in time") != std::string::npos; ++n)
        trouble = ask();
    INFO(trouble.what());
    CHECK(trouble.kind() == e.kind);
    CHECK(std::string{trouble.what()}.find(e.text) != std::string::npos);
}

TEST_CASE("redis: one error reply in a renewal ends no lease, whatever it says", "[redis][faults]")
{
    const char* const text =
        GENERATE("NOPERM no", "MOVED 1 127.0.0.1:1", "OOM full", "ERR odd", "READONLY replica");
    std::atomic<int> scripts{0};
    fake_server server{[&](const fake_server::words& command) -> fake_answer {
        if (!fake_server::is_script(command))
            return fake_server::greet(command);
        if (++scripts == 2)
            return {'-' + std::string{text} + "\r\n"};
        return fake_server::answer(command, 1, {support::bulk("5")});
    }};
    support::lease_client a{server.url()};
    const auto l = a.acquire("k", {.ttl = 20s, .renew = true, .renew_interval = 100ms});
    CHECK(a.hears("error", text));
    CHECK(a.hears("renew", "k", 2));
    CHECK(l.is_held());
    CHECK(a.heard("lost") == 0);
    CHECK(a.heard("error") == 1);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file the ACL line in the docs could be wrong, or wider than it must be, and nobody would know what a right
// that is missing looks like.
#include "redis/support/every_operation.hpp"
#include "redis/support/redis_server.hpp"

#include <amux/event_loop.hpp>
#include <amux/redis_backend.hpp>
#include <amux/task.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

using namespace std::chrono_literals;

namespace {

/// As it stands in docs/redis.md.
constexpr std::string_view line_of_the_docs = R"(
// [acl]
ACL SETUSER amux reset on >PASSWORD ~{amux}:* &{amux}:free:* +evalsha +eval +time +get +set +incr +pexpire +pttl +del +publish +subscribe +unsubscribe +info +client|setname +select
// [/acl]
)";

/// The words of the line, without `left_out`.
std::vector<std::string> acl_line(std::string_view left_out = {})
{
    std::vector<std::string> words;
    std::istringstream lines{std::string{line_of_the_docs}};
    for (std::string line; std::getline(lines, line);) {
        std::istringstream in{line.starts_with("//") ? "" : line};
        for (std::string word; in >> word;) {
            if (word != left_out)
                words.push_back(word);
        }
    }
    return words;
}

amux::redis_options as_user(const support::redis_server& server)
{
    return {.port = server.port(),
            .username = "amux",
            .password = "PASSWORD",
            .database = 1,
            .connect_timeout = 20s,
            .command_timeout = 20s};
}

amux::redis_options as_anybody(const support::redis_server& server)
{
    return {.port = server.port(), .database = 1, .connect_timeout = 20s, .command_timeout = 20s};
}

enum class request { take, take_again, take_held, extend, look, release };

amux::task<bool> answer_to(amux::redis_backend& b, request r)
{
    bool yes = false;
    if (r == request::take) {
        yes = (co_await b.acquire("free", "other", 60s)).acquired;
    } else if (r == request::take_again) {
        yes = (co_await b.acquire("held", "owner", 60s)).acquired;
    } else if (r == request::take_held) {
        yes = (co_await b.acquire("held", "other", 60s)).acquired;
    } else if (r == request::extend) {
        yes = co_await b.extend("held", "owner", 60s);
    } else if (r == request::look) {
        const auto info = co_await b.inspect("held");
        yes = info.has_value();
    } else {
        yes = co_await b.release("held", "owner");
    }
    co_return yes;
}

/// 'y' yes, 'n' no, 'P' permanent trouble that tells of the right, '?' any other.
amux::task<char> outcome_of(amux::redis_backend& b, request r)
{
    try {
        const bool yes = co_await answer_to(b, r);
        co_return yes ? 'y' : 'n';
    } catch (const amux::backend_error& e) {
        const std::string_view text = e.what();
        UNSCOPED_INFO(text);
        co_return e.kind() ==
                amux::backend_error_kind::permanent&& text.find("the ACL user lacks a right") !=
                text.npos
            ? 'P'
            : '?';
    }
}

/// The last right that was refused, as the server tells it.
std::string refused(support::redis_server& server)
{
    const auto log = server.cli("ACL", "LOG", 1);
    if (log.parts.empty())
        return {};
    const auto& fields = log.parts[0].parts;
    for (std::size_t n = 0; n + 1 < fields.size(); n += 2) {
        if (fields[n].text == "object")
            return fields[n + 1].text;
    }
    return {};
}

/// In the order of `request`, on a server that has one lease, and knows no script.
std::string outcomes(support::redis_server& server, amux::redis_backend& limited)
{
    amux::event_loop loop;
    server.cli("FLUSHALL");
    amux::redis_backend owner{as_anybody(server)};
    CHECK(loop.block_on(answer_to(owner, request::take_again)));
    server.cli("SCRIPT", "FLUSH");
    std::string all;
    for (const auto r : {request::take, request::take_again, request::take_held, request::extend,
                         request::look, request::release})
        all += loop.block_on(outcome_of(limited, r));
    return all;
}

amux::task<std::string> wait_for(amux::redis_backend& b, std::string_view key)
{
    std::string trouble;
    try {
        co_await b.wait_for_release(key);
    } catch (const amux::backend_error& e) {
        trouble = e.what();
    }
    co_return trouble;
}

/// Somebody else takes the key for a moment; then we wait for its release. Gives what went wrong.
std::string wait_for_taken(support::redis_server& server, amux::redis_backend& b,
                           std::string_view key)
{
    server.cli("SELECT", 1);
    server.cli("SET", "{amux}:lock:" + std::string{key}, "somebody", "PX", 200);
    amux::event_loop loop;
    return loop.block_on(wait_for(b, key));
}

amux::task<> release_later(amux::redis_backend& b, amux::event_loop& loop)
{
    co_await loop.sleep_for(100ms);
    co_await b.release("held", "owner");
}

amux::task<bool> take(amux::distributed_lock<amux::redis_backend>& locks)
{
    auto lease = co_await locks.acquire("held", {.poll_interval = 50ms});
    co_return co_await lease.release();
}

} // namespace

TEST_CASE("redis_backend: the rights that the docs name are enough for everything", "[redis][acl]")
{
    support::redis_server server;
    REQUIRE(server.run(acl_line()).text == "OK");
    server.cli("ACL", "SETUSER", "default", "nopass", "on");
    amux::redis_backend backend{as_user(server)};
    support::check_every_operation(backend);
    CHECK(server.cli("CLIENT", "LIST").text.find("name=amux") != std::string::npos);
    CHECK(server.cli("ACL", "LOG").parts.empty()); // nothing was refused
}

TEST_CASE("redis_backend: whatever needs a right that is missing says so", "[redis][acl]")
{
    struct row {
        const char* right;
        const char* outcomes; // take, take again, take a held one, extend, look, release
        const char* logged = ""; // by the server
    };
    support::redis_server server;
    for (const row& r : {
             row{"", "yynyyy"},
             row{"~{amux}:*", "PPPPPP", "{amux}:lock:held"},
             row{"+evalsha", "PPPPPP", "evalsha"},
             row{"+eval", "PPPPPP", "eval"},
             row{"+time", "PPPPPP", "time"},
             row{"+get", "PPPPPP", "get"},
             row{"+select", "PPPPPP", "select"},
             row{"+set", "Pynyyy", "set"},
             row{"+incr", "Pynyyy", "incr"},
             row{"+pexpire", "yPnPyy", "pexpire"},
             row{"+pttl", "yyPyPy", "pttl"},
             row{"+del", "yynyyP", "del"},
             row{"+publish", "yynyyy", "publish"},
             row{"&{amux}:free:*", "yynyyy", "{amux}:free:held"},
             row{"+subscribe", "yynyyy"},
             row{"+unsubscribe", "yynyyy"},
             row{"+info", "yynyyy", "info"},
             row{"+client|setname", "yynyyy", "client|setname"},
         }) {
        INFO("without " << r.right);
        REQUIRE(server.run(acl_line(r.right)).text == "OK");
        amux::redis_backend limited{as_user(server)};
        server.cli("ACL", "LOG", "RESET");
        CHECK(outcomes(server, limited) == r.outcomes);
        CHECK(refused(server) == r.logged);
    }
}

TEST_CASE("redis_backend: who may not subscribe is told once, and then looks", "[redis][acl]")
{
    support::redis_server server;
    SECTION("no right to the command")
    {
        REQUIRE(server.run(acl_line("+subscribe")).text == "OK");
    }
    SECTION("no right to the channel")
    {
        REQUIRE(server.run(acl_line("&{amux}:free:*")).text == "OK");
    }
    amux::redis_backend limited{as_user(server)};
    CHECK(wait_for_taken(server, limited, "a").find("NOPERM") != std::string::npos);
    CHECK(wait_for_taken(server, limited, "a") == "");
    CHECK(wait_for_taken(server, limited, "b") == "");
}

TEST_CASE("redis_backend: who may not unsubscribe waits on", "[redis][acl]")
{
    support::redis_server server;
    REQUIRE(server.run(acl_line("+unsubscribe")).text == "OK");
    amux::redis_backend limited{as_user(server)};
    for (const char* key : {"a", "b", "a"})
        CHECK(wait_for_taken(server, limited, key) == "");
}

TEST_CASE("redis_backend: who waits for one that may not publish gets the key by a poll",
          "[redis][acl]")
{
    support::redis_server server;
    REQUIRE(server.run(acl_line("+publish")).text == "OK");
    amux::redis_backend limited{as_user(server)};
    amux::event_loop loop;
    REQUIRE(loop.block_on(answer_to(limited, request::take_again))); // for a minute
    auto locks = amux::make_redis_lock(as_anybody(server), loop);
    loop.spawn(release_later(limited, loop));
    CHECK(loop.block_on(take(locks)));
}

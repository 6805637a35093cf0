// SPDX-License-Identifier: BSL-1.0
// Without this file leases could be kept by a server that will forget them, or that refuses every one of them.
#include <amux/detail/redis_greeting.hpp>
#include <amux/detail/redis_reply.hpp>
#include <amux/detail/redis_settings.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using amux::backend_error_kind;
using amux::redis_options;
using amux::detail::redis_greeting;

namespace {

const std::string ok = "+OK\r\n";
const std::string now = "*2\r\n$10\r\n1790000000\r\n$1\r\n5\r\n";

std::string bulk(const std::string& text)
{
    return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
}

std::string info(const std::string& lines)
{
    return bulk("# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n" + lines);
}

/// What a greeting makes of these replies; it must want exactly so many.
redis_greeting greeted(const redis_options& options, const std::string& bytes)
{
    redis_greeting g;
    std::string out;
    g.begin(amux::detail::redis_settings{options}, out);
    amux::detail::redis_reply_reader reader;
    std::vector<amux::detail::redis_reply_ptr> replies;
    REQUIRE(reader.feed(bytes, replies).empty());
    for (const auto& r : replies) {
        REQUIRE(!g.done());
        g.on_reply(*r, "h:1");
    }
    REQUIRE(g.done());
    return g;
}

} // namespace

TEST_CASE("redis greeting: it says who we are, where we want to go, and asks for the time",
          "[redis]")
{
    redis_greeting g;
    std::string out;
    g.begin(amux::detail::redis_settings{{.username = "u", .password = "p", .database = 7}}, out);
    CHECK(out ==
          "*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$1\r\np\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n7\r\n"
          "*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$4\r\namux\r\n*1\r\n$4\r\nINFO\r\n"
          "*1\r\n$4\r\nTIME\r\n");
}

TEST_CASE("redis greeting: a plain server will do, and tells its time", "[redis]")
{
    const std::string memory = GENERATE("", "maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n",
                                        "maxmemory:1000\r\nmaxmemory_policy:noeviction\r\n",
                                        "role:master\r\ncluster_enabled:0\r\n",
                                        "redis_mode:cluster\r\ncluster_enabled:1\r\n");
    const auto g = greeted({.password = "p"}, ok + ok + info(memory) + now);
    CHECK(!g.trouble());
    CHECK(g.time() == 1'790'000'000s + 5us);
}

TEST_CASE("redis greeting: one that cannot keep leases is refused for good, with a hint", "[redis]")
{
    struct unfit {
        const char* lines;
        const char* hint;
    };
    const auto [lines, hint] = GENERATE(
        unfit{"redis_mode:sentinel\r\n", "Sentinel"},
        unfit{"role:slave\r\nmaster_host:10.0.0.9\r\nmaster_port:6390\r\n", "10.0.0.9:6390"},
        unfit{"maxmemory:1000\r\nmaxmemory_policy:allkeys-lru\r\n", "noeviction"},
        unfit{"maxmemory:1000\r\nmaxmemory_policy:volatile-ttl\r\n", "noeviction"});
    const auto g = greeted({}, ok + bulk(lines) + now);
    REQUIRE(g.trouble());
    CHECK(g.trouble()->kind == backend_error_kind::permanent);
    CHECK(g.trouble()->text.find(hint) != std::string::npos);
    CHECK(g.trouble()->text.find("h:1") != std::string::npos);
}

TEST_CASE("redis greeting: what a Sentinel does not know counts less than that it is one",
          "[redis]")
{
    const auto g = greeted({.database = 2}, "-ERR unknown command `SELECT`\r\n" + ok +
                                                bulk("redis_mode:sentinel\r\n") +
                                                "-ERR unknown command `TIME`\r\n");
    REQUIRE(g.trouble());
    CHECK(g.trouble()->text.find("Sentinel") != std::string::npos);
}

TEST_CASE("redis greeting: a wrong password is named as such, and not repeated", "[redis]")
{
    const auto g = greeted({.password = "hunter2"},
                           "-WRONGPASS invalid username-password pair\r\n"
                           "-NOAUTH Authentication required.\r\n"
                           "-NOAUTH Authentication required.\r\n"
                           "-NOAUTH Authentication required.\r\n");
    REQUIRE(g.trouble());
    CHECK(g.trouble()->kind == backend_error_kind::permanent);
    CHECK(g.trouble()->text.find("WRONGPASS") != std::string::npos);
    CHECK(g.trouble()->text.find("hunter2") == std::string::npos);
}

TEST_CASE("redis greeting: a server that repeats user and password is not quoted", "[redis]")
{
    const std::string text =
        GENERATE("-ERR unknown command 'AUTH', with args beginning with: 'bob1' 'hunter2'\r\n",
                 "-ERR wrong number of arguments: bob1 hunter2\r\n", "-hunter2 is wrong\r\n");
    const auto g = greeted({.username = "bob1", .password = "hunter2"}, text + ok + info("") + now);
    REQUIRE(g.trouble());
    CHECK(g.trouble()->text.find("h:1 refuses AUTH") != std::string::npos);
    CHECK(g.trouble()->text.find("hunter2") == std::string::npos);
    CHECK(g.trouble()->text.find("bob1") == std::string::npos);
    CHECK(g.trouble()->text.find("EVAL") == std::string::npos);
}

TEST_CASE("redis greeting: a time that cannot be is none", "[redis]")
{
    const std::string seconds =
        GENERATE("9223372036854775807", "9223372036854", "-1", "", "x", "99999999999999999999");
    const auto g = greeted({}, ok + info("") + "*2\r\n" + bulk(seconds) + bulk("5"));
    REQUIRE(g.trouble());
    CHECK(g.trouble()->text.find("does not tell its time") != std::string::npos);
}

TEST_CASE("redis greeting: who may not name himself, or ask for INFO, gets on without", "[redis]")
{
    const auto g = greeted({},
                           "-NOPERM no permissions to run the 'client|setname' command\r\n"
                           "-NOPERM no permissions to run the 'info' command\r\n" +
                               now);
    CHECK(!g.trouble());
    CHECK(g.time().has_value());
}

TEST_CASE("redis greeting: a server that is loading, or full, is tried again", "[redis]")
{
    const std::string error = GENERATE("-LOADING Redis is loading the dataset in memory\r\n",
                                       "-ERR max number of clients reached\r\n",
                                       "-MASTERDOWN Link with MASTER is down\r\n");
    const auto g = greeted({}, error + error + error);
    REQUIRE(g.trouble());
    CHECK(g.trouble()->kind == backend_error_kind::not_applied);
}

TEST_CASE("redis greeting: who has no name says none", "[redis]")
{
    redis_greeting g;
    std::string out;
    g.begin(amux::detail::redis_settings{{.client_name = ""}}, out);
    CHECK(out == "*1\r\n$4\r\nINFO\r\n*1\r\n$4\r\nTIME\r\n");
}

TEST_CASE("redis greeting: a field of INFO is not taken for another one", "[redis]")
{
    const auto evicts = greeted({}, ok +
                                        info("x_maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n"
                                             "maxmemory:100\r\n") +
                                        now);
    CHECK(evicts.trouble());
    const auto unlimited = greeted({}, ok +
                                           info("x_maxmemory:100\r\nmaxmemory:0\r\n"
                                                "maxmemory_policy:allkeys-lru\r\n") +
                                           now);
    CHECK(!unlimited.trouble());
    const auto untold = greeted({}, ok + info("maxmemory:100\r\n") + now);
    CHECK(!untold.trouble());
}

TEST_CASE("redis greeting: of several troubles the first is told", "[redis]")
{
    const auto g = greeted({.password = "p"}, "-ERR invalid password\r\n" + ok + info("") + ok);
    REQUIRE(g.trouble());
    CHECK(g.trouble()->text.find("time") == std::string::npos);
}

TEST_CASE("redis greeting: a time that is none is trouble", "[redis]")
{
    const std::string time =
        GENERATE("+OK\r\n", "*1\r\n$1\r\n5\r\n", "-NOPERM no TIME for you\r\n");
    const auto g = greeted({}, ok + info("") + time);
    CHECK(g.trouble().has_value());
    CHECK(!g.time());
}

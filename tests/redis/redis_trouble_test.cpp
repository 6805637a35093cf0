// SPDX-License-Identifier: BSL-1.0
// Without this file an error of the server could be taken for a loss of the lease, or be repeated for ever.
#include <amux/detail/redis_trouble.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <string>

using amux::backend_error_kind;
using amux::detail::redis_reply_trouble;

namespace {

struct meaning {
    const char* reply;
    backend_error_kind kind;
};

} // namespace

TEST_CASE("redis errors: what the server refuses for now was not carried out", "[redis]")
{
    const std::string reply = GENERATE(
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "UNKILLABLE Sorry the script already executed write commands against the dataset.",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist",
        "NOREPLICAS Not enough good replicas to write.",
        "READONLY You can't write against a read only replica.",
        "ERR max number of clients reached", "NOSCRIPT No matching script. Please use EVAL.");
    const auto t = redis_reply_trouble(reply, "h:1");
    INFO(reply);
    CHECK(t.kind == backend_error_kind::not_applied);
    CHECK(t.text.find("h:1") != std::string::npos);
    CHECK(t.text.find(reply) != std::string::npos);
}

TEST_CASE("redis errors: what asking again will not mend is permanent", "[redis]")
{
    const std::string reply = GENERATE(
        "MOVED 3999 127.0.0.1:6381", "ASK 3999 127.0.0.1:6381",
        "CROSSSLOT Keys in request don't hash to the same slot", "NOAUTH Authentication required.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "ERR AUTH <password> called without any password configured for the default user.",
        "ERR Client sent AUTH, but no password is set", "ERR invalid password",
        "ERR DB index is out of range", "ERR invalid DB index",
        "ERR value is not an integer or out of range", "ERR increment or decrement would overflow",
        "ERR unknown command 'EVALSHA', with args beginning with: ",
        "ERR Write commands not allowed after non deterministic commands.");
    INFO(reply);
    CHECK(redis_reply_trouble(reply, "h:1").kind == backend_error_kind::permanent);
}

TEST_CASE("redis errors: what is not known may have been carried out", "[redis]")
{
    const std::string reply = GENERATE("ERR something else", "", "OOMPH", "ERR",
                                       "ERR Error running script (call to f_1): nothing known");
    INFO(reply);
    CHECK(redis_reply_trouble(reply, "h:1").kind == backend_error_kind::indeterminate);
}

TEST_CASE("redis errors: the words of older servers around a script's error are looked through",
          "[redis]")
{
    const auto [reply, kind] = GENERATE(
        meaning{"ERR Error running script (call to f_9a): @user_script:5: @user_script: 5: -OOM "
                "command not allowed when used memory > 'maxmemory'.",
                backend_error_kind::not_applied},
        meaning{"ERR Error running script (call to f_9a): @user_script:5: WRONGTYPE Operation "
                "against a key holding the wrong kind of value",
                backend_error_kind::permanent},
        meaning{"ERR Error running script (call to f_9a): @user_script:6: ERR value is not an "
                "integer or out of range",
                backend_error_kind::permanent});
    INFO(reply);
    CHECK(redis_reply_trouble(reply, "h:1").kind == kind);
}

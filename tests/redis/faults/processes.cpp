// SPDX-License-Identifier: BSL-1.0
// Without this file no holder is killed or stopped as the kernel does it, and no two processes contend.
#include "redis/support/contender_process.hpp"
#include "redis/support/lease_client.hpp"
#include "redis/support/protected_resource.hpp"
#include "redis/support/redis_server.hpp"
#include "support/scale.hpp"

#include <amux/testing/history.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using support::contender;
using support::lock_name;
using support::protected_resource;
using support::redis_server;

namespace {

/// What is wrong in a history that processes wrote together.
std::string faults_in(const std::filesystem::path& file)
{
    std::ifstream text{file};
    amux::testing::history h;
    std::string found;
    if (h.add_lines(std::string{std::istreambuf_iterator<char>{text}, {}}) != 0)
        found = "lines that are no events\n";
    if (h.size() == 0)
        found += "no event\n";
    for (const auto& fault : h.faults())
        found += fault + '\n';
    return found;
}

} // namespace

TEST_CASE("redis: the first thing that a process sees after a stop beyond its ttl is the loss",
          "[redis][faults][processes]")
{
    redis_server server;
    const support::temporary_folder folder;
    const std::string file = (folder.path() / "resource").string();
    protected_resource resource{file};
    const std::vector<std::string> args{"url=" + server.url(), "key=k", "renew=1",
                                        "resource=" + file};
    const auto with_ttl = [&](const char* ttl) {
        auto all = args;
        all.emplace_back(ttl);
        return contender{all};
    };
    contender first = with_ttl("ttl=1000");
    contender second = with_ttl("ttl=60000");
    const std::string fence = first.ask("acquire", "granted");
    REQUIRE(first.ask("read", "seen") == "0");
    first.stop();
    CHECK(std::stoull(second.ask("acquire", "granted")) > std::stoull(fence));
    CHECK(second.ask("read", "seen") == "0");
    CHECK(second.ask("write 1", "written") == "1");
    first.go_on();
    CHECK(first.ask("held", "held") == "0");
    CHECK(first.ask("write 1", "written") ==
          "0"); // it had read before: this would undo the other's
    CHECK(first.ask("release", "released") == "0");
    CHECK(second.ask("held", "held") == "1");
    CHECK(second.ask("release", "released") == "1");
    CHECK(resource.counter() == 1);
}

TEST_CASE("redis: a process that is killed has its lease taken over after the ttl, not at a poll",
          "[redis][faults][processes]")
{
    redis_server server;
    contender first{{"url=" + server.url(), "key=k", "ttl=1500", "renew=1"}};
    contender second{{"url=" + server.url(), "key=k", "ttl=60000", "poll=100000"}};
    first.ask("acquire", "granted");
    second.say("acquire");
    first.kill9();
    second.expect("granted", 30s);
    CHECK(second.ask("release", "released") == "1");
    CHECK(server.cli("EXISTS", lock_name("k")).number == 0);
}

TEST_CASE("redis: a process that takes an interrupt between two renewals keeps its lease",
          "[redis][faults][processes]")
{
    redis_server server;
    contender first{{"url=" + server.url(), "key=k", "ttl=20000", "renew=1"}};
    first.ask("acquire", "granted");
    first.stop();
    first.go_on();
    CHECK(first.ask("held", "held") == "1");
    CHECK(first.ask("extend", "extended").empty());
    CHECK(first.ask("release", "released") == "1");
}

TEST_CASE("redis: fifty processes on one key count exactly in a resource without fences",
          "[redis][faults][processes]")
{
    redis_server server;
    const support::temporary_folder folder;
    const auto file = folder.path() / "resource";
    const auto history = folder.path() / "history";
    protected_resource resource{file};
    const int count = std::max(12, std::min(50, support::scaled(50)));
    const int rounds = std::max(4, std::min(20, support::scaled(10)));
    std::vector<contender> all;
    for (int n = 0; n < count; ++n)
        all.push_back(contender{{"url=" + server.url(), "key=k", "ttl=30000", "wait=150000",
                                 "name=p" + std::to_string(n), "unfenced=1",
                                 "rounds=" + std::to_string(rounds), "resource=" + file.string(),
                                 "history=" + history.string()}});
    for (auto& c : all) {
        CHECK(c.expect("done", 150s).starts_with(std::to_string(rounds) + ' '));
        CHECK(c.wait() == 0);
    }
    CHECK(resource.plain() == count * rounds);
    CHECK(faults_in(history) == "");
    CHECK(server.cli("DBSIZE").number == 1); // the counter of fences
}

TEST_CASE("redis: coroutines of several processes on several keys keep to their turns",
          "[redis][faults][processes]")
{
    redis_server server;
    const support::temporary_folder folder;
    const auto file = folder.path() / "resource";
    const auto history = folder.path() / "history";
    protected_resource resource{file};
    const int rounds = std::min(40, support::scaled(20));
    std::vector<contender> all;
    for (int n = 0; n < 4; ++n)
        all.push_back(contender{{"url=" + server.url(), "key=k", "ttl=10000", "renew=1",
                                 "name=p" + std::to_string(n), "coroutines=8", "turns=4", "poll=50",
                                 "rounds=" + std::to_string(rounds), "resource=" + file.string(),
                                 "history=" + history.string()}});
    for (auto& c : all)
        CHECK(c.expect("done", 150s) == std::to_string(8 * rounds) + " 0");
    CHECK(resource.writes() == 4 * 8 * rounds);
    CHECK(resource.counter() == resource.writes());
    CHECK(resource.refused() == 0);
    CHECK(faults_in(history) == "");
}

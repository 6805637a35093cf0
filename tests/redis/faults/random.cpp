// SPDX-License-Identifier: BSL-1.0
// Without this file only those faults are met that somebody has thought of, one at a time.
#include "redis/support/contender_process.hpp"
#include "redis/support/lease_client.hpp"
#include "redis/support/protected_resource.hpp"
#include "redis/support/redis_server.hpp"
#include "redis/support/tcp_proxy.hpp"

#include <amux/testing/history.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using amux::testing::history;
using support::contender;
using support::protected_resource;
using support::redis_server;
using support::soon;
using support::tcp_proxy;
using milliseconds = std::chrono::milliseconds;

namespace {

/// Processes that contend for two keys, each behind a network of its own, and what befalls them.
class turmoil {
public:
    explicit turmoil(unsigned seed) : random_{seed}, names_(parties)
    {
        for (std::size_t n = 0; n < parties; ++n) {
            proxies_.push_back(std::make_unique<tcp_proxy>(server.port()));
            processes_.push_back(start(n));
        }
    }

    /// Something goes wrong, and is put right a while later.
    void one_fault()
    {
        repair_due();
        const std::size_t who = pick(parties);
        tcp_proxy& net = *proxies_[who];
        switch (pick(20)) {
            case 0:
                return net.reset_all();
            case 1:
                return net.lose(tcp_proxy::to_client, 1 + static_cast<int>(pick(3)));
            case 2:
                return net.lose(tcp_proxy::to_server, 1 + static_cast<int>(pick(3)));
            case 3:
                return net.cut_after(pick(2) == 0 ? tcp_proxy::to_client : tcp_proxy::to_server,
                                     1 + pick(500));
            case 4:
                net.black_hole();
                return heal(who, 2'500);
            case 5:
                net.stall(tcp_proxy::to_client);
                return heal(who, 2'500);
            case 6:
                net.stall(tcp_proxy::to_server);
                return heal(who, 2'500);
            case 7:
                net.delay(milliseconds{pick(400)});
                return heal(who, 2'500);
            case 8:
                net.trickle(1ms);
                return heal(who, 500);
            case 9:
                net.refuse();
                net.reset_all();
                return heal(who, 1'000);
            case 10:
                return stop(who);
            case 11:
                return replace(who);
            case 12:
                return stop_server();
            case 13:
                return kill_server();
            case 14:
                return tell_server({"CLIENT", "KILL", "TYPE", "normal"});
            case 15:
                return tell_server({"CLIENT", "KILL", "TYPE", "pubsub"});
            case 16:
                return tell_server({"SCRIPT", "FLUSH"});
            case 17:
                return net.repeat(tcp_proxy::to_client, 1 + static_cast<int>(pick(3)));
            case 18:
                return net.repeat(tcp_proxy::to_server, 1 + static_cast<int>(pick(3)));
            default:
                return tell_server({"CLIENT", "PAUSE", std::to_string(pick(800)), "WRITE"});
        }
    }

    /// Everything is put right.
    void calm()
    {
        for (const repair& r : repairs_)
            put_right(r);
        repairs_.clear();
        for (auto& p : proxies_)
            p->heal();
        tell_server({"CLIENT", "UNPAUSE"});
    }

    /// Each coroutine of each process gets a lease once more; then they end.
    void all_get_through()
    {
        for (auto& p : processes_)
            p.say("finish");
        for (auto& p : processes_) {
            CHECK(p.expect("clean", 90s).empty());
            rounds += std::stol(p.expect("done"));
            CHECK(p.wait() == 0);
        }
    }

    std::string faults_of_history() const
    {
        std::ifstream text{file("history")};
        history h;
        std::string found;
        if (h.add_lines(std::string{std::istreambuf_iterator<char>{text}, {}}) != 0)
            found = "lines that are no events\n";
        for (const auto& fault : h.faults())
            found += fault + '\n';
        return found;
    }
    protected_resource& resource(int key) { return resources_[static_cast<std::size_t>(key)]; }
    std::size_t pick(std::size_t n) { return random_() % n; }

    redis_server server{
        {"--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"}};
    long rounds = 0; // of those that ended in peace

private:
    static constexpr std::size_t parties = 4;

    struct repair {
        enum class kind : unsigned char { net, process, server_stopped, server_dead };
        std::chrono::steady_clock::time_point due;
        kind what;
        std::size_t who;
    };

    contender start(std::size_t n)
    {
        names_[n] = "p" + std::to_string(++named_);
        return contender{{"url=" + proxies_[n]->url() + "?command_timeout=400&connect_timeout=400",
                          "key=k", "keys=2", "ttl=1500", "renew=1", "wait=3000", "poll=300",
                          "turns=8", "coroutines=3", "work=20", "until=told", "name=" + names_[n],
                          "history=" + file("history"), "resource=" + file("")}};
    }

    void later(repair::kind what, std::size_t who, std::size_t longest)
    {
        repairs_.push_back(
            {std::chrono::steady_clock::now() + milliseconds{20 + pick(longest)}, what, who});
    }
    bool broken(repair::kind what, std::size_t who) const
    {
        return std::any_of(repairs_.begin(), repairs_.end(),
                           [&](const repair& r) { return r.what == what && r.who == who; });
    }
    void repair_due()
    {
        for (auto r = repairs_.begin(); r != repairs_.end();) {
            if (r->due > std::chrono::steady_clock::now()) {
                ++r;
                continue;
            }
            put_right(*r);
            r = repairs_.erase(r);
        }
    }
    void put_right(const repair& r)
    {
        switch (r.what) {
            case repair::kind::net:
                return proxies_[r.who]->heal();
            case repair::kind::process:
                return processes_[r.who].go_on();
            case repair::kind::server_stopped:
                return server.resume();
            case repair::kind::server_dead:
                return server.restart();
        }
    }

    void heal(std::size_t who, std::size_t longest) { later(repair::kind::net, who, longest); }
    void stop(std::size_t who)
    {
        if (broken(repair::kind::process, who))
            return;
        processes_[who].stop();
        later(repair::kind::process, who, 2'500);
    }
    void replace(std::size_t who)
    {
        if (broken(repair::kind::process, who))
            return;
        processes_[who].kill9();
        amux::testing::history_event died{
            history::kind::died, amux::clock::now(), names_[who], {}, {}};
        std::ofstream{file("history"), std::ios::app} << history::to_line(died) << std::endl;
        processes_[who] = start(who);
    }
    void stop_server()
    {
        if (!server_well())
            return;
        server.pause();
        later(repair::kind::server_stopped, 0, 2'500);
    }
    void kill_server()
    {
        if (!server_well())
            return;
        server.kill9();
        later(repair::kind::server_dead, 0, 1'500);
    }
    bool server_well() const
    {
        return !broken(repair::kind::server_stopped, 0) && !broken(repair::kind::server_dead, 0);
    }
    void tell_server(const std::vector<std::string>& words)
    {
        if (server_well())
            server.run(words);
    }
    std::string file(const char* name) const { return (folder_.path() / name).string(); }

    std::mt19937 random_;
    support::temporary_folder folder_;
    std::array<protected_resource, 2> resources_{protected_resource{file("k0")},
                                                 protected_resource{file("k1")}};
    std::vector<std::unique_ptr<tcp_proxy>> proxies_;
    std::vector<contender> processes_;
    std::vector<std::string> names_; // of the processes
    int named_ = 0;
    std::list<repair> repairs_;
};

} // namespace

TEST_CASE(
    "redis: under random faults there is one holder at a time, and in the end everybody was one",
    "[redis][random_faults]")
{
    const unsigned seed = Catch::getSeed(); // --rng-seed brings the same faults
    INFO("seed " << seed);
    turmoil t{seed};
    const char* const told = std::getenv("AMUX_FAULT_SECONDS");
    const std::chrono::seconds length{told != nullptr ? std::atoi(told) : 60};
    const auto end = std::chrono::steady_clock::now() + length;
    int faults = 0;
    while (std::chrono::steady_clock::now() < end) {
        t.one_fault();
        ++faults;
        std::this_thread::sleep_for(milliseconds{t.pick(200)});
    }
    t.calm();
    t.all_get_through();

    CHECK(t.faults_of_history() == "");
    std::int64_t writes = 0;
    for (const int key : {0, 1}) {
        CHECK(t.resource(key).counter() == t.resource(key).writes());
        writes += t.resource(key).writes();
    }
    CHECK(soon([&] { return t.server.cli("DBSIZE").number == 1; })); // the counter of fences
    CHECK(soon([&] { return t.server.cli("PUBSUB", "CHANNELS").parts.empty(); }));
    CHECK(soon([&] {
        return t.server.cli("INFO", "clients").text.find("connected_clients:1\r") !=
               std::string::npos;
    }));
    CHECK(writes > faults / 10); // it was no standstill
    WARN(faults << " faults, " << writes << " writes, seed " << seed);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a server whose wall clock is set may be obeyed, or may refuse everything from then on.
#include "redis/support/lease_client.hpp"
#include "redis/support/redis_server.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace std::chrono_literals;
using amux::sync_wait;
using support::fence_name;
using support::lease_client;
using support::lock_name;
using support::redis_server;
using support::soon;

namespace {

/// The wall clock of one server.
class wall_clock {
public:
    wall_clock()
    {
        const int fd = open(file().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        REQUIRE(ftruncate(fd, sizeof(std::int64_t)) == 0);
        ahead_ = static_cast<std::atomic<std::int64_t>*>(
            mmap(nullptr, sizeof(std::int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
        close(fd);
    }
    wall_clock(const wall_clock&) = delete;
    wall_clock& operator=(const wall_clock&) = delete;
    ~wall_clock() { munmap(ahead_, sizeof(std::int64_t)); }

    std::vector<std::string> environment() const
    {
        return {"LD_PRELOAD=" AMUX_STEPPED_CLOCK, "AMUX_TEST_CLOCK=" + file()};
    }
    void step(std::chrono::microseconds d) { *ahead_ += d.count(); }

private:
    std::string file() const { return (folder_.path() / "clock").string(); }

    support::temporary_folder folder_;
    std::atomic<std::int64_t>* ahead_ = nullptr;
};

struct stepped {
    wall_clock clock;
    redis_server server{{}, clock.environment()};
};

} // namespace

TEST_CASE("redis_server: its wall clock can be set", "[redis][instruments]")
{
    stepped s;
    const auto time = [&] { return std::stoll(s.server.cli("TIME").parts.at(0).text); };
    const auto before = time();
    s.clock.step(1h);
    CHECK(time() >= before + 3'600);
    s.clock.step(-2h);
    CHECK(time() <= before - 3'500);
}

TEST_CASE("redis: when the server's clock is set an hour ahead a holder is told, and fenced",
          "[redis][faults]")
{
    stepped s;
    lease_client a{s.server.url()};
    const auto l = a.acquire("k", {.ttl = 20s, .renew = true, .renew_interval = 100ms});
    REQUIRE(a.hears("renew"));
    s.clock.step(1h);
    CHECK(a.hears("lost", "k"));
    CHECK_FALSE(l.is_held());
    const auto next = a.acquire("k");
    CHECK(next.fence() > l.fence());
}

TEST_CASE("redis: when the server's clock is set back fences rise all the same", "[redis][faults]")
{
    stepped s;
    lease_client a{s.server.url()};
    amux::fencing_token last = 0;
    for (int n = 0; n < 5; ++n) {
        auto l = a.acquire("k", {.ttl = 100s});
        CHECK(l.fence() > last);
        last = *l.fence();
        CHECK(sync_wait(l.release()));
        s.clock.step(-1h);
    }
}

TEST_CASE("redis: whichever way the server's clock is set, requests go on", "[redis][faults]")
{
    stepped s;
    const auto step = GENERATE(std::chrono::microseconds{1h}, std::chrono::microseconds{-1h},
                               std::chrono::microseconds{30s}, std::chrono::microseconds{-30s});
    lease_client a{s.server.url()};
    for (int n = 0; n < 4; ++n) {
        auto l = a.acquire("k", {.ttl = 100s});
        s.clock.step(step);
        auto other = a.acquire("other" + std::to_string(n), {.ttl = 100s});
        CHECK(sync_wait(other.verify()));
        CHECK_NOTHROW(sync_wait(other.extend()));
        CHECK(sync_wait(other.release()));
        if (step.count() < 0) {
            CHECK(sync_wait(l.verify()));
            CHECK(sync_wait(l.release()));
        }
    }
    CHECK((step >= 1h || a.heard("lost") == 0)); // an hour is beyond their ttl
}

TEST_CASE("redis: an acquire given up is not granted later, though the server's clock was set back",
          "[redis][faults]")
{
    stepped s;
    amux::redis_options o;
    o.port = s.server.port();
    o.command_timeout = 300ms;
    amux::redis_backend b{o};
    const auto warm_up = [&] { return sync_wait(b.acquire("warm", "token", 100s)).acquired; };
    REQUIRE(support::in_the_end(warm_up));
    s.clock.step(-1h);
    REQUIRE(support::in_the_end(warm_up)); // shows the new time
    const std::string counter = s.server.cli("GET", fence_name).text;
    s.server.pause();
    CHECK_THROWS_AS(sync_wait(b.acquire("k", "token", 100s)), amux::backend_error);
    s.server.resume();
    for (int n = 0; n < 50; ++n) {
        REQUIRE(s.server.cli("EXISTS", lock_name("k")).number == 0);
        REQUIRE(s.server.cli("GET", fence_name).text == counter);
        std::this_thread::sleep_for(2ms);
    }
}

TEST_CASE("redis: no waiter sleeps on a ttl that a clock set back has made an hour longer",
          "[redis][faults]")
{
    stepped s;
    lease_client a{s.server.url()};
    s.server.cli("SET", lock_name("k"), "a stranger", "PX", 20'000);
    s.clock.step(-1h);
    auto next = std::async(std::launch::async, [&] {
        return a.acquire("k", {.max_wait = 300s, .poll_interval = 200s});
    });
    REQUIRE(soon([&] {
        return s.server.cli("PUBSUB", "NUMSUB", support::channel_name("k")).parts.at(1).number > 0;
    }));
    REQUIRE(s.server.cli("DEL", lock_name("k")).number == 1);
    REQUIRE(next.wait_for(60s) == std::future_status::ready);
    CHECK(next.get().is_held());
}

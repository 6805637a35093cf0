// SPDX-License-Identifier: BSL-1.0
// Without this file a network that loses, holds up or repeats what is said may make two holders, or none.
#include "redis/support/lease_client.hpp"
#include "redis/support/redis_server.hpp"
#include "redis/support/tcp_proxy.hpp"

#include <amux/event_loop.hpp>
#include <amux/spawn.hpp>
#include <amux/task.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <string_view>

using namespace std::chrono_literals;
using amux::sync_wait;
using support::fence_name;
using support::lease_client;
using support::lock_name;
using support::redis_server;
using support::soon;
using support::tcp_proxy;

namespace {

struct behind_proxy {
    redis_server server;
    tcp_proxy proxy{server.port()};

    amux::redis_options options(std::chrono::milliseconds command_timeout = 300ms) const
    {
        amux::redis_options o;
        o.port = proxy.port();
        o.command_timeout = command_timeout;
        o.connect_timeout = 5s;
        return o;
    }
    std::string holder(const std::string& key) { return server.cli("GET", lock_name(key)).text; }
};

/// Makes the connections, and the scripts known, so that the next message is the one that a test means.
void warm_up(lease_client& c)
{
    support::in_the_end([&] {
        auto l = c.acquire("warm");
        sync_wait(l.extend());
        sync_wait(l.release());
    });
}

} // namespace

TEST_CASE("redis: an acquire of which a message is lost ends with one lease", "[redis][faults]")
{
    behind_proxy net;
    lease_client a{net.options()};
    warm_up(a);
    net.proxy.lose(GENERATE(tcp_proxy::to_server, tcp_proxy::to_client), 1);
    auto l = a.acquire("k", {.ttl = 20s});
    CHECK(a.heard("error", "'k'") >= 1);
    CHECK(a.heard("acquire", "k") == 1);
    CHECK(net.server.cli("GET", fence_name).text == std::to_string(*l.fence()));
    CHECK(sync_wait(l.verify()));
    CHECK(sync_wait(l.release()));
}

TEST_CASE("redis: a renewal of which a message is lost ends no lease", "[redis][faults]")
{
    behind_proxy net;
    lease_client a{net.options()};
    warm_up(a);
    const auto l = a.acquire("k", {.ttl = 20s, .renew = true, .renew_interval = 200ms});
    net.proxy.lose(GENERATE(tcp_proxy::to_server, tcp_proxy::to_client), 1);
    CHECK(a.hears("error", "k"));
    CHECK(a.hears("renew", "k", a.heard("renew") + 2));
    CHECK(l.is_held());
    CHECK(a.heard("lost") == 0);
}

TEST_CASE("redis: a release of which a message is lost frees the key in the end", "[redis][faults]")
{
    behind_proxy net;
    lease_client a{net.options()};
    warm_up(a);
    auto l = a.acquire("k", {.ttl = 100s});
    net.proxy.lose(GENERATE(tcp_proxy::to_server, tcp_proxy::to_client), 1);
    CHECK_THROWS_AS(sync_wait(l.release()), amux::backend_error);
    CHECK_FALSE(l.is_held());
    CHECK(soon([&] { return net.holder("k").empty(); }));
    CHECK(sync_wait(a.locks.drain(20s)));
}

TEST_CASE("redis: behind a hole without a FIN a holder ends in time, and comes back to nothing",
          "[redis][faults]")
{
    behind_proxy net;
    lease_client a{net.options()};
    lease_client b{net.server.url()};
    const auto l = a.acquire("k", {.ttl = 1s, .renew = true});
    net.proxy.black_hole();
    const auto next = b.acquire("k", {.ttl = 100s});
    CHECK_FALSE(l.is_held());
    CHECK(next.fence() > l.fence());
    CHECK(a.hears("lost", "k"));
    net.proxy.heal();
    CHECK(soon([&] { // it can be asked again
        try {
            return a.try_acquire("other").has_value();
        } catch (const amux::backend_error&) {
            return false;
        }
    }));
    CHECK_FALSE(l.is_held());
    CHECK(next.is_held());
    CHECK(sync_wait(next.verify()));
}

TEST_CASE("redis: what nobody answers ends by its own limit, and says so", "[redis][faults]")
{
    behind_proxy net;
    amux::redis_backend b{net.options()};
    REQUIRE(soon([&] { // to connect may take longer than the limit
        try {
            return sync_wait(b.acquire("k", "token", 100s)).acquired;
        } catch (const amux::backend_error&) {
            return false;
        }
    }));
    net.proxy.stall(GENERATE(tcp_proxy::to_server, tcp_proxy::to_client));
    const auto ends = [&](auto operation) {
        try {
            sync_wait(std::move(operation));
            return std::string{"it was answered"};
        } catch (const amux::backend_error& e) {
            return std::string{e.what()};
        }
    };
    const std::string where = "127.0.0.1:" + std::to_string(net.proxy.port());
    CHECK(ends(b.extend("k", "token", 100s)).find(where) != std::string::npos);
    CHECK(ends(b.acquire("other", "token", 100s)).find(where) != std::string::npos);
    CHECK(ends(b.get("k")).find(where) != std::string::npos);
    CHECK(ends(b.release("k", "token")).find(where) != std::string::npos);
}

TEST_CASE("redis: a network that is slower than the ttl hands out nothing", "[redis][faults]")
{
    behind_proxy net;
    lease_client a{net.options(5s)};
    warm_up(a);
    net.proxy.delay(300ms);
    CHECK_THROWS_AS(a.acquire("k", {.ttl = 500ms, .max_wait = 3s}), amux::lock_wait_timeout_error);
    CHECK(a.heard("acquire", "k") == 0);
    CHECK(a.heard("error", "too late") >= 1);
    CHECK(sync_wait(a.locks.drain(20s)));
    CHECK(net.holder("k").empty());
}

TEST_CASE("redis: a slow network costs of the ttl what the way takes", "[redis][faults]")
{
    behind_proxy net;
    lease_client a{net.options(10s)};
    net.proxy.delay(400ms);
    const auto l = a.acquire("k", {.ttl = 20s});
    CHECK(l.remaining() <= 20s - 800ms);
    CHECK(l.is_held());
}

TEST_CASE("redis: answers that come byte by byte are answers all the same", "[redis][faults]")
{
    behind_proxy net;
    lease_client a{net.options(100s)};
    SECTION("from the first one on")
    {
        net.proxy.trickle(0ms);
    }
    SECTION("one every few milliseconds")
    {
        warm_up(a);
        net.proxy.trickle(5ms);
    }
    auto l = a.acquire("k", {.ttl = 100s, .max_wait = 90s});
    CHECK(l.is_held());
    CHECK(sync_wait(l.release()));
    CHECK(net.holder("k").empty());
    CHECK(a.heard("error") == 0);
}

TEST_CASE("redis: the answer to a question that was given up is not taken for that to the next one",
          "[redis][faults]")
{
    behind_proxy net;
    amux::redis_backend b{net.options(20s)};
    REQUIRE(net.server.cli("SET", lock_name("taken"), "a stranger").text == "OK");
    REQUIRE(sync_wait(b.acquire("warm", "token", 100s)).acquired);
    const int asked = net.proxy.messages(tcp_proxy::to_server);
    net.proxy.stall(tcp_proxy::to_client);
    for (int n = 0; n < 3; ++n) {
        const auto ask = [](amux::redis_backend& in, std::string key) -> amux::task<> {
            co_await in.acquire(key, "token", 100s);
        };
        amux::event_loop loop;
        amux::spawn(loop, ask(b, "free" + std::to_string(n)));
        loop.run_ready();
        // The first ones are on their way when the loop goes, and their frames with it.
        REQUIRE(soon([&] { return net.proxy.messages(tcp_proxy::to_server) > asked; }));
    }
    auto answer = std::async(std::launch::async,
                             [&] { return sync_wait(b.acquire("taken", "token", 100s)); });
    auto other = std::async(std::launch::async,
                            [&] { return sync_wait(b.acquire("another", "token", 100s)); });
    std::this_thread::sleep_for(50ms);
    net.proxy.heal();
    CHECK_FALSE(answer.get().acquired);
    CHECK(other.get().acquired);
    CHECK(net.holder("free0").find("token") != std::string::npos);
}

TEST_CASE("redis: a message that is lost among others makes no answer go to the wrong question",
          "[redis][faults]")
{
    behind_proxy net;
    amux::redis_backend b{net.options(2s)};
    REQUIRE(net.server.cli("SET", lock_name("taken"), "a stranger").text == "OK");
    REQUIRE(sync_wait(b.acquire("warm", "token", 100s)).acquired);
    const auto way = GENERATE(tcp_proxy::to_server, tcp_proxy::to_client);
    const bool twice = GENERATE(false, true);
    net.proxy.stall(way);
    const auto ask = [&](const char* key) {
        return std::async(std::launch::async, [&b, key] {
            try {
                return sync_wait(b.acquire(key, "token", 100s)).acquired;
            } catch (const amux::backend_error&) {
                return false;
            }
        });
    };
    // Were the first answer lost, or did it come twice, "taken" would be granted for the free key.
    auto first = ask(twice ? "free" : "taken");
    std::this_thread::sleep_for(100ms);
    auto second = ask(twice ? "taken" : "free");
    std::this_thread::sleep_for(100ms);
    if (twice)
        net.proxy.repeat(way, 1);
    else
        net.proxy.lose(way, 1);
    net.proxy.stall(way, false);
    const bool of_first = first.get();
    const bool of_second = second.get();
    CHECK_FALSE((twice ? of_second : of_first));
    CHECK(net.holder("taken") == "a stranger");
}

TEST_CASE("redis: an answer that nobody has asked for is kept for no question", "[redis][faults]")
{
    behind_proxy net;
    lease_client a{net.options(20s)};
    lease_client b{net.server.url()};
    warm_up(a);
    const auto held = b.acquire("taken", {.ttl = 100s});
    const int connected = net.proxy.connected();
    net.proxy.repeat(tcp_proxy::to_client, 1);
    const auto l = a.acquire("k", {.ttl = 100s});
    CHECK(soon([&] { return net.proxy.connected() < connected; }));
    // Were the second "granted" kept for the next question, this would be granted too.
    CHECK_FALSE(a.try_acquire("taken"));
    CHECK(sync_wait(held.verify()));
    CHECK(sync_wait(l.verify()));
}

TEST_CASE("redis: an acquire that arrives after its release is too late", "[redis][faults]")
{
    std::atomic<bool> held_up{false};
    behind_proxy net;
    lease_client a{net.options()};
    warm_up(a);
    // The first message about the key is the acquire; it takes longer than its caller waits.
    net.proxy.decide([&](const tcp_proxy::message& m) {
        tcp_proxy::fate f;
        if (m.direction == tcp_proxy::to_server &&
            m.bytes.find(lock_name("k") + "\r\n") != std::string_view::npos &&
            !held_up.exchange(true))
            f.late = 1500ms;
        return f;
    });
    for (int n = 0; n < 20 && !held_up; ++n) // until one was fast enough to be sent
        CHECK_THROWS_AS(a.acquire("k", {.ttl = 100s, .max_wait = 250ms}),
                        amux::lock_wait_timeout_error);
    REQUIRE(held_up);
    CHECK(sync_wait(a.locks.drain(20s)));
    const auto until = std::chrono::steady_clock::now() + 2500ms;
    while (std::chrono::steady_clock::now() < until) {
        REQUIRE(net.holder("k").empty());
        std::this_thread::sleep_for(5ms);
    }
}

TEST_CASE("redis: a release that is overtaken by the next acquire does not end its lease",
          "[redis][faults]")
{
    behind_proxy net;
    lease_client a{net.options(5s)};
    warm_up(a);
    auto first = a.acquire("k", {.ttl = 100s});
    const std::string token = first.token();
    net.proxy.decide([&, token](const tcp_proxy::message& m) {
        tcp_proxy::fate f; // the release, and whatever else is said in the name of the first lease
        if (m.direction == tcp_proxy::to_server && m.bytes.find(token) != std::string_view::npos)
            f.late = 600ms;
        return f;
    });
    auto gone = std::async(std::launch::async, [&] { return sync_wait(first.release()); });
    const auto second = a.acquire("k", {.ttl = 100s});
    CHECK(second.fence() > first.fence());
    CHECK(gone.get());
    CHECK(sync_wait(second.verify()));
    CHECK(net.holder("k").find(second.token()) != std::string::npos);
}

TEST_CASE("redis: a connection that is cut at any byte leaves one lease or none", "[redis][faults]")
{
    behind_proxy net;
    lease_client a{net.options(20s)};
    warm_up(a);
    for (std::size_t bytes = 1; bytes < 60; bytes += 3) {
        net.proxy.cut_after(bytes % 2 == 0 ? tcp_proxy::to_server : tcp_proxy::to_client, bytes);
        auto l = a.acquire("k", {.ttl = 100s});
        CHECK(net.server.cli("GET", fence_name).text == std::to_string(*l.fence()));
        net.proxy.heal();
        CHECK(soon([&] { // the cut may come behind the whole answer, and meet the next question
            try {
                return sync_wait(l.verify());
            } catch (const amux::backend_error&) {
                return false;
            }
        }));
        CHECK(sync_wait(l.release()));
    }
    CHECK(net.holder("k").empty());
}

TEST_CASE("redis: a network that comes and goes wears no lease out", "[redis][faults]")
{
    behind_proxy net;
    lease_client a{net.options()};
    const auto l = a.acquire("k", {.ttl = 20s, .renew = true, .renew_interval = 50ms});
    for (int n = 0; n < 6; ++n) {
        net.proxy.refuse();
        net.proxy.reset_all();
        REQUIRE(a.hears("error", "k", a.heard("error") + 1));
        net.proxy.heal();
        REQUIRE(a.hears("renew", "k", a.heard("renew") + 1));
    }
    CHECK(l.is_held());
    CHECK(a.heard("lost") == 0);
    CHECK(a.heard("error", "127.0.0.1:" + std::to_string(net.proxy.port())) >= 6);
}

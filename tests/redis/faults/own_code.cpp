// SPDX-License-Identifier: BSL-1.0
// Without this file a hook, or whoever an answer resumes, may run under a lock of the backend, or deep inside it.
#include "redis/support/lease_client.hpp"
#include "redis/support/redis_server.hpp"
#include "support/foreign_coroutine.hpp"
#include "support/scale.hpp"

#include <amux/spawn.hpp>
#include <amux/when_all.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <chrono>
#include <coroutine>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace std::chrono_literals;
using amux::sync_wait;
using support::lease_client;
using support::lock_name;
using support::redis_server;
using support::soon;

namespace {

/// A coroutine without a scheduler: it is resumed where the answer is found.
struct adrift {
    struct promise_type {
        adrift get_return_object() const noexcept { return {}; }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }
    };
};

/// It may be destroyed while it waits.
support::hooked_coroutine ask(amux::redis_backend& b, std::atomic<int>& resumed)
{
    try {
        (void)co_await b.get("key");
    } catch (const amux::backend_error&) {
    }
    ++resumed;
}

/// Tells what signals are blocked where it is resumed.
adrift ask_for_signals(amux::redis_backend& b, std::promise<sigset_t>& blocked)
{
    (void)co_await b.get("key");
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    blocked.set_value(now);
}

adrift ask_and_destroy(amux::redis_backend& b, support::hooked_coroutine& other,
                       std::promise<void>& done)
{
    try {
        (void)co_await b.get("key");
    } catch (const amux::backend_error&) {
    }
    other.destroy();
    done.set_value();
}

std::size_t entries_of(const char* folder)
{
    std::size_t count = 0;
    DIR* const d = opendir(folder);
    while (d != nullptr && readdir(d) != nullptr)
        ++count;
    if (d != nullptr)
        closedir(d);
    return count;
}

} // namespace

TEST_CASE("redis: an answer's coroutine may ask again where it is resumed, for ever",
          "[redis][faults]")
{
    redis_server server;
    amux::redis_backend b{server.url()};
    std::promise<int> done;
    const int rounds = support::scaled(20'000);
    const auto ask = [](amux::redis_backend& in, int times, std::promise<int>& end) -> adrift {
        int granted = 0;
        for (int n = 0; n < times; ++n) {
            const amux::acquire_result r = co_await in.acquire("k", "token", 10s);
            const bool released = co_await in.release("k", "token");
            granted += r.acquired && released;
        }
        end.set_value(granted);
    };
    ask(b, rounds, done);
    CHECK(done.get_future().get() == rounds);
}

TEST_CASE("redis: a hook may use the lock, and one that blocks holds up no other lock",
          "[redis][faults]")
{
    redis_server server;
    amux::loop_thread thread;
    amux::redis_backend b{server.url()};
    std::atomic<int> inner{0};
    std::atomic<bool> blocked{false};
    std::promise<void> go_on;
    std::shared_future<void> may_go_on = go_on.get_future().share();
    amux::distributed_lock<amux::redis_backend&>* locks = nullptr;
    const auto take = [](amux::distributed_lock<amux::redis_backend&>& in,
                         std::atomic<int>& n) -> amux::task<> {
        auto l = co_await in.acquire("inner");
        n += l.is_held();
        co_await l.release();
    };
    amux::lock_hooks hooks;
    hooks.on_acquire = [&](const amux::lock_event& e) {
        if (e.key == "outer")
            amux::spawn(thread.loop(), take(*locks, inner));
        if (e.key == "blocks") {
            blocked = true;
            may_go_on.wait();
        }
    };
    amux::distributed_lock lock{b, thread.loop(), {}, hooks};
    locks = &lock;
    auto outer = sync_wait(lock.acquire("outer"));
    CHECK(soon([&] { return inner == 1; }));
    auto stuck = std::async(std::launch::async, [&] { return sync_wait(lock.acquire("blocks")); });
    REQUIRE(soon([&] { return blocked.load(); }));
    {
        amux::loop_thread another; // the same backend serves it meanwhile
        amux::distributed_lock fast{b, another.loop()};
        CHECK(sync_wait(fast.acquire("free")).is_held());
    }
    go_on.set_value();
    CHECK(stuck.get().is_held());
}

TEST_CASE("redis: a server that dies while it is written to does not end the process",
          "[redis][faults]")
{
    redis_server server;
    amux::redis_options o;
    o.port = server.port();
    o.command_timeout = 100ms;
    lease_client a{o};
    std::vector<amux::acquired_lock> held;
    for (int n = 0; n < 20; ++n)
        held.push_back(a.acquire("k" + std::to_string(n),
                                 {.ttl = 20s, .renew = true, .renew_interval = 10ms}));
    for (int n = 0; n < 5; ++n) {
        server.restart();
        CHECK(support::in_the_end([&] { return a.try_acquire("again" + std::to_string(n)); }));
    }
}

TEST_CASE("redis: a backend that goes ends what is out, and leaves no thread and no socket",
          "[redis][faults]")
{
    redis_server server;
    server.cli("SET", lock_name("taken"), "a stranger");
    std::thread{[] {}}.join(); // with the first one a sanitizer starts a thread of its own
    const auto threads = entries_of("/proc/self/task");
    const auto files = entries_of("/proc/self/fd");
    for (int n = 0; n < 20; ++n) {
        std::promise<std::string> done;
        const auto wait = [](amux::redis_backend& in, std::promise<std::string>& end) -> adrift {
            std::string how = "answered";
            try {
                co_await in.wait_for_release("taken", {});
            } catch (const amux::backend_error& e) {
                how = e.what();
            }
            end.set_value(how);
        };
        {
            amux::redis_backend b{server.url()};
            wait(b, done);
            CHECK_FALSE(sync_wait(b.acquire("taken", "token", 10s)).acquired);
            if (n % 2 == 0)
                server.pause();
        }
        CHECK_FALSE(done.get_future().get().empty());
        server.resume();
    }
    CHECK(soon([&] { return entries_of("/proc/self/task") == threads; }));
    CHECK(entries_of("/proc/self/fd") == files);
    CHECK(soon([&] { return server.cli("PUBSUB", "CHANNELS").parts.empty(); }));
}

TEST_CASE("redis: any number of requests leaves the server's connections as they were",
          "[redis][faults]")
{
    redis_server server;
    lease_client a{server.url()};
    sync_wait(a.acquire("warm").release());
    const auto files = entries_of("/proc/self/fd");
    const auto before = server.cli("INFO", "clients").text;
    const auto work = [](lease_client& c, int id, int rounds) -> amux::task<> {
        for (int n = 0; n < rounds; ++n) {
            auto l = co_await c.locks.acquire("k" + std::to_string(id));
            co_await l.release();
        }
    };
    std::vector<amux::task<>> all;
    for (int n = 0; n < 16; ++n)
        all.push_back(work(a, n, support::scaled(2'000)));
    sync_wait(amux::when_all(std::move(all)));
    CHECK(entries_of("/proc/self/fd") == files);
    const auto count = [](const std::string& info) {
        const auto at = info.find("connected_clients:");
        return std::stoi(info.substr(at + 18));
    };
    CHECK(count(server.cli("INFO", "clients").text) == count(before));
}

TEST_CASE("redis: who is resumed may destroy another that is about to be resumed",
          "[redis][faults]")
{
    redis_server server;
    amux::redis_backend b{server.url()};
    (void)sync_wait(b.get("connect"));
    server.pause();
    std::atomic<int> resumed{0};
    std::promise<void> done;
    auto other = ask(b, resumed);
    ask_and_destroy(b, other, done);
    other.start(nullptr);
    server.kill9(); // both are told at once
    REQUIRE(done.get_future().wait_for(30s) == std::future_status::ready);
    CHECK_THROWS_AS(sync_wait(b.get("key")), amux::backend_error); // by now it would be resumed
    CHECK(resumed == 0);
}

TEST_CASE("redis: the backend's thread takes no signals from the program's own", "[redis][faults]")
{
    redis_server server;
    amux::redis_backend b{server.url()};
    std::promise<sigset_t> promised;
    ask_for_signals(b, promised);
    const sigset_t blocked = promised.get_future().get();
    for (const int s : {SIGTERM, SIGINT, SIGALRM, SIGUSR1, SIGCHLD})
        CHECK(sigismember(&blocked, s) == 1);
    CHECK(sigismember(&blocked, SIGSEGV) == 0);
    sigset_t ours;
    pthread_sigmask(SIG_SETMASK, nullptr, &ours);
    CHECK(sigismember(&ours, SIGTERM) == 0);
}

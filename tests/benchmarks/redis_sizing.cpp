// SPDX-License-Identifier: BSL-1.0
// Without this file the figures on the page about Redis, what a lease costs the server, could not be measured again.
#include <amux/redis_backend.hpp>

#include <amux/clock.hpp>
#include <amux/event_loop.hpp>
#include <amux/task.hpp>
#include <amux/when_all.hpp>

#include <redis/support/redis_server.hpp>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace std::chrono_literals;

constexpr int coroutines = 64;
constexpr int leases_each = 1'000;
constexpr std::string_view token = "0123456789abcdef0123456789abcdef";

enum class request { acquire, extend, look, release };

amux::task<> ask(amux::redis_backend& b, request r, int first)
{
    for (int n = first; n != first + leases_each; ++n) {
        const std::string key = "order:" + std::to_string(100'000 + n);
        if (r == request::acquire)
            co_await b.acquire(key, token, 60s);
        else if (r == request::extend)
            co_await b.extend(key, token, 60s);
        else if (r == request::look)
            co_await b.inspect(key);
        else
            co_await b.release(key, token);
    }
}

/// The number that follows `name` in what INFO says.
double number(const std::string& info, std::string_view name)
{
    const auto at = info.find(name);
    return at == info.npos ? 0 : std::stod(info.substr(at + name.size()));
}

void measure(support::redis_server& server, amux::redis_backend& b, request r, const char* name)
{
    amux::event_loop loop;
    server.cli("CONFIG", "RESETSTAT");
    std::vector<amux::task<>> all;
    for (int n = 0; n != coroutines; ++n)
        all.push_back(ask(b, r, n * leases_each));
    loop.block_on(amux::when_all(std::move(all)));
    const std::string info = server.cli("INFO", "commandstats").text;
    const auto at = info.find("cmdstat_evalsha:");
    std::printf("%-8s %5.1f us of the server\n", name, number(info.substr(at), "usec_per_call="));
}

amux::task<> wait_in_vain(amux::distributed_lock<amux::redis_backend>& locks)
{
    try {
        co_await locks.acquire("held");
    } catch (const amux::lock_wait_timeout_error& e) {
        std::printf("%s\n", e.what());
    }
}

void measure_wait(support::redis_server& server, std::chrono::milliseconds poll)
{
    amux::event_loop loop;
    auto locks = amux::make_redis_lock({.port = server.port()}, loop,
                                       {.max_wait = 10s, .poll_interval = poll});
    server.cli("SET", "{amux}:lock:held", "somebody", "PX", 60'000);
    server.cli("CONFIG", "RESETSTAT");
    loop.block_on(wait_in_vain(locks));
    const std::string info = server.cli("INFO", "commandstats").text;
    double calls = 0;
    for (const char* command : {"evalsha", "subscribe", "unsubscribe"})
        calls += number(info, "cmdstat_" + std::string{command} + ":calls=");
    std::printf("a wait, asking every %lld ms: %.1f commands a second\n",
                static_cast<long long>(poll.count()), calls / 10);
}

} // namespace

int main()
{
    support::redis_server server;
    amux::redis_backend b{amux::redis_options{.port = server.port()}};
    const auto memory = [&server] {
        return number(server.cli("INFO", "memory").text, "used_memory:");
    };
    const double before = memory();
    measure(server, b, request::acquire, "acquire");
    const double each = (memory() - before) / (coroutines * leases_each);
    measure(server, b, request::extend, "extend");
    measure(server, b, request::look, "look");
    std::printf("a lease: %.0f bytes, MEMORY USAGE says %lld\n", each,
                server.cli("MEMORY", "USAGE", "{amux}:lock:order:100000").number);
    measure(server, b, request::release, "release");
    measure_wait(server, 200ms);
    measure_wait(server, 5s);
}

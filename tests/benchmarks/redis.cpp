// SPDX-License-Identifier: BSL-1.0
// Without this file nobody would notice that a lock over Redis costs much more than the server does.
//
// usage: amux_redis_benchmark [ROUNDS]
//
// Pairs of acquire and release in a second: by hiredis alone, with the same scripts, one after the other and 64 at a time;
// then through distributed_lock, by one coroutine and by 64. All against one server, in short turns: a ratio is that of
// two turns side by side, and medians are told. Then what a hand-over takes, and what renewals cost.
#include "redis_hand_over.hpp"

#include <amux/clock.hpp>
#include <amux/event_loop.hpp>
#include <amux/redis_backend.hpp>
#include <amux/task.hpp>
#include <amux/when_all.hpp>

#include <redis/support/redis_server.hpp>

#include <hiredis/hiredis.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <sys/resource.h>

namespace {

using namespace benchmark;
using namespace std::chrono_literals;

/// The two requests of a pair, by hand, for the same keys.
class raw_client {
public:
    explicit raw_client(int port) : connection_{redisConnect("127.0.0.1", port)}
    {
        for (const auto* script : {&amux::detail::redis_acquire, &amux::detail::redis_release}) {
            const std::string text{script->text};
            freeReplyObject(redisCommand(connection_, "SCRIPT LOAD %b", text.data(), text.size()));
        }
    }
    raw_client(const raw_client&) = delete;
    raw_client& operator=(const raw_client&) = delete;
    ~raw_client() { redisFree(connection_); }

    /// `depth` pairs: all acquires, then all releases.
    void pairs(int depth)
    {
        for (int n = 0; n != depth; ++n)
            append(amux::detail::redis_acquire, n, true);
        take_answers(depth);
        for (int n = 0; n != depth; ++n)
            append(amux::detail::redis_release, n, false);
        take_answers(depth);
    }

private:
    void append(const amux::detail::redis_script& script, int n, bool acquires)
    {
        const std::string key = "{amux}:lock:own " + std::to_string(n);
        const std::string channel = "{amux}:free:own " + std::to_string(n);
        constexpr std::string_view token = "0123456789abcdef0123456789abcdef";
        const std::string beginning = amux::detail::redis_value::beginning(token);
        std::vector<std::string_view> words{"EVALSHA", script.name(), acquires ? "2" : "1", key};
        if (acquires)
            words.emplace_back("{amux}:fence");
        words.insert(words.end(), {"9000000000000000", beginning, token});
        words.emplace_back(acquires ? "30000" : std::string_view{channel});
        if (acquires)
            words.emplace_back("");
        words.emplace_back("1"); // the number of the command
        std::array<const char*, 11> data{};
        std::array<std::size_t, 11> sizes{};
        for (std::size_t w = 0; w != words.size(); ++w) {
            data.at(w) = words[w].data();
            sizes.at(w) = words[w].size();
        }
        redisAppendCommandArgv(connection_, static_cast<int>(words.size()), data.data(),
                               sizes.data());
    }
    void take_answers(int count)
    {
        for (int n = 0; n != count; ++n) {
            void* reply = nullptr;
            if (redisGetReply(connection_, &reply) != REDIS_OK)
                throw std::runtime_error{connection_->errstr};
            const auto& r = *static_cast<redisReply*>(reply);
            if (r.type != REDIS_REPLY_ARRAY || r.element[1]->integer != 1)
                throw std::runtime_error{"not granted"};
            freeReplyObject(reply);
        }
    }

    redisContext* connection_;
};

amux::task<> take_turns(redis_locks& locks, std::string key, int pairs)
{
    for (int n = 0; n != pairs; ++n) {
        auto lease = co_await locks.acquire(key);
        co_await lease.release();
    }
}

void amux_pairs(redis_locks& locks, amux::event_loop& loop, int coroutines, int pairs)
{
    std::vector<amux::task<>> all;
    for (int n = 0; n != coroutines; ++n)
        all.push_back(take_turns(locks, "own " + std::to_string(n), pairs / coroutines));
    loop.block_on(amux::when_all(std::move(all)));
}

template <class F>
double rate(int pairs, F work)
{
    const auto start = amux::clock::now();
    work();
    return pairs / std::chrono::duration<double>(amux::clock::now() - start).count();
}

void compare_pairs(support::redis_server& server, int rounds, int depth, int pairs)
{
    raw_client raw{server.port()};
    amux::event_loop loop;
    auto locks = amux::make_redis_lock({.port = server.port()}, loop);
    amux_pairs(locks, loop, depth, 10 * depth); // the connections, and the scripts in the server
    std::vector<double> by_hand;
    std::vector<double> ours;
    std::vector<double> ratios;
    for (int n = 0; n != rounds; ++n) {
        by_hand.push_back(rate(pairs, [&] {
            for (int p = 0; p != pairs / depth; ++p)
                raw.pairs(depth);
        }));
        ours.push_back(rate(pairs, [&] { amux_pairs(locks, loop, depth, pairs); }));
        ratios.push_back(100 * ours.back() / by_hand.back());
    }
    std::printf("%2d at a time: hiredis %7.0f pairs/s, amux %7.0f pairs/s, %3.0f %%\n", depth,
                median_of(by_hand), median_of(ours), median_of(ratios));
}

double seconds_of_processor()
{
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    const auto seconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
    };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

double seconds_of_server(support::redis_server& server)
{
    return info_number(server, "cpu", "used_cpu_sys:") +
           info_number(server, "cpu", "used_cpu_user:");
}

amux::task<amux::acquired_lock> hold(redis_locks& locks, std::string key)
{
    co_return co_await locks.acquire(key, {.ttl = 3s, .renew = true});
}

/// Leases of 3 s, so that each is renewed every second.
void renew(support::redis_server& server, int leases)
{
    constexpr auto time = 6s;
    long renewed = 0;
    long lost = 0;
    amux::lock_hooks hooks;
    hooks.on_renew = [&renewed](const amux::lock_event&) { ++renewed; };
    hooks.on_lost = [&lost](const amux::lock_event&) { ++lost; };
    amux::event_loop loop;
    auto locks = amux::make_redis_lock({.port = server.port()}, loop, {}, hooks);
    std::vector<amux::task<amux::acquired_lock>> all;
    for (int n = 0; n != leases; ++n)
        all.push_back(hold(locks, "held " + std::to_string(n)));
    const auto held = loop.block_on(amux::when_all(std::move(all)));
    loop.block_on([](amux::event_loop& on) -> amux::task<> { co_await on.sleep_for(3s); }(loop));
    renewed = 0;
    const double ours = seconds_of_processor();
    const double servers = seconds_of_server(server);
    loop.block_on([](amux::event_loop& on) -> amux::task<> { co_await on.sleep_for(time); }(loop));
    const auto each = static_cast<double>(renewed);
    std::printf(
        "%d leases: %.0f renewals/s, %ld lost; a renewal takes %.1f us of our processor, "
        "%.1f us of the server's\n",
        leases, each / std::chrono::duration<double>(time).count(), lost,
        1e6 * (seconds_of_processor() - ours) / each,
        1e6 * (seconds_of_server(server) - servers) / each);
}

void print(const char* what, const hand_overs& h)
{
    std::printf("hand-over %-32s %8.0f us, %6.1f commands\n", what, h.median, h.commands);
    std::fflush(stdout); // else a child that is forked says it again
}

} // namespace

int main(int argc, char** argv)
{
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 21;
    support::redis_server server;
    // These fork: before there are threads.
    print("between 2 processes", hand_over_between(server, 2, 200));
    print("between 50 processes", hand_over_between(server, 50, 200));
    print("in a process with 1,000 waiters", hand_over_in_process(server, 1'000));
    compare_pairs(server, rounds, 1, 2'000);
    compare_pairs(server, rounds, 64, 12'800);
    renew(server, 10'000);
}

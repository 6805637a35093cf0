// SPDX-License-Identifier: BSL-1.0
// Without this file nobody would notice that a lock over Redis costs much more than the server does.
//
// Pairs of acquire and release in a second: by hiredis alone, with the same scripts, one after the other and 64 at a time;
// then through distributed_lock, by one coroutine and by 64. All against one server, in turns, best of several. Then the
// time from a release in one process until who waits for the key in another one has it.
#include <amux/redis_backend.hpp>

#include <amux/clock.hpp>
#include <amux/event_loop.hpp>
#include <amux/task.hpp>
#include <amux/when_all.hpp>

#include <redis/support/redis_server.hpp>

#include <hiredis/hiredis.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;

/// The two requests of a pair, by hand.
class raw_client {
public:
    explicit raw_client(int port) : connection_{redisConnect("127.0.0.1", port)}
    {
        for (const auto* script : {&amux::detail::redis_acquire, &amux::detail::redis_release}) {
            const std::string text{script->text};
            freeReplyObject(redisCommand(connection_, "SCRIPT LOAD %b", text.data(), text.size()));
        }
    }
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
        const std::string key = "{amux}:lock:raw " + std::to_string(n);
        const std::string channel = "{amux}:free:raw " + std::to_string(n);
        constexpr std::string_view token = "0123456789abcdef0123456789abcdef";
        const std::string beginning = amux::detail::redis_value::beginning(token);
        std::vector<std::string_view> words{"EVALSHA", script.name(), acquires ? "2" : "1", key};
        if (acquires)
            words.emplace_back("{amux}:fence");
        words.insert(words.end(), {"9000000000000000", beginning, token});
        words.emplace_back(acquires ? "30000" : std::string_view{channel});
        if (acquires)
            words.emplace_back("");
        std::array<const char*, 10> data{};
        std::array<std::size_t, 10> sizes{};
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

amux::task<> take_turns(amux::distributed_lock<amux::redis_backend>& locks, std::string key,
                        int pairs)
{
    for (int n = 0; n != pairs; ++n) {
        auto lease = co_await locks.acquire(key);
        co_await lease.release();
    }
}

void amux_pairs(amux::distributed_lock<amux::redis_backend>& locks, amux::event_loop& loop,
                int coroutines, int pairs)
{
    std::vector<amux::task<>> all;
    for (int n = 0; n != coroutines; ++n)
        all.push_back(take_turns(locks, "own " + std::to_string(n), pairs / coroutines));
    loop.block_on(amux::when_all(std::move(all)));
}

/// What the other process does: waits for the key, again and again, and says when it has it.
amux::task<> wait_and_tell(amux::distributed_lock<amux::redis_backend>& locks, int rounds,
                           int to_first, int from_first)
{
    for (int n = 0; n != rounds; ++n) {
        char go = 0;
        if (::read(from_first, &go, 1) != 1)
            co_return;
        auto lease = co_await locks.acquire("handed over", {.poll_interval = 20s});
        const auto at = amux::clock::now().time_since_epoch().count();
        co_await lease.release();
        if (::write(to_first, &at, sizeof at) != sizeof at)
            co_return;
    }
}

amux::task<std::vector<double>> hand_over(amux::distributed_lock<amux::redis_backend>& locks,
                                          amux::event_loop& loop, support::redis_server& server,
                                          int rounds, int to_second, int from_second)
{
    std::vector<double> microseconds;
    for (int n = 0; n != rounds; ++n) {
        auto lease = co_await locks.acquire("handed over");
        if (::write(to_second, "g", 1) != 1)
            co_return microseconds;
        while (server.cli("PUBSUB", "CHANNELS").parts.empty())
            co_await loop.sleep_for(1ms);
        co_await loop.sleep_for(2ms); // it has looked, and sleeps
        const auto start = amux::clock::now();
        co_await lease.release();
        amux::clock::rep at = 0;
        if (::read(from_second, &at, sizeof at) != sizeof at)
            co_return microseconds;
        const auto taken = amux::clock::time_point{amux::clock::duration{at}} - start;
        microseconds.push_back(std::chrono::duration<double, std::micro>(taken).count());
    }
    co_return microseconds;
}

/// The median, in microseconds.
double median_of_hand_overs(support::redis_server& server, int rounds)
{
    int to_second[2];
    int from_second[2];
    if (::pipe(to_second) != 0 || ::pipe(from_second) != 0)
        throw std::runtime_error{"no pipe"};
    const pid_t second = fork();
    if (second == 0) {
        amux::event_loop loop;
        auto locks = amux::make_redis_lock({.port = server.port()}, loop);
        loop.block_on(wait_and_tell(locks, rounds, from_second[1], to_second[0]));
        _exit(0);
    }
    amux::event_loop loop;
    auto locks = amux::make_redis_lock({.port = server.port()}, loop);
    auto all = loop.block_on(hand_over(locks, loop, server, rounds, to_second[1], from_second[0]));
    waitpid(second, nullptr, 0);
    std::sort(all.begin(), all.end());
    return all.empty() ? 0 : all[all.size() / 2];
}

template <class F>
double rate(int pairs, F work)
{
    const auto start = amux::clock::now();
    work();
    return pairs / std::chrono::duration<double>(amux::clock::now() - start).count();
}

} // namespace

int main(int argc, char** argv)
{
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
    support::redis_server server;
    const double handed_over = median_of_hand_overs(server, 200); // forks: before there are threads
    raw_client raw{server.port()};
    amux::event_loop loop;
    auto locks = amux::make_redis_lock({.port = server.port()}, loop);
    amux_pairs(locks, loop, 64, 640); // the connections, and the scripts in the server

    constexpr int one_by_one = 4'000;
    constexpr int together = 32'000;
    std::array<double, 4> best{};
    for (int n = 0; n != rounds; ++n) {
        const auto note = [&best](std::size_t which, double r) {
            best.at(which) = (std::max)(best.at(which), r);
        };
        note(0, rate(one_by_one, [&] {
                 for (int p = 0; p != one_by_one; ++p)
                     raw.pairs(1);
             }));
        note(1, rate(one_by_one, [&] { amux_pairs(locks, loop, 1, one_by_one); }));
        note(2, rate(together, [&] {
                 for (int p = 0; p != together / 64; ++p)
                     raw.pairs(64);
             }));
        note(3, rate(together, [&] { amux_pairs(locks, loop, 64, together); }));
    }
    std::printf("pairs of acquire and release   per second   of hiredis\n");
    std::printf("hiredis, one by one            %10.0f\n", best[0]);
    std::printf("amux, 1 coroutine              %10.0f   %5.0f %%\n", best[1],
                100 * best[1] / best[0]);
    std::printf("hiredis, 64 at a time          %10.0f\n", best[2]);
    std::printf("amux, 64 coroutines            %10.0f   %5.0f %%\n", best[3],
                100 * best[3] / best[2]);
    std::printf("from process to process        %10.0f us (median)\n", handed_over);
}

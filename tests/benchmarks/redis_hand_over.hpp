// SPDX-License-Identifier: BSL-1.0
// Without this file nobody would know how long a key lies idle between two who want it, nor what that costs the server.
#pragma once

#include <amux/clock.hpp>
#include <amux/event_loop.hpp>
#include <amux/redis_backend.hpp>
#include <amux/task.hpp>
#include <amux/when_all.hpp>

#include <redis/support/redis_server.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace benchmark {

using redis_locks = amux::distributed_lock<amux::redis_backend>;
using microseconds = std::chrono::duration<double, std::micro>;

inline double median_of(std::vector<double> all)
{
    if (all.empty())
        throw std::runtime_error{"nothing was measured"};
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    std::nth_element(all.begin(), middle, all.end());
    return *middle;
}

/// The number that follows `name` in a section of INFO; 0 when it is not there.
inline double info_number(support::redis_server& server, const char* section, std::string_view name)
{
    const std::string text = server.cli("INFO", section).text;
    const auto at = text.find(name);
    return at == text.npos ? 0 : std::stod(text.substr(at + name.size()));
}

/// What clients have sent since the last CONFIG RESETSTAT; what scripts call is left out.
inline double commands_of_clients(support::redis_server& server)
{
    double sum = 0;
    for (const std::string name : {"eval", "evalsha", "subscribe", "unsubscribe"})
        sum += info_number(server, "commandstats", "cmdstat_" + name + ":calls=");
    return sum;
}

/// From the call of `release` to the next grant.
struct hand_overs {
    double median = 0; // in microseconds
    double commands = 0; // for each
};

/// What those who hand a key over write down, in memory that processes share.
class relay_log {
public:
    static constexpr int room = 100'000;

    /// `i_am` is a process of its own.
    void granted(int i_am) noexcept
    {
        const auto now = amux::clock::now().time_since_epoch().count();
        const bool handed_over = last_.load() != 0 && (alone_ || last_.load() != i_am);
        if (const int n = handed_over ? count_.load() : room; n < room) {
            times_[n] = now - released_.load();
            count_.store(n + 1);
        }
        last_.store(i_am);
    }
    void releases() noexcept { released_.store(amux::clock::now().time_since_epoch().count()); }
    /// One process hands over to itself.
    void alone() noexcept { alone_ = true; }
    bool has(int count) const noexcept { return count_.load() >= count; }
    double median() const
    {
        std::vector<double> all;
        for (int n = 0; n != count_.load(); ++n)
            all.push_back(microseconds{amux::clock::duration{times_[n]}}.count());
        return median_of(all);
    }

    std::atomic<int> ready{0};
    std::atomic<bool> begin{false};

private:
    // Of whoever holds the key; they are atomic for the processes.
    std::atomic<amux::clock::rep> released_{0};
    std::atomic<int> last_{0};
    std::atomic<int> count_{0};
    bool alone_ = false;
    amux::clock::rep times_[room] = {};
};

class shared_log {
public:
    shared_log()
    {
        void* const memory = ::mmap(nullptr, sizeof(relay_log), PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            throw std::runtime_error{"no memory for processes to share"};
        log_ = new (memory) relay_log;
    }
    shared_log(const shared_log&) = delete;
    shared_log& operator=(const shared_log&) = delete;
    ~shared_log() { ::munmap(log_, sizeof(relay_log)); }
    relay_log* operator->() const noexcept { return log_; }
    relay_log& operator*() const noexcept { return *log_; }

private:
    relay_log* log_;
};

inline amux::task<> take_and_pass_on(redis_locks& locks, relay_log& log, int i_am)
{
    auto lease = co_await locks.acquire("handed over");
    log.granted(i_am);
    log.releases();
    co_await lease.release();
}

/// In one process, from coroutine to coroutine.
inline hand_overs hand_over_in_process(support::redis_server& server, int waiters)
{
    const shared_log log;
    log->alone();
    amux::event_loop loop;
    auto locks = amux::make_redis_lock({.port = server.port()}, loop);
    loop.block_on(take_and_pass_on(locks, *log, 1)); // the connections
    std::vector<amux::task<>> all;
    for (int n = 0; n != waiters; ++n)
        all.push_back(take_and_pass_on(locks, *log, 1));
    server.cli("CONFIG", "RESETSTAT");
    loop.block_on(amux::when_all(std::move(all)));
    return {log->median(), commands_of_clients(server) / waiters};
}

/// Each holds the key for as long as the others need to fall asleep again, and leaves it to them for as long: who asks
/// again at once mostly has it before others have heard of the release.
inline amux::task<> contend(redis_locks& locks, amux::event_loop& loop, relay_log& log, int i_am,
                            int count)
{
    while (!log.has(count)) {
        auto lease = co_await locks.acquire(
            "relay", {.max_wait = amux::forever, .poll_interval = std::chrono::seconds{5}});
        log.granted(i_am);
        co_await loop.sleep_for(std::chrono::milliseconds{20});
        log.releases();
        co_await lease.release();
        co_await loop.sleep_for(std::chrono::milliseconds{20});
    }
}

/// Between processes that all want the key all the time. Requires: this process has no other thread.
inline hand_overs hand_over_between(support::redis_server& server, int processes, int count)
{
    const shared_log log;
    std::vector<pid_t> all;
    for (int n = 1; n <= processes; ++n) {
        all.push_back(::fork());
        if (all.back() != 0)
            continue;
        amux::event_loop loop;
        auto locks = amux::make_redis_lock({.port = server.port()}, loop);
        ++log->ready;
        while (!log->begin)
            ::usleep(1'000);
        loop.block_on(contend(locks, loop, *log, n, count));
        ::_exit(0);
    }
    while (log->ready != processes)
        ::usleep(1'000);
    server.cli("CONFIG", "RESETSTAT");
    log->begin = true;
    while (!log->has(count))
        ::usleep(1'000);
    const double commands = commands_of_clients(server);
    for (const pid_t p : all)
        ::waitpid(p, nullptr, 0);
    return {log->median(), commands / count};
}

} // namespace benchmark

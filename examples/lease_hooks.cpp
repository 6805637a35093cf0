// SPDX-License-Identifier: BSL-1.0
// Hooks: what a log and a dashboard want to know of every lease.
#include "check.hpp"

#include <amux/amux.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace std::chrono_literals;

/// A store that can be cut off.
class shaky_store {
public:
    explicit shaky_store(const amux::scheduler& time) : memory_{time} {}

    bool cut_off = false;

    auto acquire(std::string_view key, std::string_view token, std::chrono::milliseconds ttl)
    {
        return memory_.acquire(key, token, ttl);
    }
    auto extend(std::string_view key, std::string_view token, std::chrono::milliseconds ttl)
    {
        if (cut_off)
            throw amux::backend_error{amux::backend_error_kind::indeterminate, "no answer"};
        return memory_.extend(key, token, ttl);
    }
    auto release(std::string_view key, std::string_view token)
    {
        return memory_.release(key, token);
    }
    auto get(std::string_view key) { return memory_.get(key); }

private:
    amux::memory_backend memory_;
};

// [hooks]
std::string what(const std::exception_ptr& cause)
{
    try {
        std::rethrow_exception(cause);
    } catch (const std::exception& e) {
        return e.what();
    }
}

amux::lock_hooks log_to(std::vector<std::string>& log)
{
    // Short ones: a hook runs on the loop that renews every lease.
    const auto line = [&log](std::string_view event, const amux::lock_event& e) {
        log.push_back(std::string{event} + ' ' + e.key);
        std::printf("%-8s %s, fence %llu, by %s", std::string{event}.c_str(), e.key.c_str(),
                    static_cast<unsigned long long>(e.fence.value_or(0)), e.metadata.c_str());
        if (e.reason)
            std::printf(": %s", to_string(*e.reason));
        if (e.cause)
            std::printf(": %s", what(e.cause).c_str());
        std::printf("\n");
    };
    amux::lock_hooks hooks;
    hooks.on_acquire = [line](const amux::lock_event& e) { line("acquired", e); };
    hooks.on_renew = [line](const amux::lock_event& e) { line("renewed", e); };
    hooks.on_error = [line](const amux::lock_event& e) { line("trouble", e); };
    hooks.on_release = [line](const amux::lock_event& e) { line("released", e); };
    hooks.on_lost = [line](const amux::lock_event& e) { line("lost", e); };
    return hooks;
}
// [/hooks]

template <class Locks>
amux::task<> hold_for(Locks& locks, amux::manual_event_loop& loop, std::chrono::seconds time)
{
    auto lease = co_await locks.acquire("report", {.ttl = 6s, .renew = true, .metadata = "host-7"});
    co_await loop.sleep_for(time);
}

void pass(amux::manual_event_loop& loop, int seconds)
{
    for (int i = 0; i != seconds * 10; ++i) {
        loop.advance(100ms);
        loop.run_ready();
    }
}

} // namespace

int main()
{
    std::vector<std::string> log;
    amux::manual_event_loop loop;
    shaky_store store{loop};
    // [use]
    amux::distributed_lock locks{store, loop, {}, log_to(log)};
    // [/use]

    loop.spawn(hold_for(locks, loop, 3s));
    pass(loop, 4);
    check(log == std::vector<std::string>{"acquired report", "renewed report", "released report"},
          "a lease begins with on_acquire and ends with on_release");

    log.clear();
    loop.spawn(hold_for(locks, loop, 20s));
    loop.run_ready();
    store.cut_off = true;
    pass(loop, 3);
    check(log.size() >= 2 && log.back() == "trouble report", "trouble is no loss");
    pass(loop, 20);
    check(log.front() == "acquired report" && log.back() == "lost report",
          "or it ends with on_lost, once");
}

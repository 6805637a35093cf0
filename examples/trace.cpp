// SPDX-License-Identifier: BSL-1.0
// Trace: who waited for whom, as a picture. `examples/run.sh trace FILE` writes a file for https://ui.perfetto.dev or
// chrome://tracing; without a name it is printed.
#include "check.hpp"

#include <amux/amux.hpp>

#include <chrono>
#include <cstdio>
#include <string>

namespace {

using namespace std::chrono_literals;

/// The muxes of a real program need none: theirs is `amux::clock`.
struct loop_clock {
    static amux::clock::time_point now() noexcept { return loop->now(); }
    static inline const amux::manual_event_loop* loop = nullptr;
};

// [policy]
using traced =
    amux::tracing<std::string, amux::multi_threaded, loop_clock>; // amux::tracing<std::string>
using traced_mux = amux::asyncmux<std::string, traced>;
// [/policy]

struct shop {
    amux::manual_event_loop loop;
    traced_mux accounts;

    amux::task<> pay(const char* who, std::chrono::milliseconds arrives,
                     std::chrono::milliseconds takes)
    {
        co_await loop.sleep_for(arrives);
        auto guard = co_await accounts.lock(who);
        co_await loop.sleep_for(takes);
    }
    amux::task<> look(const char* who, std::chrono::milliseconds arrives,
                      std::chrono::milliseconds takes)
    {
        co_await loop.sleep_for(arrives);
        auto guard = co_await accounts.lock_shared(who);
        co_await loop.sleep_for(takes);
    }
    amux::task<> pay_or_leave(const char* who, std::chrono::milliseconds arrives,
                              std::chrono::milliseconds patience)
    {
        co_await loop.sleep_for(arrives);
        const auto guard = co_await accounts.try_lock_for(who, patience);
        check(!guard, "somebody else has it all the time");
    }
    amux::task<> transfer(std::chrono::milliseconds arrives, std::chrono::milliseconds takes)
    {
        co_await loop.sleep_for(arrives);
        auto guard = co_await accounts.lock_all("ann", "bob");
        co_await loop.sleep_for(takes);
    }
    amux::task<> balance(std::chrono::milliseconds arrives, std::chrono::milliseconds takes)
    {
        co_await loop.sleep_for(arrives);
        auto guard = co_await accounts.lock();
        co_await loop.sleep_for(takes);
        guard.downgrade(); // readers may come in
        co_await loop.sleep_for(takes);
    }
};

void run(shop& s)
{
    s.loop.spawn(s.pay("ann", 0ms, 40ms));
    s.loop.spawn(s.pay("ann", 10ms, 20ms));
    s.loop.spawn(s.pay_or_leave("ann", 15ms, 20ms));
    s.loop.spawn(s.look("bob", 5ms, 30ms));
    s.loop.spawn(s.look("bob", 15ms, 30ms));
    s.loop.spawn(s.pay("bob", 25ms, 15ms));
    s.loop.spawn(s.look("cy", 20ms, 65ms));
    s.loop.spawn(s.transfer(50ms, 20ms));
    s.loop.spawn(s.balance(70ms, 15ms));
    s.loop.spawn(s.look("ann", 90ms, 20ms));
    s.loop.spawn(s.pay("cy", 95ms, 10ms));
    for (int ms = 0; ms != 160; ++ms) {
        s.loop.run_ready();
        s.loop.advance(1ms);
    }
}

} // namespace

int main(int argc, char** argv)
{
    shop s;
    loop_clock::loop = &s.loop;
    // [trace]
    s.accounts.observer().start(100'000); // records from now on, so many events at most
    run(s);
    const std::string json = s.accounts.observer().chrome_trace("accounts");
    // [/trace]
    check(s.accounts.observer().dropped() == 0, "all have fitted in");

    std::FILE* const out = argc > 1 ? std::fopen(argv[1], "w") : stdout;
    if (!out) {
        std::perror(argv[1]);
        return 1;
    }
    const bool written = std::fwrite(json.data(), 1, json.size(), out) == json.size();
    check(std::fclose(out) == 0 && written, "the trace is written");
}

// SPDX-License-Identifier: BSL-1.0
// A message instead of a hang: coroutines that wait for each other, and a holder that forgets.
#include "check.hpp"

#include <amux/amux.hpp>

#include <chrono>
#include <cstdio>
#include <string>

using namespace std::chrono_literals;

namespace {

// [detector]
struct shop {
    amux::deadlock_detector deadlocks; // one for all muxes whose locks are held together
    amux::asyncmux<std::string> accounts{{.name = "accounts", .deadlocks = &deadlocks}};
    amux::asyncmux<int> orders{{.name = "orders", .deadlocks = &deadlocks}};
};
// [/detector]

int refused = 0;

amux::task<> pay(amux::manual_event_loop& loop, shop& s)
{
    auto order = co_await s.orders.lock(17);
    co_await loop.schedule(); // to another coroutine, as any await might
    auto account = co_await s.accounts.lock("ann");
}

// [caught]
amux::task<> close_account(amux::manual_event_loop& loop, shop& s)
{
    auto account = co_await s.accounts.lock("ann");
    co_await loop.schedule();
    try {
        auto order = co_await s.orders.lock(17); // who pays has it, and wants the account
    } catch (const amux::deadlock_error& e) {
        std::printf("%s\n", e.what()); // nothing has changed: give back the account, and begin anew
        ++refused;
    }
}
// [/caught]

amux::task<> forget(amux::asyncmux<>& mux, amux::manual_event_loop& loop)
{
    auto guard = co_await mux.lock("report");
    co_await loop.sleep_for(1h);
}

// [holders]
template <class Request>
void complain(const Request& r)
{
    std::printf("context %llu has held %s for %lld s, from %s:%u\n",
                static_cast<unsigned long long>(r.context), r.keys.at(0).c_str(),
                static_cast<long long>(std::chrono::floor<std::chrono::seconds>(r.held).count()),
                r.where.file_name(), static_cast<unsigned>(r.where.line()));
}
// [/holders]

int told = 0;

} // namespace

int main()
{
    amux::manual_event_loop loop;
    {
        shop s;
        loop.spawn(pay(loop, s));
        loop.spawn(close_account(loop, s));
        while (loop.run_ready() != 0) {
        }
        check(refused == 1 && s.accounts.tracked_keys() == 0, "one was refused, both are over");
    }
    std::stop_source stop;
    {
        // [option]
        amux::asyncmux<> mux{{.name = "jobs", .record_requests = true, .time = &loop}};
        const auto tell = [](const auto& r) {
            ++told;
            complain(r);
        };
        loop.spawn(amux::tell_long_holds(mux, loop, 30s, tell, stop.get_token()));
        // [/option]
        loop.spawn(forget(mux, loop));
        for (int minute = 0; minute != 70; ++minute) {
            loop.run_ready();
            loop.advance(1min);
        }
        stop.request_stop();
        loop.run_ready();
        check(told == 1, "it is told of once");
    }
}

// SPDX-License-Identifier: BSL-1.0
// Errors: each type stands for one decision of who catches it; in no case is the lock held.
#include "check.hpp"

#include <amux/amux.hpp>

#include <cstdio>
#include <stop_token>
#include <string>

namespace {

// [decide]
amux::task<std::string> buy(amux::asyncmux<>& shop, std::stop_token stop)
{
    try {
        auto guard = co_await shop.lock("till", stop);
        co_return "bought";
    } catch (const amux::lock_cancelled_error&) {
        co_return "called away"; // whoever stopped it knows why
    } catch (const amux::lock_queue_full_error&) {
        co_return "too many wait"; // refuse the work, or come again later
    } catch (const amux::lock_closed_error&) {
        co_return "closed"; // there will be no lock any more
    }
}
// [/decide]

} // namespace

int main()
{
    amux::asyncmux<> shop{{.max_waiters = 0}};
    std::stop_source calls[2];
    const auto visit = [&](int who) { return amux::sync_wait(buy(shop, calls[who].get_token())); };
    check(visit(0) == "bought", "the till is free");
    {
        const auto cashier = shop.try_lock("till");
        check(visit(0) == "too many wait", "nobody may wait here");
    }
    calls[1].request_stop();
    check(visit(1) == "called away", "a stop before the grant, also when the lock is free");
    shop.close();
    check(visit(0) == "closed", "a closed mux gives no lock");
    std::puts("bought, too many wait, called away, closed");
}

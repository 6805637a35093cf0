// SPDX-License-Identifier: BSL-1.0
// Deadlines: a lock now, a lock within some time, and a limit on how many may wait.
#include "check.hpp"

#include <amux/amux.hpp>

#include <chrono>
#include <cstdio>
#include <tuple>

namespace {

using namespace std::chrono_literals;

// [for]
amux::task<bool> print(amux::asyncmux<>& mux, amux::manual_event_loop& loop)
{
    if (auto guard = co_await mux.try_lock_for("printer", 50ms)) {
        co_await loop.sleep_for(1s);
        co_return true;
    }
    co_return false; // an empty guard: the time was up
}
// [/for]

// [now]
bool is_busy(amux::asyncmux<>& mux)
{
    return !mux.try_lock("printer"); // no await; what it got is released at once
}
// [/now]

amux::task<> print_three(amux::asyncmux<>& mux, amux::manual_event_loop& loop, int& refused)
{
    try {
        co_await amux::when_all(print(mux, loop), print(mux, loop), print(mux, loop));
    } catch (const amux::lock_queue_full_error& e) {
        std::printf("%s\n", e.what());
        ++refused;
    }
}

amux::task<> print_two(amux::asyncmux<>& mux, amux::manual_event_loop& loop, int& printed)
{
    const auto both = co_await amux::when_all(print(mux, loop), print(mux, loop));
    printed = std::get<0>(both) + std::get<1>(both);
}

} // namespace

int main()
{
    // [limit]
    amux::asyncmux<> mux{{.max_waiters = 1, .name = "office"}}; // one more: lock_queue_full_error
    // [/limit]
    amux::manual_event_loop loop; // its time moves when it is told to

    int printed = 0;
    loop.spawn(print_two(mux, loop, printed));
    loop.run_ready();
    check(is_busy(mux), "the first one prints");
    loop.advance(50ms);
    loop.run_ready();
    loop.advance(1s);
    loop.run_ready();
    std::printf("printed: %d of 2\n", printed);
    check(printed == 1, "the second one gave up after 50 ms");

    int refused = 0;
    loop.spawn(print_three(mux, loop, refused));
    for (int i = 0; i != 3; ++i) {
        loop.run_ready();
        loop.advance(1s);
    }
    check(refused == 1, "one may wait, not two");
    check(!is_busy(mux), "nobody is left");
}

// SPDX-License-Identifier: BSL-1.0
#include <amux/amux.hpp>

#include <coroutine>
#include <cstdio>
#include <exception>

/// A coroutine that begins at once and belongs to nobody.
struct job {
    struct promise_type {
        // The arguments of the coroutine: those after the loop are of no interest here.
        promise_type(amux::event_loop& l, auto&...) noexcept : loop{l} {}

        job get_return_object() noexcept { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() noexcept {}
        void unhandled_exception() noexcept { std::terminate(); }

        // All that amux has to know, and it can do without: where such a coroutine goes on.
        friend amux::scheduler* amux_scheduler(promise_type& p) noexcept { return &p.loop; }

        amux::event_loop& loop;
    };
};

job pour(amux::event_loop& loop, amux::asyncmux<>& mux, int& cups)
{
    const auto guard = co_await mux.lock("kettle"); // whoever comes later waits here
    const int before = cups;
    co_await loop.schedule(); // the others run; without the lock they would read the same number
    cups = before + 1;
    if (cups == 3)
        loop.stop();
} // released here

int main()
{
    amux::asyncmux<> mux; // keys are strings; it outlives the loop
    amux::event_loop loop;
    int cups = 0;
    for (int i = 0; i != 3; ++i)
        pour(loop, mux, cups);
    loop.run(); // until it is stopped
    std::printf("%d cups\n", cups);
    return cups == 3 ? 0 : 1;
}

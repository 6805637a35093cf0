// SPDX-License-Identifier: BSL-1.0
#include <amux/amux.hpp>

#include <cstdio>

amux::task<> pour(amux::asyncmux<>& mux, amux::event_loop& loop, int& cups)
{
    auto guard = co_await mux.lock("kettle"); // whoever comes second waits here
    const int before = cups;
    co_await loop.schedule(); // the other one runs; without the lock it would read the same number
    cups = before + 1;
} // released here

int main()
{
    amux::asyncmux<> mux; // keys are strings, unless you say otherwise: asyncmux<int>
    amux::event_loop loop;
    int cups = 0;
    loop.block_on(amux::when_all(pour(mux, loop, cups), pour(mux, loop, cups)));
    std::printf("%d cups\n", cups);
    return cups == 2 ? 0 : 1;
}

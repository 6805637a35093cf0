// SPDX-License-Identifier: BSL-1.0
#include <amux/asio.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <chrono>
#include <cstdio>

namespace asio = boost::asio;

asio::awaitable<void> pour(amux::asyncmux<>& mux, int& cups)
{
    const auto guard = co_await mux.lock("kettle"); // whoever comes later waits here
    const int before = cups;
    asio::steady_timer water{co_await asio::this_coro::executor, std::chrono::milliseconds{10}};
    co_await water.async_wait(asio::use_awaitable); // the others run, but not in here
    cups = before + 1;
} // released here

int main()
{
    amux::asyncmux<> mux; // keys are strings; it outlives the io_context
    asio::io_context io;
    int cups = 0;
    for (int i = 0; i != 3; ++i)
        asio::co_spawn(io, pour(mux, cups), asio::detached);
    io.run();
    std::printf("%d cups\n", cups);
    return cups == 3 ? 0 : 1;
}

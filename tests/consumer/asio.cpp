// SPDX-License-Identifier: BSL-1.0
// Needs Boost's headers, which only amux::asio brings.
#include <amux/amux.hpp>
#include <amux/asio.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>

namespace {

boost::asio::awaitable<void> take_turns(amux::asyncmux<>& mux, int& turns)
{
    const auto guard = co_await mux.lock("k");
    ++turns;
}

} // namespace

int main()
{
    amux::asyncmux<> mux;
    boost::asio::io_context io;
    int turns = 0;
    boost::asio::co_spawn(io, take_turns(mux, turns), boost::asio::detached);
    boost::asio::co_spawn(io, take_turns(mux, turns), boost::asio::detached);
    io.run();
    return turns == 2 ? 0 : 1;
}

// SPDX-License-Identifier: BSL-1.0
// error: cannot give a reference
#include <amux/asio.hpp>

#include <boost/asio/awaitable.hpp>

boost::asio::awaitable<void> no_reference(amux::task<int&> task)
{
    static_cast<void>(task);
    co_await std::move(task); // wrong
}

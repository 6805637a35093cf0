// SPDX-License-Identifier: BSL-1.0
// error: does not tell its context, with which the requests
#include <amux/asio.hpp>

#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/detached.hpp>

void who_would_take_it_back(amux::asyncmux<>& mux, boost::asio::any_completion_executor there)
{
    amux::async_lock(mux, "k", boost::asio::bind_executor(there, boost::asio::detached)); // wrong
}

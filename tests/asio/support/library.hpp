// SPDX-License-Identifier: BSL-1.0
// Without this file the tests hold for Boost.Asio only, and not, by a define, for the stand-alone one.
#pragma once

#include <amux/asio.hpp>

#if defined(AMUX_STANDALONE_ASIO)
#include <asio.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/experimental/parallel_group.hpp>
#include <system_error>
namespace support {
using system_error = std::system_error;
}
#else
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/system/system_error.hpp>
namespace asio = boost::asio;
namespace support {
using system_error = boost::system::system_error;
}
#endif

#include <exception>
#include <utility>

namespace support {

/// Runs what there is; the next call may run more.
inline void run(asio::io_context& io)
{
    io.restart();
    io.run();
}

/// As `run`, but returns when whatever is left waits for something else.
inline void run_ready(asio::io_context& io)
{
    io.restart();
    io.poll();
}

/// Runs an `asio::awaitable` until nothing is left to do; throws what it has thrown.
template <class T>
void run(asio::io_context& io, asio::awaitable<T> work)
{
    std::exception_ptr error;
    const auto keep = [&error](std::exception_ptr e) { error = std::move(e); };
    asio::co_spawn(io, std::move(work), keep);
    run(io);
    if (error)
        std::rethrow_exception(error);
}

/// What a handler has been told, and how often.
template <class T>
struct told {
    int times = 0;
    std::exception_ptr error;
    T value{};

    auto handler()
    {
        return [this](std::exception_ptr e, T v) {
            ++times;
            error = std::move(e);
            value = std::move(v);
        };
    }
    template <class Error>
    bool failed_with() const
    {
        if (!error)
            return false;
        try {
            std::rethrow_exception(error);
        } catch (const Error&) {
            return true;
        } catch (...) {
            return false;
        }
    }
};

} // namespace support

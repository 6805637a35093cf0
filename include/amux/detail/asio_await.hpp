// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/asio_config.hpp>

#if defined(AMUX_STANDALONE_ASIO)
#include <asio/awaitable.hpp>
#else
#include <boost/asio/awaitable.hpp>
#endif

#include <exception>
#include <utility>

// Asio 1.26, of Boost 1.81, cannot await an operation that completes with `(std::exception_ptr, T)` unless a token such as
// `use_awaitable` is given: its own form for that does not compile, and is put right from 1.27 on. This one stands in for
// it; it is made of the form for operations that complete with one value.
#if AMUX_ASIO_VERSION < 102700

namespace amux::detail {

template <class T>
struct asio_awaited {
    std::exception_ptr error;
    T value;
};

template <class T>
concept asio_awaitable_value = true; // what makes the form below the more special one

} // namespace amux::detail

#if !defined(AMUX_STANDALONE_ASIO)
namespace boost {
#endif
namespace asio::detail {

template <class R, amux::detail::asio_awaitable_value T, class Executor>
class awaitable_async_op_handler<R(std::exception_ptr, T), Executor>
    : public awaitable_async_op_handler<R(amux::detail::asio_awaited<T>), Executor> {
    using awaited = amux::detail::asio_awaited<T>;
    using base = awaitable_async_op_handler<R(awaited), Executor>;

public:
    using base::base;

    void operator()(std::exception_ptr error, T value)
    {
        base::operator()(awaited{std::move(error), std::move(value)});
    }
    static T resume(typename base::result_type& r)
    {
        awaited& a = *r;
        if (a.error)
            std::rethrow_exception(std::move(a.error));
        return std::move(a.value);
    }
};

} // namespace asio::detail
#if !defined(AMUX_STANDALONE_ASIO)
} // namespace boost
#endif

#endif

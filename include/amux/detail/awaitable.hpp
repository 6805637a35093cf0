// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <concepts>
#include <coroutine>
#include <utility>

namespace amux::detail {

/// What `co_await` makes of an expression: its awaiter, through a member or a free `operator co_await` if there is one.
template <class T>
decltype(auto) get_awaiter(T&& awaitable)
{
    if constexpr (requires { std::forward<T>(awaitable).operator co_await(); })
        return std::forward<T>(awaitable).operator co_await();
    else if constexpr (requires { operator co_await(std::forward<T>(awaitable)); })
        return operator co_await(std::forward<T>(awaitable));
    else
        return std::forward<T>(awaitable);
}

/// Something that a coroutine can `co_await`, as far as can be told without its promise.
template <class T>
concept awaitable = requires(T&& t) {
    { detail::get_awaiter(std::forward<T>(t)).await_ready() } -> std::convertible_to<bool>;
    detail::get_awaiter(std::forward<T>(t)).await_resume();
};

template <awaitable T>
using await_result_t = decltype(detail::get_awaiter(std::declval<T>()).await_resume());

} // namespace amux::detail

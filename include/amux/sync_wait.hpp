// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/awaitable.hpp>
#include <amux/event_loop.hpp>
#include <amux/task.hpp>

#include <type_traits>
#include <utility>

namespace amux {

namespace detail {

/// The type in which a result is kept: itself, or a value for what is only a reference to a temporary.
template <class T>
using kept_t = std::conditional_t<std::is_lvalue_reference_v<T>, T, std::remove_cvref_t<T>>;

template <awaitable Awaitable>
task<kept_t<await_result_t<Awaitable>>> await_in_task(Awaitable&& a)
{
    // Named first: g++ 12 copies an awaiter that is awaited as an rvalue reference.
    auto&& awaiter = detail::get_awaiter(std::forward<Awaitable>(a));
    co_return co_await awaiter;
}

} // namespace detail

/// Awaits `a` on this thread, on an `event_loop` of its own, and gives its result. For `main`, tests and threads.
///
/// Effects: blocks the thread until `a` is done. What `a` resumes on another scheduler needs somebody who runs that.
/// Throws: what `a` throws.
/// Lifetime: what was spawned on that loop and has not ended is destroyed before this returns.
template <detail::awaitable Awaitable>
detail::kept_t<detail::await_result_t<Awaitable>> sync_wait(Awaitable&& a)
{
    event_loop loop;
    return loop.block_on(detail::await_in_task<Awaitable>(std::forward<Awaitable>(a)));
}

/// The same for a task, which needs no other one around it.
template <class T>
T sync_wait(task<T> work)
{
    event_loop loop;
    return loop.block_on(std::move(work));
}

} // namespace amux

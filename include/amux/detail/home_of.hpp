// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/promise_hooks.hpp>
#include <amux/scheduler.hpp>

#include <coroutine>
#include <type_traits>

namespace amux::detail {

/// Where a coroutine that awaits wants to be resumed; null when its type does not say, or is not known.
template <class Promise>
scheduler* home_of(std::coroutine_handle<Promise> handle)
{
    if constexpr (std::is_void_v<Promise>)
        return nullptr;
    else
        return scheduler_of(handle.promise());
}

} // namespace amux::detail

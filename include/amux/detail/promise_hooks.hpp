// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/context.hpp>
#include <amux/scheduler.hpp>

#include <concepts>

namespace amux::detail {

/// A promise type for which `amux_scheduler(promise)` is found by argument-dependent lookup.
template <class Promise>
concept has_scheduler_hook = requires(Promise& p) {
    { amux_scheduler(p) } -> std::convertible_to<scheduler*>;
};

/// A promise type for which `amux_context(promise)` is found by argument-dependent lookup.
template <class Promise>
concept has_context_hook = requires(Promise& p) {
    { amux_context(p) } -> std::convertible_to<const context*>;
};

/// Where the coroutine of this promise wants to be resumed; null when its type does not say.
template <class Promise>
scheduler* scheduler_of(Promise& promise)
{
    if constexpr (has_scheduler_hook<Promise>)
        return amux_scheduler(promise);
    else
        return nullptr;
}

/// The context of this promise's coroutine; null when its type has none.
template <class Promise>
const context* context_of(Promise& promise)
{
    if constexpr (has_context_hook<Promise>)
        return amux_context(promise);
    else
        return nullptr;
}

} // namespace amux::detail

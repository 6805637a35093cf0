// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <coroutine>
#include <exception>

namespace amux::detail {

/// Asks a backend, on behalf of nobody: nothing waits for the coroutine, and it owns itself. It has no scheduler: the
/// backend resumes it on any thread, also when the loop is gone already.
struct backend_driver {
    struct promise_type {
        backend_driver get_return_object() const noexcept { return {}; }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }
    };
};

} // namespace amux::detail

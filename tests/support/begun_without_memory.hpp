// SPDX-License-Identifier: BSL-1.0
// Without this file no test can say which part of beginning an operation finds no memory.
#pragma once

#include "support/allocation_counter.hpp"

#include <coroutine>
#include <cstddef>

namespace support {

/// Awaits `call`; while it is begun, the `nth` call for memory finds none, nor do those after it. `missed`, unless null, says
/// whether there was such a call.
template <class Call>
struct begun_without_memory {
    Call& call;
    std::size_t nth;
    bool* missed = nullptr;

    bool await_ready() const noexcept { return false; }
    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> h)
    {
        const no_memory none{nth};
        bool* const noted = missed; // this may be gone when it returns
        if (noted)
            *noted = true; // also when it throws
        const bool waits = call.await_suspend(h);
        if (noted)
            *noted = none.was_missed();
        return waits;
    }
    auto await_resume() { return call.await_resume(); }
};

} // namespace support

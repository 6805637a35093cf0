// SPDX-License-Identifier: BSL-1.0
// Without this file a promise to allocate nothing is not tested.
#pragma once

#include <cstddef>

namespace support {

/// How often this process has called a global `operator new`, on any thread, up to now. With a sanitizer of clang nothing
/// is counted and both stay 0.
std::size_t allocations() noexcept;

/// How many of those are not deleted yet.
std::ptrdiff_t live_allocations() noexcept;

/// While it lives, this thread's `nth` call of a global `operator new`, counted from 1, finds no memory; so do those after
/// it. With a sanitizer of clang there is always memory.
class no_memory {
public:
    explicit no_memory(std::size_t nth) noexcept;
    no_memory(const no_memory&) = delete;
    no_memory& operator=(const no_memory&) = delete;
    ~no_memory();

    /// Whether there was a call that found none.
    bool was_missed() const noexcept;
};

} // namespace support

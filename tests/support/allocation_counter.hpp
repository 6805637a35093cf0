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

} // namespace support

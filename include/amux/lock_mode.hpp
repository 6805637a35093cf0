// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace amux {

/// How a lock is held: by many readers at a time, or by one writer alone.
enum class lock_mode : unsigned char { shared, exclusive };

/// "shared" or "exclusive".
constexpr const char* to_string(lock_mode mode) noexcept
{
    return mode == lock_mode::shared ? "shared" : "exclusive";
}

} // namespace amux

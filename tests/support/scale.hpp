// SPDX-License-Identifier: BSL-1.0
// Without this file a test cannot do fewer rounds where the build is slow.
#pragma once

#include <cstdlib>

namespace support {

/// `rounds` times the factor in the environment variable AMUX_TEST_SCALE (1 when not set), at
/// least 1. tests/run.sh sets it per leg; set it above 1 for a soak.
inline int scaled(int rounds)
{
    const char* const text = std::getenv("AMUX_TEST_SCALE");
    const double factor = text != nullptr ? std::strtod(text, nullptr) : 1.0;
    const double result = rounds * factor;
    return result < 1.0 ? 1 : static_cast<int>(result);
}

} // namespace support

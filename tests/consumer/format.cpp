// SPDX-License-Identifier: BSL-1.0
// Needs fmt's headers and library, which only amux::format brings.
#include <amux/version.hpp>

#include <fmt/format.h>

int main()
{
    return fmt::format("{}", AMUX_VERSION_STRING) == AMUX_VERSION_STRING ? 0 : 1;
}

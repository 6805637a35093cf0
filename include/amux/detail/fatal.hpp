// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdio>
#include <exception>

namespace amux::detail {

/// Ends the program over a misuse that nothing can be resumed from: "amux: <message> [about]" on stderr, then terminate.
[[noreturn]] inline void fatal(const char* message, const char* about = "") noexcept
{
    std::fputs("amux: ", stderr);
    std::fputs(message, stderr);
    if (*about != '\0') {
        std::fputs(" ", stderr);
        std::fputs(about, stderr);
    }
    std::fputs("\n", stderr);
    std::fflush(stderr);
    std::terminate();
}

} // namespace amux::detail

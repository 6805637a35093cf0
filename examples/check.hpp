// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdio>
#include <cstdlib>

/// Ends the program with an error when a claim is false, in every build.
inline void check(bool claim, const char* what)
{
    if (claim)
        return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::_Exit(1);
}

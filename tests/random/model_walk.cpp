// SPDX-License-Identifier: BSL-1.0
// Without this file a mistake that needs many steps, or two features together, is not found.
#include "support/random_program.hpp"

#include <catch2/catch_test_macros.hpp>

using namespace walks;

TEST_CASE("random programs: a mux keeps the rule in whatever way it is asked", "[asyncmux][random]")
{
    walk<amux::asyncmux<int>, forms::all>({}, 10000);
}

TEST_CASE("random programs: a mux for one thread keeps the rule", "[asyncmux][random]")
{
    walk<amux::unsynchronized_asyncmux<int>, forms::few>({}, 5000);
}

TEST_CASE("random programs: whoever has no scheduler resumes in order, inside the call",
          "[asyncmux][random]")
{
    walk<amux::asyncmux<int>, forms::few>({.loops = false, .timed = false}, 5000);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a mistake that shows only in a mux of many shards, or while it grows, is not found.
#include "support/random_program.hpp"

#include <catch2/catch_test_macros.hpp>

using namespace walks;

namespace {

/// The policy's mutex pretends to be contended now and then: the mux grows in the middle of most programs.
template <class Mux, forms Forms>
void walk_and_grow(int programs)
{
    noticed::grown = 0;
    walk<Mux, Forms>({.collisions = true}, programs);
    CHECK(noticed::grown > support::scaled(programs) / 10);
}

} // namespace

TEST_CASE("random programs: a mux that grows to 2 shards keeps the rule", "[asyncmux][random]")
{
    walk_and_grow<amux::asyncmux<int, growing<2>>, forms::few>(5000);
}

TEST_CASE("random programs: a mux that grows to 4 shards keeps the rule", "[asyncmux][random]")
{
    walk_and_grow<amux::asyncmux<int, growing<4>>, forms::all>(10000);
}

TEST_CASE("random programs: a mux that grows to 16 shards keeps the rule", "[asyncmux][random]")
{
    walk_and_grow<amux::asyncmux<int, growing<16>>, forms::few>(5000);
}

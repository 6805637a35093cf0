// SPDX-License-Identifier: BSL-1.0
// Without this file no long program uses keys that own memory, nor keys that share a hash.
#include "support/random_program.hpp"

#include <catch2/catch_test_macros.hpp>

#include <string>

using namespace walks;

TEST_CASE("random programs: a mux with text for keys keeps the rule", "[asyncmux][random]")
{
    walk<amux::asyncmux<std::string>, forms::all>({}, 6000);
}

TEST_CASE(
    "random programs: a mux whose keys all have one hash keeps the rule, "
    "and destroys no key under an internal lock",
    "[asyncmux][random]")
{
    using mux = amux::asyncmux<owning_key, growing<4>, owning_key::hash>;
    walk<mux, forms::few>({.collisions = true}, 6000);
}

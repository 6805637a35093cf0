// SPDX-License-Identifier: BSL-1.0
// Without this file the version in the header and the version of the package drift apart.
#include <amux/version.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>

TEST_CASE("version: the header and the CMake project say the same", "[version]")
{
    CHECK(std::string(AMUX_VERSION_STRING) == AMUX_PROJECT_VERSION);
}

TEST_CASE("version: the number and the text say the same", "[version]")
{
    const std::string text = std::to_string(AMUX_VERSION / 10000) + '.' +
                             std::to_string(AMUX_VERSION / 100 % 100) + '.' +
                             std::to_string(AMUX_VERSION % 100);
    CHECK(text == AMUX_VERSION_STRING);
}

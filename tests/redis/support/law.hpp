// SPDX-License-Identifier: BSL-1.0
// Without this file a machine that stood still for a moment would look like a backend that breaks the law.
#pragma once

#include <amux/testing/conformance.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <chrono>

namespace support {

/// Checks that a backend keeps the law in real time. What fails where little slack is given, a fraction of a second, must
/// hold with more of it: that takes longer.
template <class Backend>
void check_law(Backend& backend)
{
    using namespace std::chrono_literals;
    using amux::testing::in_real_time;
    auto results = amux::testing::run_conformance(backend, in_real_time("run "));
    if (!std::all_of(results.begin(), results.end(), [](const auto& r) { return r.ok; }))
        results = amux::testing::run_conformance(backend, in_real_time("second run ", 300ms));
    for (const auto& r : results) {
        INFO(r.name << ": " << r.message);
        CHECK(r.ok);
    }
}

} // namespace support

// SPDX-License-Identifier: BSL-1.0
// Without this file two processes may believe in one lease after some mixture of lost answers, pauses and clocks, and
// nobody would know before their data do.
#include "support/lease_walk.hpp"
#include "support/scale.hpp"
#include "support/seeded_bits.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

using namespace std::chrono_literals;
using amux::testing::plain_scripted_backend;
using amux::testing::scripted_backend;
using support::lease_walk;
using support::walk_manners;

namespace {

// AMUX_SEED=N replays one walk.
template <class Backend>
void walk(const walk_manners& manners, int walks)
{
    const char* const replay = std::getenv("AMUX_SEED");
    std::uint64_t seed =
        replay ? std::strtoull(replay, nullptr, 10) : std::uint64_t{Catch::getSeed()} << 20;
    std::size_t grants = 0;
    std::size_t losses = 0;
    std::size_t failures = 0;
    std::size_t requests = 0;
    for (int n = replay ? 1 : support::scaled(walks); n > 0; --n, ++seed) {
        const support::seeded_bits bits{seed};
        auto made = std::make_unique<lease_walk<Backend>>(seed, manners);
        lease_walk<Backend>& w = *made;
        const std::string trouble = w.walk();
        if (!trouble.empty())
            made.release(); // coroutines wait in it
        INFO("AMUX_SEED=" << seed);
        REQUIRE(trouble == "");
        grants += w.grants;
        losses += w.losses;
        failures += w.failures;
        requests += w.requests();
    }
    INFO("grants " << grants << ", lost " << losses << ", not granted " << failures << ", requests "
                   << requests);
    CHECK(grants > 0);
}

} // namespace

TEMPLATE_TEST_CASE("distributed_lock: whatever the store and the clocks do, one process believes",
                   "[distributed_lock][random]", scripted_backend, plain_scripted_backend)
{
    walk<TestType>({}, 500);
}

TEST_CASE("distributed_lock: with a store that works everybody is woken long before a poll",
          "[distributed_lock][random]")
{
    walk_manners manners;
    manners.store_fails = false;
    manners.pauses = false;
    manners.poll = 1h;
    manners.patience = 60s;
    walk<scripted_backend>(manners, 500);
}

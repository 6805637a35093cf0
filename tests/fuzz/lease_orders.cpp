// SPDX-License-Identifier: BSL-1.0
// Without this file a mistake in a lease's end that takes more than five events is left to chance.
// libFuzzer: -max_len=18
#include "support/lease_world.hpp"
#include "support/seeded_bits.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

using namespace std::chrono_literals;
using support::lease_event;
using support::lease_world;

namespace {

void require(const lease_world& w, const std::string& story)
{
    if (w.trouble().empty())
        return;
    std::fprintf(stderr, "not so: %s; after%s\n", w.trouble().c_str(), story.c_str());
    std::abort();
}

} // namespace

// Two bytes of options, then an event a byte; one that cannot happen is passed over.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
    if (size < 2)
        return 0;
    const bool renew = (data[0] & 1) != 0;
    const auto margin = (data[0] & 2) != 0 ? 300ms : 0ms;
    // Quiet worlds are not compared with the model, so half of them are not.
    const unsigned quiet = (data[0] & 4) != 0 ? data[1] : 0u;
    std::string story = std::string{renew ? " renewed," : ""} + " margin " +
                        std::to_string(margin.count()) + ", quiet " + std::to_string(quiet);

    const support::seeded_bits bits{1}; // or an input could not be replayed
    lease_world world{{renew, margin, quiet}};
    const std::size_t end = std::min(size, 2 + lease_world::most_events);
    for (std::size_t i = 2; i != end; ++i) {
        const std::size_t e = data[i] % support::lease_events;
        if (!world.happens(static_cast<lease_event>(e)))
            continue;
        story += std::string{" | "} + support::lease_event_names[e];
        require(world, story);
    }
    world.finish();
    require(world, story + " | finish");
    return 0;
}

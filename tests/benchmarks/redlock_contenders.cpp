// SPDX-License-Identifier: BSL-1.0
// Without this file the figures on the page about redlock, what contenders cost each other, could not be measured again.
#include "support/redlock_crowd.hpp"
#include "support/redlock_world.hpp"
#include "support/seeded_bits.hpp"

#include <amux/testing/scripted_backend.hpp>

#include <cstddef>
#include <cstdio>

namespace {

constexpr int enough = 500;

template <class Node>
void measure(std::size_t processes, std::size_t nodes, const char* which = "")
{
    const support::seeded_bits bits{7};
    support::redlock_crowd<Node> all{nodes, processes};
    all.take_turns(enough, enough);
    const double grants = all.served();
    std::printf("| %zu | %zu%s | %.0f ms | %d ms | %.1f |\n", processes, nodes, which,
                static_cast<double>(all.took().count()) / grants,
                static_cast<int>(all.longest().count()),
                static_cast<double>(all.acquires()) / static_cast<double>(nodes) / grants);
}

} // namespace

int main()
{
    std::puts(
        "| processes | nodes | time for a grant | longest time without one | "
        "acquires at a node for a grant |\n|---|---|---|---|---|");
    for (const std::size_t processes : {1u, 2u, 10u, 100u})
        measure<support::scripted_node>(processes, 3);
    for (const std::size_t processes : {10u, 100u})
        measure<support::scripted_node>(processes, 5);
    for (const std::size_t processes : {10u, 100u})
        measure<amux::testing::plain_scripted_backend>(processes, 3, ", which tell of no release");
}

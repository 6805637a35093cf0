// SPDX-License-Identifier: BSL-1.0
// Without this file a timer that is taken out of the middle may tear others with it, or the order may break.
#include <amux/detail/timer_heap.hpp>

#include "support/scale.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

using amux::detail::timer_heap;
using node = amux::scheduler::node;

namespace {

void run_nothing(node&) noexcept {}

bool before(const node* a, const node* b)
{
    return std::pair{a->due, a->order} < std::pair{b->due, b->order};
}

} // namespace

TEST_CASE("timer_heap: any mix of arming, taking out and firing agrees with a sorted set",
          "[random]")
{
    const unsigned seed = Catch::getSeed();
    CAPTURE(seed);
    std::mt19937 random{seed};
    const auto below = [&](std::size_t n) {
        return std::uniform_int_distribution<std::size_t>{0, n - 1}(random);
    };

    for (int history = support::scaled(200); history > 0; --history) {
        std::vector<std::unique_ptr<node>> nodes;
        std::set<node*, bool (*)(const node*, const node*)> armed{&before};
        timer_heap heap;
        std::uint64_t order = 0;
        const std::size_t due_times = 1 + below(50);
        bool agreed = true;
        for (int step = 0; step < 300 && agreed; ++step) {
            const std::size_t what = below(10);
            if (what < 5 || armed.empty()) {
                node& n = *nodes.emplace_back(std::make_unique<node>(&run_nothing));
                n.due = node{&run_nothing}.due + std::chrono::nanoseconds{below(due_times)};
                n.order = ++order;
                heap.push(n);
                armed.insert(&n);
            } else {
                auto chosen = armed.begin(); // fires
                if (what < 8)
                    std::advance(chosen, below(armed.size())); // taken out
                heap.erase(**chosen);
                armed.erase(chosen);
            }
            agreed = armed.empty() ? heap.empty() : heap.front() == *armed.begin();
        }
        REQUIRE(agreed);
    }
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a key is lost, or one request pays for all, while a table of keys grows.
#include <amux/detail/intrusive_hash.hpp>

#include "support/scale.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

struct node {
    node* chain = nullptr;
    std::uint64_t hash = 0;
    int value = 0;
};

using node_table = amux::detail::intrusive_hash<node>;

node* find(node_table& t, const node& n)
{
    return t.find(n.hash, [&n](const node& other) { return other.value == n.value; }).node;
}

/// Every node that the table walks over; fails when it meets one twice.
std::set<const node*> walk(node_table& t)
{
    std::set<const node*> met;
    bool twice = false;
    t.for_each([&](node& n) { twice = !met.insert(&n).second || twice; });
    CHECK_FALSE(twice);
    return met;
}

} // namespace

TEST_CASE("intrusive_hash: it holds what was inserted and not erased, in every stage of growing",
          "[intrusive_hash]")
{
    // Few hashes: long chains. Many: a node or two in each.
    const std::uint64_t hashes = GENERATE(1u, 3u, 64u, 1u << 31);
    std::mt19937_64 random{hashes};
    std::deque<node> nodes(static_cast<std::size_t>(support::scaled(3000)));
    std::unordered_multimap<std::uint64_t, node*> expected;
    node_table t;
    std::size_t next = 0;
    bool same = true;
    while (next < nodes.size()) {
        const bool insert = expected.empty() || random() % 4 != 0;
        if (insert) {
            node& n = nodes[next++];
            n.hash = random() % hashes;
            n.value = static_cast<int>(next);
            t.insert(n);
            expected.emplace(n.hash, &n);
        } else {
            node* const n = expected.begin()->second;
            t.erase(*n);
            expected.erase(expected.begin());
            same = same && !find(t, *n);
        }
        same = same && t.size() == expected.size();
        const node& asked = nodes[random() % next];
        bool is_in = false;
        const auto [from, to] = expected.equal_range(asked.hash);
        for (auto it = from; it != to; ++it)
            is_in = is_in || it->second == &asked;
        same = same && (find(t, asked) == &asked) == is_in;
    }
    CHECK(same);
    CHECK(walk(t).size() == expected.size());
    for (const auto& [hash, n] : expected)
        t.erase(*n);
    CHECK(t.size() == 0);
    CHECK(walk(t).empty());
}

TEST_CASE("intrusive_hash: a walk meets each node once, in every stage of growing",
          "[intrusive_hash]")
{
    std::deque<node> nodes(200);
    std::mt19937_64 random{1};
    node_table t;
    std::set<const node*> expected;
    for (node& n : nodes) {
        n.hash = random();
        t.insert(n);
        expected.insert(&n);
        REQUIRE(walk(t) == expected);
    }
}

TEST_CASE("intrusive_hash: all nodes can be taken into another table, in every stage of growing",
          "[intrusive_hash]")
{
    for (std::size_t count = 0; count < 80; ++count) {
        std::deque<node> nodes(count);
        node_table from;
        for (node& n : nodes) {
            n.hash = static_cast<std::uint64_t>(&n - &nodes[0]) * 0x9E3779B97F4A7C15u;
            from.insert(n);
        }
        node_table to;
        from.take_all([&to](node& n) { to.insert(n); });
        REQUIRE(from.size() == 0);
        REQUIRE(walk(from).empty());
        REQUIRE(to.size() == count);
        for (node& n : nodes)
            REQUIRE(find(to, n) != nullptr);
        // It can be used again.
        for (node& n : nodes)
            to.erase(n);
        for (node& n : nodes)
            from.insert(n);
        REQUIRE(walk(from).size() == count);
    }
}

TEST_CASE("intrusive_hash: no insertion moves more than the nodes of a few buckets",
          "[intrusive_hash]")
{
    // Two nodes for each hash: they change places when they move.
    std::deque<node> nodes(2000);
    node_table t;
    std::size_t most = 0;
    std::size_t inserted = 0;
    std::vector<const node*> chains;
    for (node& n : nodes) {
        n.hash = inserted / 2;
        chains.clear();
        for (std::size_t i = 0; i < inserted; ++i)
            chains.push_back(nodes[i].chain);
        t.insert(n);
        std::size_t changed = 0;
        for (std::size_t i = 0; i < inserted; ++i)
            changed += nodes[i].chain != chains[i] ? 1 : 0;
        ++inserted;
        most = changed > most ? changed : most;
    }
    CHECK(most <= 16);
    CHECK(t.size() == nodes.size());
}

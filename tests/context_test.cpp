// SPDX-License-Identifier: BSL-1.0
// Without this file two lines of coroutines may have one identity, and reentrancy detection blames the wrong one.
#include <amux/context.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <memory>
#include <set>
#include <type_traits>

using amux::context;

static_assert(!std::is_copy_constructible_v<context> && !std::is_move_constructible_v<context>);
static_assert(!std::is_copy_assignable_v<context> && !std::is_move_assignable_v<context>);
static_assert(!std::is_convertible_v<const context*, context>, "a child is made on purpose only");

TEST_CASE("context: a new one is a root", "[context]")
{
    const context root;
    CHECK(root.parent() == nullptr);
    CHECK(root.id() != 0);
    const context also_root{nullptr};
    CHECK(also_root.parent() == nullptr);
    CHECK(also_root.id() != root.id());
}

TEST_CASE("context: a child knows its parent and has a number of its own", "[context]")
{
    const context root;
    const context child{&root};
    const context grandchild{&child};
    CHECK(grandchild.parent() == &child);
    CHECK(grandchild.parent()->parent() == &root);
    CHECK(std::set{root.id(), child.id(), grandchild.id()}.size() == 3);
}

TEST_CASE("context: a number is never used again, also when its place in memory is", "[context]")
{
    std::set<std::uint64_t> seen;
    for (int i = 0; i < 1000; ++i)
        seen.insert(std::make_unique<context>()->id());
    CHECK(seen.size() == 1000);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file what a redlock makes of the answers, and how long it pauses, may be wrong where few calls would show it.
#include <amux/detail/redlock_crowds.hpp>
#include <amux/detail/redlock_gaps.hpp>
#include <amux/detail/redlock_vote.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

using namespace std::chrono_literals;
using amux::detail::node_answer;
using amux::detail::node_answers;
using amux::detail::node_vote;
using amux::detail::verdict;
using std::chrono::milliseconds;

namespace {

node_answer names(const std::string& token, std::optional<milliseconds> remaining = {},
                  const std::string& metadata = {})
{
    node_answer a;
    a.vote = node_vote::yes;
    a.info.emplace();
    a.info->token = token;
    a.info->remaining = remaining;
    a.info->metadata = metadata;
    return a;
}

node_answer says(node_vote v, std::optional<milliseconds> holder_ttl = {})
{
    node_answer a;
    a.vote = v;
    a.holder_ttl = holder_ttl;
    return a;
}

} // namespace

TEST_CASE("redlock: who has the key is open as long as somebody may have a majority", "[redlock]")
{
    using amux::detail::count_tokens;
    const auto free = says(node_vote::no), pending = says(node_vote::pending),
               trouble = says(node_vote::trouble);
    CHECK(count_tokens({names("a"), names("a"), names("b")}) == verdict::yes);
    CHECK(count_tokens({names("b"), names("a"), names("a")}) == verdict::yes);
    CHECK(count_tokens({names("a"), names("b"), names("c")}) == verdict::no);
    CHECK(count_tokens({names("a"), free, pending}) == verdict::open);
    CHECK(count_tokens({names("a"), free, trouble}) == verdict::none);
    CHECK(count_tokens({free, free, pending}) == verdict::no);
}

TEST_CASE("redlock: of a lease what its majority says is told, not what others do", "[redlock]")
{
    using amux::detail::common_lease;
    const auto lease = common_lease({names("a", 3s), names("b", 9s, "b's"), names("a", 1s, "a's"),
                                     names("a", 2s), names("b", 9s)});
    CHECK(lease.token == "a");
    CHECK(lease.remaining == 1s); // that long three of five have it
    CHECK(lease.metadata == "a's");
    CHECK(!common_lease({names("a", 3s), names("a"), names("b", 9s)}).remaining);
}

TEST_CASE("redlock: after a refusal a node that has granted counts as free", "[redlock]")
{
    using amux::detail::time_until_free;
    const auto free = says(node_vote::yes);
    const auto taken = [](milliseconds left) { return says(node_vote::no, left); };
    CHECK(time_until_free({taken(5s), free, taken(3s)}) == 3s);
    CHECK(time_until_free({taken(5s), taken(3s), taken(4s)}) == 4s);
    CHECK(time_until_free({taken(5s), free, says(node_vote::no)}) == 5s);
    CHECK(!time_until_free({taken(5s), says(node_vote::no), says(node_vote::trouble)}));
}

TEST_CASE("redlock: a renewal that is refused pauses 10 ms, 20 ms and so on, however many refuse",
          "[redlock]")
{
    amux::detail::redlock_gaps gaps{5};
    auto now = amux::clock::time_point{1h};
    for (milliseconds pause = 10ms; pause < 1s; pause *= 2) {
        gaps.refused(0, now);
        gaps.refused(1, now);
        REQUIRE(gaps.again() == now + pause);
        now = gaps.again();
    }
}

TEST_CASE("redlock: who is told of a release pauses up to twice as long for each split vote",
          "[redlock]")
{
    amux::detail::redlock_crowds crowds;
    const auto longest = [&crowds] {
        amux::clock::duration most{};
        for (int n = 0; n != 500; ++n)
            most = (std::max)(most, crowds.pause("k"));
        return most;
    };
    CHECK(longest() == 0ms);
    for (const milliseconds most : {1ms, 3ms, 7ms, 15ms, 31ms, 63ms, 127ms, 255ms, 255ms}) {
        crowds.split("k");
        const auto got = longest(); // of 500, none in the upper half: once in 10^150
        CHECK(got < most);
        CHECK(got > most / 2);
    }
    for (int n = 0; n != 9; ++n)
        crowds.granted("k");
    CHECK(longest() == 0ms);
}

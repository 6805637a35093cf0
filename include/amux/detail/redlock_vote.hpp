// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/lease_terms.hpp>
#include <amux/error.hpp>
#include <amux/lock_backend.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace amux::detail {

/// What one node has said to a question. `pending`: nothing yet, and its time is not up. `trouble`: it cannot be known
/// what it would say.
enum class node_vote : unsigned char { pending, yes, no, trouble };

/// What a node has answered, and what came with it.
struct node_answer {
    node_vote vote = node_vote::pending;
    std::exception_ptr trouble;
    std::optional<std::chrono::milliseconds> holder_ttl; // of a refused `acquire`
    std::optional<lease_info> info; // of `get`, the token alone, and of `inspect`

    bool is(backend_error_kind kind) const noexcept { return trouble && kind_of(trouble) == kind; }
};

using node_answers = std::vector<node_answer>;

/// What the answers come to. `none`: no majority says one thing, and none will.
enum class verdict : unsigned char { open, yes, no, none };

inline std::size_t votes(const node_answers& all, node_vote v) noexcept
{
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [v](const node_answer& a) { return a.vote == v; }));
}

inline std::size_t majority_of(std::size_t nodes) noexcept
{
    return nodes / 2 + 1;
}

/// Of questions for yes and no: over as soon as the answers that are not there can change nothing.
inline verdict count_votes(const node_answers& all) noexcept
{
    const std::size_t majority = majority_of(all.size());
    const std::size_t yes = votes(all, node_vote::yes);
    const std::size_t no = votes(all, node_vote::no);
    if (yes >= majority)
        return verdict::yes;
    if (no >= majority)
        return verdict::no;
    const bool undecided = (std::max)(yes, no) + votes(all, node_vote::pending) >= majority;
    return undecided ? verdict::open : verdict::none;
}

/// Of the nodes, how many name this token.
inline std::size_t count_naming(const node_answers& all, const std::string& token) noexcept
{
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(),
                      [&](const node_answer& a) { return a.info && a.info->token == token; }));
}

/// The token that most nodes name; null when none names one.
inline const std::string* leading_token(const node_answers& all) noexcept
{
    const std::string* leader = nullptr;
    for (const node_answer& a : all) {
        if (a.info && (!leader || count_naming(all, a.info->token) > count_naming(all, *leader)))
            leader = &a.info->token;
    }
    return leader;
}

/// Of questions for the holder. `yes`: a majority names one token; `no`: whatever the others would say, none has a majority.
inline verdict count_tokens(const node_answers& all) noexcept
{
    const std::size_t majority = majority_of(all.size());
    const std::string* const leader = leading_token(all);
    const std::size_t most = leader ? count_naming(all, *leader) : 0;
    if (most >= majority)
        return verdict::yes;
    const std::size_t pending = votes(all, node_vote::pending);
    if (most + pending + votes(all, node_vote::trouble) < majority)
        return verdict::no;
    return pending != 0 ? verdict::open : verdict::none;
}

/// What a majority knows of the holder, after `verdict::yes`: no fence, since the counters of different nodes are not
/// ordered; and the time for which a majority has it.
inline lease_info common_lease(const node_answers& all)
{
    lease_info common;
    common.token = *leading_token(all);
    std::vector<std::chrono::milliseconds> remaining;
    for (const node_answer& a : all) {
        if (!a.info || a.info->token != common.token)
            continue;
        if (a.info->remaining)
            remaining.push_back(*a.info->remaining);
        if (common.metadata.empty())
            common.metadata = a.info->metadata;
    }
    std::sort(remaining.rbegin(), remaining.rend()); // the longest first
    if (remaining.size() >= majority_of(all.size()))
        common.remaining = remaining[majority_of(all.size()) - 1];
    return common;
}

/// After a refusal: when a majority is free at the latest, if enough nodes say so.
inline std::optional<std::chrono::milliseconds> time_until_free(const node_answers& all)
{
    std::vector<std::chrono::milliseconds> free;
    for (const node_answer& a : all) {
        if (a.vote == node_vote::yes)
            free.push_back({});
        else if (a.holder_ttl)
            free.push_back(*a.holder_ttl);
    }
    std::sort(free.begin(), free.end());
    if (free.size() < majority_of(all.size()))
        return std::nullopt;
    return free[majority_of(all.size()) - 1];
}

} // namespace amux::detail

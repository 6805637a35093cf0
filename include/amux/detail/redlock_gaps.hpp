// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/redlock_vote.hpp>

#include <chrono>
#include <cstddef>
#include <vector>

namespace amux::detail {

/// Where a renewal finds its lease missing, and when it may ask for it there.
class redlock_gaps {
public:
    explicit redlock_gaps(std::size_t nodes) : open_(nodes), unheard_{nodes} {}

    /// What a node has said to the renewal. Once for each.
    void heard(std::size_t node, node_vote v) noexcept
    {
        --unheard_;
        if (v != node_vote::no)
            return;
        ++missing_;
        open_[node] = true;
    }
    /// No majority misses it, and none will in time.
    bool are_few(bool decided) const noexcept
    {
        return missing_ + (decided ? 0 : unheard_) < majority_of(open_.size());
    }

    /// Whether it is to be asked for at this node.
    bool at(std::size_t node) const noexcept { return open_[node]; }
    /// It was asked for there.
    void fill(std::size_t node) noexcept { open_[node] = false; }
    /// In vain: who has failed to get a majority may have the node for a moment.
    void refused(std::size_t node, clock::time_point now) noexcept
    {
        open_[node] = true;
        if (now < again_)
            return;
        again_ = deadline_after(now, pause_);
        pause_ *= 2;
    }
    /// When it may be asked for again; none: it was refused nowhere.
    clock::time_point again() const noexcept { return again_; }

private:
    std::vector<bool> open_;
    std::size_t missing_ = 0; // how many nodes have said that it is
    std::size_t unheard_; // how many have said nothing
    clock::time_point again_{};
    std::chrono::milliseconds pause_{10}; // before that; doubled each time
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/token.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <string>

namespace amux::detail {

/// How long, by key, who waits is to let pass when a release is told, which all who wait hear of at the same moment.
///
/// A random time, up to twice as long for each vote that was split: so the first one has a majority before the next one
/// asks. (Antirez: Distributed locks with Redis.) Keys that share a place share what comes of it.
class redlock_crowds {
public:
    /// Some nodes were got, and not a majority: so, most likely, several have asked at the same moment, and nobody has
    /// one. Few of them get any, so that a plain refusal says nothing.
    void split(const std::string& key) noexcept
    {
        constexpr unsigned char most = 8; // up to 255 ms
        unsigned char& splits = at(key);
        splits = (std::min)(static_cast<unsigned char>(splits + 1), most);
    }
    void granted(const std::string& key) noexcept
    {
        if (at(key) != 0)
            --at(key);
    }
    clock::duration pause(const std::string& key) noexcept
    {
        const double longest = (1u << at(key)) - 1;
        const std::chrono::duration<double, std::milli> some{random_.between(0, longest)};
        return std::chrono::duration_cast<clock::duration>(some);
    }

private:
    unsigned char& at(const std::string& key) noexcept
    {
        return splits_[std::hash<std::string>{}(key) % splits_.size()];
    }

    std::array<unsigned char, 64> splits_{};
    jitter random_;
};

} // namespace amux::detail

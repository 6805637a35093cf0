// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/lock_mode.hpp>

#include <cstdint>

namespace amux::detail {

/// How many hold something exclusively, and how many share it: both in one word, so that neither is asked for apart.
class holders {
public:
    void add(lock_mode mode) noexcept { word_ += one(mode); }
    void add(const holders& more) noexcept { word_ += more.word_; }
    void remove(lock_mode mode) noexcept { word_ -= one(mode); }

    bool none() const noexcept { return word_ == 0; }
    std::uint32_t exclusive() const noexcept { return static_cast<std::uint32_t>(word_ >> 32); }
    std::uint32_t shared() const noexcept { return static_cast<std::uint32_t>(word_); }
    /// One more would be in conflict with nobody.
    bool admit(lock_mode mode) const noexcept
    {
        return mode == lock_mode::exclusive ? none() : exclusive() == 0;
    }

private:
    static std::uint64_t one(lock_mode mode) noexcept
    {
        return std::uint64_t{1} << (mode == lock_mode::exclusive ? 32 : 0);
    }

    std::uint64_t word_ = 0;
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
// Without this file nobody could measure what the pauses after split votes are for. It is found before that of the library.
#pragma once

#include <amux/clock.hpp>

#include <string>

namespace amux::detail {

/// All who are told of a release come at once, however often they have split the vote.
class redlock_crowds {
public:
    void split(const std::string&) noexcept {}
    void granted(const std::string&) noexcept {}
    clock::duration pause(const std::string&) noexcept { return {}; }
};

} // namespace amux::detail

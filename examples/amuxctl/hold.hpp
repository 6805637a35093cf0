// SPDX-License-Identifier: BSL-1.0
// `hold` and `try`: the process that the caller knows. What it does when stands in bond.hpp.
#pragma once

#include "words.hpp"

namespace amuxctl {

/// Requires: a process with one thread, whose URL was looked at.
/// Returns: the exit code.
int hold(const request& r);

} // namespace amuxctl

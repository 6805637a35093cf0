// SPDX-License-Identifier: BSL-1.0
// The process that has the lease. What it does when stands in bond.hpp.
#pragma once

#include "bond.hpp"
#include "words.hpp"

#include <vector>

#include <sys/types.h>

namespace amuxctl {

/// Waits for the lease, keeps it while the command runs, releases it, and ends the process.
///
/// Requires: a process with one thread, in which all signals are blocked. `others` are children of the front that have
/// nothing to do with the command.
[[noreturn]] void keep(const request& r, bond& to_front, std::vector<pid_t> others);

} // namespace amuxctl

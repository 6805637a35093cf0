// SPDX-License-Identifier: BSL-1.0
// The process that has the lease. What it does when stands in bond.hpp.
#pragma once

#include "bond.hpp"
#include "words.hpp"

namespace amuxctl {

/// Waits for the lease, keeps it while the command runs, releases it, and ends the process.
///
/// Requires: a process with one thread, in which all signals are blocked.
[[noreturn]] void keep(const request& r, bond& to_front);

} // namespace amuxctl

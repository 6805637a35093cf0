// SPDX-License-Identifier: BSL-1.0
// The names of all leases: the one thing that a backend is not asked for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace amuxctl {

/// The keys that begin with `prefix`, each once, sorted. Held keys that come or go meanwhile may be missing.
///
/// Throws: `amux::backend_error`, also when the server has not answered within its time limit.
std::vector<std::string> held_keys(std::string_view url, std::string_view prefix);

} // namespace amuxctl

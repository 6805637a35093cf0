// SPDX-License-Identifier: BSL-1.0
// The names of all leases: the one thing that a backend is not asked for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace amuxctl {

/// Effects: a connection, which is closed again. A backend would try for as long as a request may last.
/// Throws: `amux::backend_error` when there is none to be had.
void require_server(std::string_view url);

/// The keys that begin with `prefix`, each once, sorted. Held keys that come or go meanwhile may be missing.
///
/// Throws: `amux::backend_error`, also when the server has not answered within its time limit.
std::vector<std::string> held_keys(std::string_view url, std::string_view prefix);

} // namespace amuxctl

// SPDX-License-Identifier: BSL-1.0
// error: the observer of this threading policy is for a mux with other keys
#include <amux/asyncmux.hpp>
#include <amux/tracing.hpp>

amux::asyncmux<std::string, amux::tracing<std::string>> right;
amux::asyncmux<int, amux::tracing<std::string>> other; // wrong

// SPDX-License-Identifier: BSL-1.0
// error: template constraint failure for .*lock_key<Key>
#include <amux/asyncmux.hpp>

#include <memory>

amux::asyncmux<std::unique_ptr<int>> mux; // wrong

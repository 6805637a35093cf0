// SPDX-License-Identifier: BSL-1.0
// error: template constraint failure for .*lock_key<Key>
#include <amux/asyncmux.hpp>

struct key {
    ~key() noexcept(false) {}
};

amux::asyncmux<key> mux; // wrong

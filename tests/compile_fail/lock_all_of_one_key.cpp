// SPDX-License-Identifier: BSL-1.0
// error: of one argument: a range of keys
#include <amux/asyncmux.hpp>

void one_key(amux::asyncmux<int>& mux)
{
    static_cast<void>(mux.lock_all(1)); // wrong
    static_cast<void>(mux.lock_all(1, 2));
}

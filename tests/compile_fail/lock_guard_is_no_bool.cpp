// SPDX-License-Identifier: BSL-1.0
// error: cannot convert .*mux_guard
#include <amux/asyncmux.hpp>

bool held(amux::asyncmux<>& mux)
{
    bool yes = false;
    yes = mux.try_lock("k"); // wrong
    return yes || mux.try_lock("k").owns_lock();
}

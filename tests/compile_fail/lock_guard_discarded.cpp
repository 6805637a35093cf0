// SPDX-License-Identifier: BSL-1.0
// error: the lock is released at once when its guard is dropped
#include <amux/asyncmux.hpp>

void drop(amux::asyncmux<>& mux)
{
    mux.try_lock("k"); // wrong
}

// SPDX-License-Identifier: BSL-1.0
// error: use of deleted function .*mux_guard
#include <amux/asyncmux.hpp>

void copy(amux::asyncmux<>::guard& g)
{
    amux::asyncmux<>::guard copy = g; // wrong
}

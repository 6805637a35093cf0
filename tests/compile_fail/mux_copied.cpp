// SPDX-License-Identifier: BSL-1.0
// error: use of deleted function .*asyncmux
#include <amux/asyncmux.hpp>

void copy(amux::asyncmux<>& mux)
{
    amux::asyncmux<> copy = mux; // wrong
}

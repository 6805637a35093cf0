// SPDX-License-Identifier: BSL-1.0
// error: no matching function for call to .*lock
#include <amux/asyncmux.hpp>

void text_for_a_number(amux::asyncmux<int>& mux)
{
    static_cast<void>(mux.lock("k")); // wrong
}

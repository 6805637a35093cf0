// SPDX-License-Identifier: BSL-1.0
// error: call of overloaded .*lock.* is ambiguous
#include <amux/asyncmux.hpp>

void whole_mux(amux::asyncmux<>& mux)
{
    static_cast<void>(mux.lock({})); // wrong
    static_cast<void>(mux.lock());
}

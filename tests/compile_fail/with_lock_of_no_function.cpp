// SPDX-License-Identifier: BSL-1.0
// error: no matching function for call to .*with_lock
#include <amux/asyncmux.hpp>

void nothing_to_run(amux::asyncmux<>& mux)
{
    static_cast<void>(mux.with_lock("k", 5)); // wrong
}

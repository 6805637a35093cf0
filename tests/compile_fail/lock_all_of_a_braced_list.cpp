// SPDX-License-Identifier: BSL-1.0
// error: no matching function for call to .*lock_all
#include <amux/asyncmux.hpp>

void braced_list(amux::asyncmux<>& mux)
{
    static_cast<void>(mux.lock_all({"a", "b"})); // wrong
    static_cast<void>(mux.lock_all("a", "b"));
}

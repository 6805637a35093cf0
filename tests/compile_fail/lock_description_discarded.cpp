// SPDX-License-Identifier: BSL-1.0
// error: nothing is locked until it is awaited
#include <amux/asyncmux.hpp>

void forget_to_await(amux::asyncmux<>& mux)
{
    mux.lock("k"); // wrong
}

// SPDX-License-Identifier: BSL-1.0
// error: no matching function .*stop_token
#include <amux/asyncmux.hpp>

#include <stop_token>

void stop_first(amux::asyncmux<>& mux, std::stop_token stop)
{
    static_cast<void>(mux.lock_all(stop, "a", "b")); // wrong
    static_cast<void>(mux.lock_all("a", "b", stop));
}

// SPDX-License-Identifier: BSL-1.0
// error: passing .*lock_operation.* discards qualifiers
#include <amux/asyncmux.hpp>

#include <utility>

amux::task<> lock(amux::asyncmux<>& mux)
{
    auto description = mux.lock("k");
    auto first = co_await description; // wrong
    auto second = co_await std::move(description);
}

// SPDX-License-Identifier: BSL-1.0
// error: a lock with a time limit needs a scheduler
#include "support/foreign_coroutine.hpp"

#include <amux/asyncmux.hpp>

#include <chrono>

support::fire_and_forget nowhere_to_wait(amux::asyncmux<>& mux, amux::scheduler& where)
{
    using namespace std::chrono_literals;
    auto first = co_await mux.try_lock_for("k", 1s); // wrong
    auto second = co_await mux.try_lock_for("k", 1s).resume_on(where);
}

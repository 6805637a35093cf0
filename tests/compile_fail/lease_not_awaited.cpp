// SPDX-License-Identifier: BSL-1.0
// error: a task does nothing until it is awaited
#include <amux/distributed_lock.hpp>
#include <amux/memory_backend.hpp>

void use(amux::distributed_lock<amux::memory_backend>& locks)
{
    locks.acquire("k"); // wrong
}

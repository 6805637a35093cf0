// SPDX-License-Identifier: BSL-1.0
// error: no matching function for call to .*with_lock
#include <amux/distributed_lock.hpp>
#include <amux/memory_backend.hpp>

amux::task<> use(amux::distributed_lock<amux::memory_backend>& locks)
{
    const auto work = [](int) {};
    co_await locks.with_lock("k", work); // wrong
}

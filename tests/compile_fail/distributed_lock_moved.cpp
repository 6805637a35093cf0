// SPDX-License-Identifier: BSL-1.0
// error: use of deleted function .*distributed_lock\(const
#include <amux/distributed_lock.hpp>
#include <amux/memory_backend.hpp>

#include <utility>

using lease_locks = amux::distributed_lock<amux::memory_backend>;

void move(lease_locks& locks)
{
    lease_locks elsewhere{std::move(locks)}; // wrong
}

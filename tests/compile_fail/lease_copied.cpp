// SPDX-License-Identifier: BSL-1.0
// error: use of deleted function .*acquired_lock\(const amux::acquired_lock&\)
#include <amux/acquired_lock.hpp>

void copy(amux::acquired_lock& lease)
{
    amux::acquired_lock second{lease}; // wrong
}

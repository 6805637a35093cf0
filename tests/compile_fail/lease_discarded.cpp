// SPDX-License-Identifier: BSL-1.0
// error: the lease is released at once when it is dropped
#include <amux/acquired_lock.hpp>

amux::acquired_lock take();

void drop_it()
{
    take(); // wrong
}

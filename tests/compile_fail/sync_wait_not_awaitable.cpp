// SPDX-License-Identifier: BSL-1.0
// error: constraints not satisfied
#include <amux/sync_wait.hpp>

void wait_for_a_number()
{
    amux::sync_wait(1); // wrong
}

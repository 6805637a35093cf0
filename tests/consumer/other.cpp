// SPDX-License-Identifier: BSL-1.0
// The same headers once more: a function that is not inline would be defined twice.
#include "use.hpp"

int count_in_other_unit(shared_counter& counter, int times)
{
    amux::sync_wait(count_up(counter, times));
    return AMUX_VERSION;
}

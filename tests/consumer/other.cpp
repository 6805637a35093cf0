// SPDX-License-Identifier: BSL-1.0
// The same headers once more: a function that is not inline would be defined twice.
#include "use.hpp"

int in_other_unit()
{
    return AMUX_VERSION;
}

// SPDX-License-Identifier: BSL-1.0
#include "use.hpp"

int main()
{
    return in_other_unit() == AMUX_VERSION ? 0 : 1;
}

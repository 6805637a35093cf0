// SPDX-License-Identifier: BSL-1.0
#include "use.hpp"

int main()
{
    shared_counter counter;
    int version = 0;
    std::thread other{[&] { version = count_in_other_unit(counter, 1000); }};
    amux::sync_wait(count_up(counter, 1000));
    other.join();
    return version == AMUX_VERSION && amux::sync_wait(look(counter)) == 2000 ? 0 : 1;
}

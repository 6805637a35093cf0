// SPDX-License-Identifier: BSL-1.0
// Descriptors that we were started with: whose they are, and when we let go of them.
#pragma once

#include "processes.hpp"

#include <unistd.h>

namespace amuxctl {

/// For each standard stream that is closed: else what is opened next would be taken for it. Reading and writing fails as
/// before, and the command finds them closed.
void fill_standard_streams();

/// Of input and output: they are the command's, and who reads what it writes must see the end when it ends.
void let_go_of_streams();

/// Of those above the standard streams, if `unwanted(fd)`.
template <class Predicate>
void close_descriptors(Predicate unwanted)
{
    for (const int fd : open_descriptors()) {
        if (fd > STDERR_FILENO && unwanted(fd))
            close(fd);
    }
}

} // namespace amuxctl

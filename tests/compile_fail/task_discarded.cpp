// SPDX-License-Identifier: BSL-1.0
// error: a task does nothing until it is awaited
#include <amux/task.hpp>

amux::task<> work();

void drop_it()
{
    work(); // wrong
}

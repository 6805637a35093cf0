// SPDX-License-Identifier: BSL-1.0
// error: use of deleted function .*task
#include <amux/task.hpp>

amux::task<int> give();

void copy_it()
{
    const amux::task<int> t = give();
    const amux::task<int> u = t; // wrong
}

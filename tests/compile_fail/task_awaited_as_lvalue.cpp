// SPDX-License-Identifier: BSL-1.0
// error: use of deleted function .*operator co_await\(\) &
#include <amux/task.hpp>

#include <utility>

amux::task<int> give();

amux::task<> await_it()
{
    amux::task<int> t = give();
    co_await t; // wrong
    co_await std::move(t);
}

// SPDX-License-Identifier: BSL-1.0
// Threads: two loops, each with a thread of its own, share a mux. Their coroutines wait, the threads never do.
#include "check.hpp"

#include <amux/amux.hpp>

#include <cstdio>

namespace {

// [count]
amux::task<> count(amux::asyncmux<>& mux, long& total)
{
    for (int i = 0; i != 10'000; ++i) {
        auto guard = co_await mux.lock("total");
        ++total; // no atomic: the lock shows who comes next what was written here
    }
}

amux::task<> join(amux::task_group& group)
{
    co_await group.join();
}

long count_on_two_threads()
{
    amux::asyncmux<> mux; // every member may be called from any thread
    long total = 0;
    amux::loop_thread a;
    amux::loop_thread b;
    amux::task_group on_a{a.loop()};
    amux::task_group on_b{b.loop()};
    for (int i = 0; i != 5; ++i) {
        on_a.spawn(count(mux, total));
        on_b.spawn(count(mux, total));
    }
    amux::sync_wait(join(on_a));
    amux::sync_wait(join(on_b));
    return total;
}
// [/count]

} // namespace

int main()
{
    const long total = count_on_two_threads();
    std::printf("%ld\n", total);
    check(total == 100'000, "no count is lost");
}

// SPDX-License-Identifier: BSL-1.0
// The small runtime: tasks, side by side and one after another, loops, and a time that stands still.
#include "check.hpp"

#include <amux/amux.hpp>

#include <chrono>
#include <cstdio>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;

// [task]
amux::task<int> twice(int x)
{
    co_return 2 * x;
}

amux::task<int> four_times(int x)
{
    const int y = co_await twice(x); // begins here; an exception would come out here
    co_return co_await twice(y);
}
// [/task]

// [when_all]
amux::task<int> sum_of_both()
{
    const auto both = co_await amux::when_all(twice(1), four_times(1));
    co_return std::get<0>(both) + std::get<1>(both);
}

amux::task<std::vector<int>> many(int n)
{
    std::vector<amux::task<int>> tasks;
    for (int i = 0; i != n; ++i)
        tasks.push_back(twice(i));
    co_return co_await amux::when_all(std::move(tasks));
}
// [/when_all]

amux::task<> handle(int request, int& handled)
{
    handled += co_await twice(request);
}

// [group]
amux::task<int> serve(amux::event_loop& loop)
{
    int handled = 0;
    amux::task_group requests{loop};
    for (int request = 0; request != 3; ++request) {
        requests.spawn(handle(request, handled));
        co_await loop.schedule();
    }
    co_await requests.join(); // also rethrows what a request threw
    co_return handled;
}
// [/group]

amux::task<> blink(amux::manual_event_loop& loop, int& blinks)
{
    for (;;) {
        co_await loop.sleep_for(1s);
        ++blinks;
    }
}

} // namespace

int main()
{
    // [sync_wait]
    check(amux::sync_wait(four_times(3)) == 12, "tasks give their results to who awaits them");
    // [/sync_wait]
    check(amux::sync_wait(sum_of_both()) == 6, "when_all gives a tuple");
    check(amux::sync_wait(many(3)).at(2) == 4, "or a vector");

    amux::event_loop server;
    check(server.block_on(serve(server)) == 6, "a group joins its tasks");

    // [manual]
    int blinks = 0;
    amux::manual_event_loop loop;
    loop.spawn(blink(loop, blinks)); // destroyed with the loop
    for (int i = 0; i != 10; ++i) {
        loop.run_ready();
        loop.advance(1s); // no time passes, the clock just moves
    }
    check(blinks == 9, "nothing runs but in run_ready");
    // [/manual]
    std::puts("12, 6, 4, 6, 9");
}

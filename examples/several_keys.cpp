// SPDX-License-Identifier: BSL-1.0
// Several keys: five philosophers at a round table, each with the fork to the left and the one to the right. They ask
// for both at once, so nobody sits there with one fork, waiting for the other for ever.
#include "check.hpp"

#include <amux/amux.hpp>

#include <cstdio>
#include <utility>
#include <vector>

namespace {

constexpr int seats = 5;

struct table {
    amux::asyncmux<int> forks;
    int uses[seats] = {}; // by how many a fork is used right now
    int meals = 0;
};

amux::task<> use(table& t, amux::event_loop& loop, std::vector<int> forks)
{
    for (const int f : forks)
        check(++t.uses[f] == 1, "a fork is used by one philosopher at a time");
    co_await loop.schedule();
    for (const int f : forks)
        --t.uses[f];
}

// [two]
amux::task<> dine(table& t, amux::event_loop& loop, int seat)
{
    const int left = seat;
    const int right = (seat + 1) % seats;
    const std::vector<int> mine{left, right};
    for (int i = 0; i != 100; ++i) {
        auto both = co_await t.forks.lock_all(left, right); // all or nothing, in any order
        co_await use(t, loop, mine);
        ++t.meals;
    }
}
// [/two]

// [range]
amux::task<> wash_up(table& t, amux::event_loop& loop)
{
    const std::vector<int> all{0, 1, 2, 3, 4};
    auto guard = co_await t.forks.lock_all(all); // any range of keys
    co_await use(t, loop, all);
}
// [/range]

amux::task<> evening(table& t, amux::event_loop& loop)
{
    std::vector<amux::task<>> guests;
    for (int seat = 0; seat != seats; ++seat)
        guests.push_back(dine(t, loop, seat));
    guests.push_back(wash_up(t, loop));
    co_await amux::when_all(std::move(guests));
}

} // namespace

int main()
{
    table t;
    amux::event_loop loop;
    loop.block_on(evening(t, loop));
    std::printf("%d meals\n", t.meals);
    check(t.meals == seats * 100, "everybody eats");
}

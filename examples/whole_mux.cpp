// SPDX-License-Identifier: BSL-1.0
// The whole mux: a cache whose entries are refreshed one by one, counted together, and thrown away at once.
#include "check.hpp"

#include <amux/amux.hpp>

#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

namespace {

struct cache {
    amux::asyncmux<> mux;
    std::map<std::string, int, std::less<>> entries{{"a", 1}, {"b", 1}, {"c", 1}};
};

// [refresh]
amux::task<> refresh(cache& c, amux::event_loop& loop, std::string_view name)
{
    auto guard = co_await c.mux.lock(name); // other entries are refreshed at the same time
    co_await loop.schedule();
    ++c.entries.find(name)->second;
}
// [/refresh]

// [count]
amux::task<int> sum(cache& c)
{
    auto guard = co_await c.mux.lock_shared(); // the whole mux, shared: with readers, no writer
    int total = 0;
    for (const auto& [name, value] : c.entries)
        total += value;
    co_return total;
}
// [/count]

// [clear]
amux::task<> clear(cache& c)
{
    auto guard = co_await c.mux.lock(); // the whole mux: alone
    c.entries.clear();
}
// [/clear]

amux::task<> play(cache& c, amux::event_loop& loop)
{
    // They arrive in this order, so the sum sees two entries refreshed, and the third waits for it.
    const auto results = co_await amux::when_all(refresh(c, loop, "a"), refresh(c, loop, "b"),
                                                 sum(c), refresh(c, loop, "c"), clear(c), sum(c));
    std::printf("sums: %d, %d\n", std::get<2>(results), std::get<5>(results));
    check(std::get<2>(results) == 5, "a shared lock on the whole mux waits for the writers ahead");
    check(std::get<5>(results) == 0, "and for a lock on the whole mux");
}

} // namespace

int main()
{
    cache c; // before the loop
    amux::event_loop loop;
    loop.block_on(play(c, loop));
}

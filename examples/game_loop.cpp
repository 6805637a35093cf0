// SPDX-License-Identifier: BSL-1.0
// A game: units walk along a lane, one on a tile. A unit owns the lock of the tile that it stands on, for many frames.
// Each frame gives the coroutines a budget of time; what they do not manage is done in the next one.
#include "check.hpp"

#include <amux/amux.hpp>

#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

namespace {

using namespace std::chrono_literals;

// [unit]
using lane = amux::unsynchronized_asyncmux<int>; // for one thread: no atomics

struct unit {
    char name;
    int tile;
    lane::guard place; // released with the unit, or when it moves on
};

amux::task<> walk(lane& tiles, amux::event_loop& loop, unit& u, int goal)
{
    while (u.tile != goal) {
        auto next = co_await tiles.lock(u.tile + 1); // frames long, while somebody stands there
        u.place = std::move(next); // leaves the old tile
        ++u.tile;
        for (int step = 0; step != 3; ++step)
            co_await loop.schedule(); // until the next frame
    }
}
// [/unit]

void draw(int frame, const unit& a, const unit& b, const std::optional<unit>& rock)
{
    char picture[] = "..........";
    const auto put = [&](const unit& u) {
        check(picture[u.tile] == '.', "one unit on a tile");
        picture[u.tile] = u.name;
    };
    put(a);
    put(b);
    if (rock)
        put(*rock);
    if (frame % 10 == 0)
        std::printf("frame %2d  %s\n", frame, picture);
}

} // namespace

int main()
{
    lane tiles{{.name = "lane"}}; // outlives the units and the loop
    unit a{'a', 1, tiles.try_lock(1)};
    unit b{'b', 0, tiles.try_lock(0)};
    std::optional<unit> rock;
    rock.emplace(unit{'#', 5, tiles.try_lock(5)});
    amux::event_loop loop;

    // [frames]
    loop.spawn(walk(tiles, loop, a, 9));
    loop.spawn(walk(tiles, loop, b, 8));
    for (int frame = 0; frame != 60; ++frame) {
        if (frame == 30)
            rock.reset(); // its tile is free: who waits for it walks on in this frame
        loop.run_for(2ms);
        draw(frame, a, b, rock);
        if (frame == 29)
            check(a.tile == 4 && b.tile == 3, "they queue up before the rock");
    }
    // [/frames]

    check(a.tile == 9 && b.tile == 8, "both arrive");
}

// SPDX-License-Identifier: BSL-1.0
// Order: who waits for whom, when readers and writers of one key come one after the other.
#include "check.hpp"

#include <amux/amux.hpp>

#include <cstdio>
#include <string>

namespace {

struct library {
    amux::asyncmux<> mux;
    std::string log; // who gets in, frame by frame
};

// [visitors]
amux::task<> read(library& l, amux::event_loop& loop, const char* key, std::string name)
{
    auto guard = co_await l.mux.lock_shared(key);
    l.log += name + ' ';
    co_await loop.schedule(); // stays until the next frame
}

amux::task<> write(library& l, amux::event_loop& loop, const char* key, std::string name)
{
    auto guard = co_await l.mux.lock(key);
    l.log += name + ' ';
    co_await loop.schedule();
}
// [/visitors]

} // namespace

int main()
{
    library l; // before the loop
    amux::event_loop loop;

    // [arrivals]
    loop.spawn(read(l, loop, "page", "r1")); // in
    loop.spawn(read(l, loop, "page", "r2")); // in, beside the first
    loop.spawn(write(l, loop, "page", "w1")); // waits for both
    loop.spawn(read(l, loop, "page", "r3")); // waits behind w1, although readers are in
    loop.spawn(write(l, loop, "other", "w2")); // another key: in at once
    loop.spawn(read(l, loop, "page", "r4")); // waits behind w1 as well
    for (int frame = 0; frame != 3; ++frame) {
        loop.run_ready();
        l.log += "| ";
    }
    check(l.log == "r1 r2 w2 | w1 | r3 r4 | ", "in order of arrival, readers together");
    // [/arrivals]
    std::puts(l.log.c_str());
}

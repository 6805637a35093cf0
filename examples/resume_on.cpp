// SPDX-License-Identifier: BSL-1.0
// Where a coroutine goes on after it has waited: on its own loop, whoever releases the lock, or on one that it names.
#include "check.hpp"

#include <amux/amux.hpp>

#include <cstdio>
#include <thread>

namespace {

// [places]
amux::task<std::thread::id> wait_here(amux::asyncmux<>& mux)
{
    auto guard = co_await mux.lock("k"); // a task goes on where it runs, on its own loop
    co_return std::this_thread::get_id();
}

amux::task<std::thread::id> wait_there(amux::asyncmux<>& mux, amux::event_loop& there)
{
    auto guard = co_await mux.lock("k").resume_on(there);
    guard.unlock();
    co_return std::this_thread::get_id();
}
// [/places]

template <class Wait>
std::thread::id thread_after(amux::asyncmux<>& mux, Wait wait)
{
    auto guard = mux.try_lock("k");
    std::thread releaser{[&] {
        while (mux.snapshot().keys.at(0).waiters == 0)
            std::this_thread::yield();
        guard.unlock();
    }};
    const auto id = amux::sync_wait(wait());
    releaser.join();
    return id;
}

} // namespace

int main()
{
    amux::asyncmux<> mux;
    amux::loop_thread other;

    const auto here = thread_after(mux, [&] { return wait_here(mux); });
    check(here == std::this_thread::get_id(), "a task goes on where it ran before");
    const auto there = thread_after(mux, [&] { return wait_there(mux, other.loop()); });
    check(there != here, "resume_on moves it elsewhere");
    std::puts("here and there");
}

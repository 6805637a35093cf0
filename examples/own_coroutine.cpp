// SPDX-License-Identifier: BSL-1.0
// A coroutine type of one's own. It needs nothing from amux; two functions tell amux where it runs and who it is.
#include "check.hpp"

#include <amux/asyncmux.hpp>
#include <amux/context.hpp>
#include <amux/event_loop.hpp>

#include <coroutine>
#include <cstdio>
#include <exception>

namespace {

// [bare]
/// Begins at once and belongs to nobody. amux knows nothing about it, and it nothing about amux.
struct job {
    struct promise_type {
        job get_return_object() noexcept { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() noexcept {}
        void unhandled_exception() noexcept { std::terminate(); }
    };
};

job wait_bare(amux::asyncmux<>& mux, bool& done)
{
    auto guard = co_await mux.lock("k"); // goes on inside the call that releases the lock
    done = true;
}

job wait_placed(amux::asyncmux<>& mux, amux::event_loop& loop, bool& done)
{
    auto guard = co_await mux.lock("k").resume_on(loop); // goes on where that loop runs
    done = true;
}
// [/bare]

// [hooks]
struct session {
    struct promise_type {
        // Called with the arguments of the coroutine.
        promise_type(amux::scheduler& s, amux::asyncmux<>&, bool&) noexcept : where{s} {}

        session get_return_object() noexcept { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() noexcept {}
        void unhandled_exception() noexcept { std::terminate(); }

        amux::scheduler& where;
        amux::context who;

        // Found by argument-dependent lookup: as friends, or as functions beside the type.
        friend amux::scheduler* amux_scheduler(promise_type& p) noexcept { return &p.where; }
        friend const amux::context* amux_context(promise_type& p) noexcept { return &p.who; }
    };
};

session wait_hooked(amux::scheduler&, amux::asyncmux<>& mux, bool& done)
{
    auto guard = co_await mux.lock("k"); // goes on where its scheduler runs
    try {
        auto again = co_await mux.lock("k");
    } catch (const amux::reentrant_lock_error&) { // its context holds "k" already
        done = true;
    }
}
// [/hooks]

} // namespace

int main()
{
    amux::asyncmux<> mux{{.prevent_reentrancy = true}};
    amux::event_loop loop;

    bool bare = false;
    auto guard = mux.try_lock("k");
    wait_bare(mux, bare);
    check(!bare, "it waits");
    guard.unlock();
    check(bare, "without a scheduler it is resumed inside unlock");

    bool placed = false;
    guard = mux.try_lock("k");
    wait_placed(mux, loop, placed);
    guard.unlock();
    check(!placed, "with resume_on it is not");
    loop.run_ready();
    check(placed, "but where the loop runs");

    bool hooked = false;
    guard = mux.try_lock("k");
    wait_hooked(loop, mux, hooked);
    guard.unlock();
    check(!hooked, "the same with the hook for the scheduler");
    loop.run_ready();
    check(hooked, "and the hook for the context lets amux see who asks");
    std::puts("bare, placed, hooked");
}

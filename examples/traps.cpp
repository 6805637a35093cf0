// SPDX-License-Identifier: BSL-1.0
// What to write where a compiler stumbles over the shorter way; docs/pitfalls.md says which one, and what happens.
#include "check.hpp"

#include <amux/amux.hpp>

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace {

using mux_type = amux::asyncmux<>;

// [choose]
amux::task<> choose(mux_type& mux, bool everything)
{
    mux_type::guard guard;
    if (everything)
        guard = co_await mux.lock();
    else
        guard = co_await mux.lock("a");
    check(guard.owns_lock(), "the variable owns the lock");
}
// [/choose]

// [aggregate]
struct both {
    mux_type::guard a;
    mux_type::guard b;
};

amux::task<> collect(mux_type& mux)
{
    auto a = co_await mux.lock("a");
    auto b = co_await mux.lock("b");
    const both guards{std::move(a), std::move(b)};
    check(guards.a && guards.b, "both are owned");
}
// [/aggregate]

// [lambda]
amux::task<std::string> call(mux_type& mux, std::string text)
{
    const auto work = [text] { return text + "!"; }; // named first: its capture has a destructor
    co_return co_await mux.with_lock("a", work);
}
// [/lambda]

// [list]
amux::task<> list(mux_type& mux)
{
    const std::vector<std::string> keys{"a", "b"}; // named first
    auto guard = co_await mux.lock_all(keys);
}
// [/list]

// [condition]
amux::task<bool> is_free(mux_type& mux)
{
    auto guard = co_await mux.try_lock_for("a", std::chrono::seconds{0}); // a variable first
    if (!guard)
        co_return false;
    co_return true;
}
// [/condition]

// [key]
amux::task<> lock_later(mux_type& mux, int player)
{
    auto operation = mux.lock("player-" + std::to_string(player)); // a temporary moves in
    auto guard = co_await std::move(operation); // a key that is an lvalue must live until here
}
// [/key]

} // namespace

int main()
{
    mux_type mux;
    amux::sync_wait(choose(mux, true));
    amux::sync_wait(choose(mux, false));
    amux::sync_wait(collect(mux));
    check(amux::sync_wait(call(mux, "fine")) == "fine!", "the lambda is called once");
    amux::sync_wait(list(mux));
    check(amux::sync_wait(is_free(mux)), "a free key");
    amux::sync_wait(lock_later(mux, 1));
    check(mux.tracked_keys() == 0, "all is released");
    std::puts("no trap");
}

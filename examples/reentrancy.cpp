// SPDX-License-Identifier: BSL-1.0
// Reentrancy: who asks again for what it holds would wait for itself. A mux can detect that; the cure is to hand down
// the guard as the proof that the lock is held.
#include "check.hpp"

#include <amux/amux.hpp>

#include <cstdio>
#include <string>

namespace {

using mux_type = amux::asyncmux<>;

struct account {
    std::string name = "savings";
    int balance = 100;
};

// [wrong]
amux::task<> withdraw(mux_type& mux, account& a, int amount)
{
    auto guard = co_await mux.lock(a.name);
    a.balance -= amount;
}

amux::task<> close_account(mux_type& mux, account& a)
{
    auto guard = co_await mux.lock(a.name);
    co_await withdraw(mux, a, a.balance); // asks for a.name again: would wait for ever
}
// [/wrong]

// [right]
void withdraw(const mux_type::guard& held, account& a, int amount)
{
    check(held.key() && *held.key() == a.name, "the caller holds the account");
    a.balance -= amount;
}

amux::task<> close_account_well(mux_type& mux, account& a)
{
    auto guard = co_await mux.lock(a.name);
    withdraw(guard, a, a.balance);
}
// [/right]

// [caught]
amux::task<bool> is_told(mux_type& mux, account& a)
{
    try {
        co_await close_account(mux, a);
    } catch (const amux::reentrant_lock_error& e) {
        std::printf("%s\n", e.what()); // nothing has changed, and the outer lock is released
        co_return e.key() == a.name&& e.held_mode() == amux::lock_mode::exclusive;
    }
    co_return false;
}
// [/caught]

amux::task<> siblings(mux_type& mux, account& a)
{
    co_await amux::when_all(withdraw(mux, a, 10), withdraw(mux, a, 20)); // one waits for the other
}

} // namespace

int main()
{
    // [option]
    mux_type mux{{.prevent_reentrancy = true, .name = "accounts"}};
    // [/option]
    account a;
    check(amux::sync_wait(is_told(mux, a)), "the error says what is asked for, and how it is held");
    check(a.balance == 100, "nothing has changed");
    amux::sync_wait(siblings(mux, a));
    check(a.balance == 70, "coroutines side by side do not share locks: they wait");
    amux::sync_wait(close_account_well(mux, a));
    check(a.balance == 0, "with the guard as a proof it works");
}

// SPDX-License-Identifier: BSL-1.0
// One key: a thousand coroutines pay into one account, one at a time.
#include "check.hpp"

#include <amux/amux.hpp>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace {

struct account {
    std::string name;
    int balance = 0;
};

amux::task<> write_to_journal(amux::event_loop& loop)
{
    co_await loop.schedule(); // stands for I/O: the others run meanwhile
}

// [deposit]
amux::task<> deposit(amux::asyncmux<>& mux, amux::event_loop& loop, account& to, int amount)
{
    auto guard = co_await mux.lock(to.name); // suspends the coroutine, never the thread
    const int before = to.balance;
    co_await write_to_journal(loop); // others run, but none of them has this account
    to.balance = before + amount;
} // released here
// [/deposit]

// [with_lock]
amux::task<int> balance_of(amux::asyncmux<>& mux, const account& of)
{
    const auto read = [&of] { return of.balance; }; // may be a coroutine as well
    co_return co_await mux.with_lock_shared(of.name, read);
}
// [/with_lock]

} // namespace

int main()
{
    // [main]
    amux::asyncmux<> mux; // before the loop, which may destroy coroutines that hold its locks
    amux::event_loop loop;
    account savings{"savings"};

    std::vector<amux::task<>> deposits;
    for (int i = 0; i != 1000; ++i)
        deposits.push_back(deposit(mux, loop, savings, 5));
    loop.block_on(amux::when_all(std::move(deposits)));
    // [/main]

    const int balance = loop.block_on(balance_of(mux, savings));
    std::printf("%s: %d\n", savings.name.c_str(), balance);
    check(balance == 5000, "no deposit is lost");
    check(mux.tracked_keys() == 0, "an idle mux tracks no keys");
}

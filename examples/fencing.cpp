// SPDX-License-Identifier: BSL-1.0
// Fencing: a holder that is stopped between its last look at the lease and its write does harm, whatever the lock is
// made of. The resource itself refuses it: it remembers the highest fence that it has seen.
#include "check.hpp"

#include <amux/amux.hpp>

#include <chrono>
#include <cstdio>
#include <string>

namespace {

using namespace std::chrono_literals;

using lease_locks = amux::distributed_lock<amux::memory_backend&>;

// [resource]
/// What the lease protects. It knows nothing of leases; it compares two numbers.
class ledger {
public:
    bool write(amux::fencing_token fence, std::string text)
    {
        if (fence < highest_)
            return false; // somebody newer has been here
        highest_ = fence;
        text_ = std::move(text);
        return true;
    }
    const std::string& text() const { return text_; }

private:
    amux::fencing_token highest_ = 0;
    std::string text_;
};
// [/resource]

/// A machine that can be stopped: time passes for all, but only the others run.
struct machine {
    amux::manual_event_loop loop;
    amux::manual_event_loop* others = nullptr;

    void is_paused_for(amux::clock::duration d)
    {
        loop.advance(d);
        others->advance(d);
        others->run_ready();
    }
};

// [holder]
amux::task<> slow_holder(lease_locks& locks, ledger& book, machine& m, bool& refused)
{
    auto lease = co_await locks.acquire("ledger", {.ttl = 10s});
    if (!lease.is_held())
        co_return;
    m.is_paused_for(60s); // exactly here: the process is swapped out, its machine is suspended
    refused = !book.write(*lease.fence(), "written by the slow one");
    check(!lease.is_held(), "a second look would have told"); // if nothing came between, again
}
// [/holder]

amux::task<> quick_holder(lease_locks& locks, ledger& book, bool& written)
{
    auto lease = co_await locks.acquire("ledger", {.ttl = 10s, .max_wait = 120s});
    written = book.write(*lease.fence(), "written by the quick one");
}

} // namespace

int main()
{
    amux::manual_event_loop loop; // of the quick one, and of the store
    machine slow{{}, &loop};
    amux::memory_backend store{loop};
    amux::distributed_lock here{store, slow.loop};
    amux::distributed_lock there{store, loop};
    ledger book;
    bool refused = false;
    bool written = false;

    slow.loop.spawn(slow_holder(here, book, slow, refused));
    loop.spawn(quick_holder(there, book, written));
    slow.loop.run_ready();
    loop.run_ready();

    std::printf("the ledger: %s\n", book.text().c_str());
    check(written && refused, "the newer holder has written, the older one is refused");
    check(book.text() == "written by the quick one", "nothing is overwritten");
}

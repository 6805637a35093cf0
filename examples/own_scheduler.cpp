// SPDX-License-Identifier: BSL-1.0
// A loop of one's own under amux: the four functions of the port, here over one sorted list.
#include "check.hpp"

#include <amux/amux.hpp>

#include <chrono>
#include <cstdio>
#include <mutex>

namespace {

using namespace std::chrono_literals;

// [port]
class my_loop final : public amux::scheduler {
public:
    void post(node& n) noexcept override { insert((time_point::min)(), n); }
    void schedule_at(time_point due, node& n) noexcept override { insert(due, n); }

    bool cancel(node& n) noexcept override
    {
        const std::lock_guard lock{mutex_};
        if (n.queue != this)
            return false;
        remove(n);
        return true;
    }

    time_point now() const noexcept override { return amux::clock::now(); }

    /// What your loop does in each turn.
    void run_due()
    {
        while (node* n = take(now()))
            n->run(); // without the lock; n may be gone afterwards
    }

private:
    void insert(time_point due, node& n) noexcept
    {
        const std::lock_guard lock{mutex_};
        n.due = due;
        n.queue = this;
        node** place = &first_;
        n.prev = nullptr;
        while (*place && (*place)->due <= due) { // behind those of the same time
            n.prev = *place;
            place = &(*place)->next;
        }
        n.next = *place;
        if (n.next)
            n.next->prev = &n;
        *place = &n;
    }

    void remove(node& n) noexcept
    {
        (n.prev ? n.prev->next : first_) = n.next;
        if (n.next)
            n.next->prev = n.prev;
        n.queue = nullptr;
    }

    node* take(time_point now) noexcept
    {
        const std::lock_guard lock{mutex_};
        node* const n = first_;
        if (!n || n->due > now)
            return nullptr;
        remove(*n);
        return n;
    }

    std::mutex mutex_; // post and schedule_at may come from any thread
    node* first_ = nullptr;
};
// [/port]

// [use]
amux::task<> work(amux::asyncmux<>& mux, int& done)
{
    auto guard = co_await mux.try_lock_for("k", 10s); // its timer runs on my_loop
    if (guard)
        ++done;
}

int run_two(amux::asyncmux<>& mux, my_loop& loop)
{
    int done = 0;
    auto guard = mux.try_lock("k");
    amux::spawn(loop, work(mux, done));
    amux::spawn(loop, work(mux, done));
    loop.run_due(); // both wait now
    guard.unlock(); // posts the first of them
    loop.run_due();
    return done;
}
// [/use]

amux::task<> give_up(amux::asyncmux<>& mux, bool& gave_up)
{
    gave_up = !co_await mux.try_lock_for("k", 1ms);
    co_return;
}

} // namespace

int main()
{
    amux::asyncmux<> mux;
    my_loop loop;
    check(run_two(mux, loop) == 2, "both get the lock");

    bool gave_up = false;
    const auto guard = mux.try_lock("k");
    amux::spawn(loop, give_up(mux, gave_up));
    const auto end = loop.now() + 10s;
    while (!gave_up && loop.now() < end)
        loop.run_due();
    check(gave_up, "the time was up");
    std::puts("two done, one gave up");
}

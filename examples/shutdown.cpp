// SPDX-License-Identifier: BSL-1.0
// Shutdown: close() tells everybody who waits, and everybody who comes; who holds a lock finishes.
#include "check.hpp"

#include <amux/amux.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

namespace {

using namespace std::chrono_literals;

struct counts {
    std::atomic<int> served{0};
    std::atomic<int> sent_home{0};
};

// [worker]
amux::task<> worker(amux::asyncmux<>& mux, amux::event_loop& loop, counts& c)
{
    try {
        for (;;) {
            auto guard = co_await mux.lock("till");
            co_await loop.sleep_for(1ms);
            ++c.served;
        }
    } catch (const amux::lock_closed_error&) {
        ++c.sent_home;
    }
}
// [/worker]

// [join]
amux::task<> join(amux::task_group& workers)
{
    co_await workers.join();
}

void serve_for_a_while(counts& c)
{
    amux::asyncmux<> mux;
    amux::loop_thread thread;
    amux::task_group workers{thread.loop()};
    for (int i = 0; i != 10; ++i)
        workers.spawn(worker(mux, thread.loop(), c));
    while (c.served < 20)
        std::this_thread::sleep_for(1ms);

    mux.close(); // from any thread
    amux::sync_wait(join(workers)); // who holds the lock finishes, then all are home
}
// [/join]

} // namespace

int main()
{
    counts c;
    serve_for_a_while(c);
    std::printf("%d served, %d sent home\n", c.served.load(), c.sent_home.load());
    check(c.sent_home == 10, "all workers are told");
}

// SPDX-License-Identifier: BSL-1.0
// Cancellation: a request that waits is stopped, leaves the queue, and the next one moves up.
#include "check.hpp"

#include <amux/amux.hpp>

#include <cstdio>
#include <stop_token>
#include <string>

namespace {

// [serve]
amux::task<> serve(amux::asyncmux<>& mux, amux::event_loop& loop, std::string& answer,
                   std::stop_token stop)
{
    try {
        auto guard = co_await mux.lock("report", stop);
        co_await loop.schedule(); // a stop changes nothing from here on
        answer = "served";
    } catch (const amux::lock_cancelled_error& e) {
        answer = "gone"; // the lock is not held
        std::printf("%s\n", e.what());
    }
}
// [/serve]

} // namespace

int main()
{
    amux::asyncmux<> mux{{.name = "reports"}};
    std::string answers[3];
    amux::event_loop loop;

    // [stop]
    std::stop_source visitors[3];
    for (int i = 0; i != 3; ++i)
        loop.spawn(serve(mux, loop, answers[i], visitors[i].get_token()));
    loop.run_ready(); // the first has the lock, the others wait

    visitors[0].request_stop(); // too late
    visitors[1].request_stop(); // in time; from any thread
    while (loop.run_ready() != 0) {
    }
    // [/stop]

    check(answers[0] == "served", "a stop after the grant changes nothing");
    check(answers[1] == "gone", "a stop while waiting throws lock_cancelled_error");
    check(answers[2] == "served", "those behind a request that is stopped move up");
}

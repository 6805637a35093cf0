// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/fatal.hpp>
#include <amux/detail/no_signals.hpp>
#include <amux/event_loop.hpp>

#include <thread>

namespace amux {

/// An `event_loop` that runs on a thread of its own, from construction to destruction.
///
/// The thread takes no signals but those of its own mistakes, such as SIGSEGV: they go to the program's own threads. A
/// program that is started there inherits that.
/// Lifetime: the destructor stops the loop, waits for its thread, and then destroys, on the calling thread, the tasks
/// that were spawned on it and have not ended. It must not run on the loop's own thread.
class loop_thread {
public:
    /// Throws: `std::system_error` when there is no thread to be had.
    loop_thread()
    {
        const detail::no_signals none;
        thread_ = std::thread{[this] { loop_.run(); }};
    }
    loop_thread(const loop_thread&) = delete;
    loop_thread& operator=(const loop_thread&) = delete;
    ~loop_thread()
    {
        if (thread_.get_id() == std::this_thread::get_id())
            detail::fatal("a loop_thread is destroyed on its own thread");
        loop_.stop();
        thread_.join();
    }

    /// The loop that the thread runs.
    event_loop& loop() noexcept { return loop_; }

private:
    event_loop loop_;
    std::thread thread_;
};

} // namespace amux

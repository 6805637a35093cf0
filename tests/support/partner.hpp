// SPDX-License-Identifier: BSL-1.0
// Without this file no test lets two threads meet at one moment, over and over, each time a little earlier or later.
#pragma once

#include "support/foreign_coroutine.hpp"

#include <amux/error.hpp>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

namespace support {

/// A second thread that does one thing each time it is told to, at the same moment as this one does another.
class partner {
public:
    explicit partner(std::function<void()> work) : thread_{[this, work] { run(work); }} {}
    ~partner()
    {
        told_.store(-1);
        thread_.join();
    }

    /// Lets it do its thing, while this thread does `own`; later by a little more each round, now here, now there. `own`
    /// may let another partner loose.
    template <class F>
    void race(F own)
    {
        const int round = told_.load(std::memory_order_relaxed) + 1;
        spin_there_.store(round % 3 == 0 ? round % 300 : 0, std::memory_order_relaxed);
        told_.store(round, std::memory_order_release);
        spin(round % 3 == 1 ? round % 500 : 0);
        own();
        while (done_.load(std::memory_order_acquire) != round)
            std::this_thread::yield();
    }

private:
    void run(const std::function<void()>& work)
    {
        for (int seen = 0;;) {
            const int told = told_.load(std::memory_order_acquire);
            if (told < 0)
                return;
            if (told == seen) {
                std::this_thread::yield();
                continue;
            }
            seen = told;
            spin(spin_there_.load(std::memory_order_relaxed));
            work();
            done_.store(seen, std::memory_order_release);
        }
    }
    static void spin(int times)
    {
        for (std::atomic<int> i{0}; i.load(std::memory_order_relaxed) < times;)
            i.fetch_add(1, std::memory_order_relaxed);
    }

    std::atomic<int> told_{0};
    std::atomic<int> done_{0};
    std::atomic<int> spin_there_{0};
    std::thread thread_;
};

/// How one request has ended.
struct outcome {
    std::atomic<int> granted{0};
    std::atomic<int> refused{0};
    bool over() const { return granted.load() + refused.load() != 0; }
    bool once() const { return granted.load() + refused.load() == 1; }
    void wait() const
    {
        while (!over())
            std::this_thread::yield();
    }
};

/// Takes the lock, writes plain data under it, and gives it back.
template <class Operation>
fire_and_forget waits(Operation asked, outcome& end, long& data)
{
    try {
        auto g = co_await std::move(asked);
        ++data;
        ++end.granted;
    } catch (const amux::lock_error&) {
        ++end.refused;
    }
}

} // namespace support

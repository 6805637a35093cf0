// SPDX-License-Identifier: BSL-1.0
// Without this file neither a test nor a figure can say what becomes of processes that all want one key of a redlock.
#pragma once

#include <amux/distributed_lock.hpp>
#include <amux/error.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/redlock.hpp>
#include <amux/task.hpp>
#include <amux/testing/scripted_backend.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <random>
#include <vector>

namespace support {

using std::chrono::milliseconds;
using namespace std::chrono_literals;

/// Processes that want one key, each with a lock of its own, over nodes that are 0 to 3 ms away. In virtual time; what is
/// random in a lock is the caller's to seed.
template <class Node>
class redlock_crowd {
public:
    redlock_crowd(std::size_t nodes, std::size_t processes)
    {
        for (std::size_t n = 0; n != nodes; ++n) {
            stores_.emplace_back(loop_).decide = [this](const amux::testing::backend_call&) {
                const milliseconds there{distance()};
                return std::optional{amux::testing::course::slow(there, milliseconds{distance()})};
            };
        }
        for (std::size_t n = 0; n != processes; ++n)
            processes_.emplace_back(*this);
    }

    /// All ask at once. Who is served holds the key for 10 ms and asks again, up to so many turns; until `enough` were
    /// served in sum, or a minute is over without a grant.
    void take_turns(int enough, int turns)
    {
        for (auto& p : processes_)
            loop_.spawn(work(p, enough, turns));
        for (milliseconds gap{}; served_ < enough && gap != 1min;
             longest_ = (std::max)(longest_, gap)) {
            const int before = served_;
            pass(1ms);
            took_ += 1ms;
            gap = served_ == before ? gap + 1ms : 0ms;
        }
        for (const auto& s : stores_)
            acquires_ += s.count(amux::testing::operation::acquire);
        for (auto& p : processes_)
            loop_.spawn(leave(p));
        for (int ms = 0; ms != 5'000; ++ms)
            pass(1ms);
    }

    int served() const noexcept { return served_; }
    milliseconds took() const noexcept { return took_; }
    /// The longest time without a grant.
    milliseconds longest() const noexcept { return longest_; }
    /// That the nodes were asked for while it lasted, all of them together.
    std::size_t acquires() const noexcept { return acquires_; }

private:
    struct process {
        explicit process(redlock_crowd& all)
            : store{all.nodes(), all.loop_}, locks{store, all.loop_}
        {}
        amux::redlock<Node> store;
        amux::distributed_lock<amux::redlock<Node>&> locks;
    };

    amux::task<> work(process& p, int enough, int turns)
    {
        try {
            for (int n = 0; n != turns && served_ < enough; ++n) {
                auto held = co_await p.locks.acquire("k", {.max_wait = amux::forever});
                ++served_;
                co_await loop_.sleep_for(10ms);
                co_await held.release();
            }
        } catch (const amux::lock_closed_error&) { // others had enough
        }
    }
    static amux::task<> leave(process& p) { co_await p.locks.drain(1s); }

    std::vector<Node> nodes()
    {
        std::vector<Node> all;
        for (auto& s : stores_)
            all.emplace_back(s);
        return all;
    }
    int distance() { return static_cast<int>(random_() % 4); }
    void pass(milliseconds d)
    {
        loop_.advance(d);
        loop_.run_ready();
    }

    amux::manual_event_loop loop_;
    std::mt19937 random_{7};
    std::deque<amux::testing::scripted_backend> stores_;
    std::deque<process> processes_;
    int served_ = 0;
    milliseconds took_{};
    milliseconds longest_{};
    std::size_t acquires_ = 0;
};

} // namespace support

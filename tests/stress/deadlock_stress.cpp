// SPDX-License-Identifier: BSL-1.0
// Without this file one thread may look for a cycle through a request that another one is taking away.
#include "support/request.hpp"
#include "support/scale.hpp"

#include <amux/asyncmux.hpp>
#include <amux/context.hpp>
#include <amux/deadlock_detector.hpp>
#include <amux/manual_event_loop.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <random>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>

using amux::asyncmux;
using support::request;

namespace {

using int_mux = asyncmux<int>;

/// A key whose text takes as long as the test wants.
struct slow_key {
    int number;
    bool operator==(const slow_key&) const = default;
    operator std::string_view() const
    {
        if (on_text)
            std::exchange(on_text, nullptr)();
        return "k";
    }
    static inline std::function<void()> on_text;
};
struct slow_hash {
    std::size_t operator()(const slow_key& k) const noexcept
    {
        return static_cast<std::size_t>(k.number);
    }
};

} // namespace

TEST_CASE("deadlock_detector: one looks while another is stopped", "[deadlock][threads]")
{
    using slow_mux = asyncmux<slow_key, amux::multi_threaded, slow_hash>;
    amux::deadlock_detector detector;
    slow_mux m{{.deadlocks = &detector}};
    slow_mux other{{.deadlocks = &detector}}; // whose locks are free while the search goes on
    const amux::context who[3];
    support::requests<slow_mux> held;
    for (int i = 0; i != 3; ++i)
        held.emplace_back((i == 1 ? other : m).lock(slow_key{i}), support::asker{nullptr, &who[i]});
    std::stop_source stop;
    request first{other.lock(slow_key{1}, stop.get_token()), support::asker{nullptr, &who[0]}};
    request second{m.lock(slow_key{2}), support::asker{nullptr, &who[1]}};

    std::thread stopper;
    slow_key::on_text = [&] { // the cycle is found, and being put into words
        std::atomic<bool> stops{false};
        stopper = std::thread{[&] {
            stops = true;
            stop.request_stop();
        }};
        for (int more = 1'000; more > 0; more -= stops.load() ? 1 : 0)
            std::this_thread::yield(); // until it waits for the detector, most probably
    };
    request closing{m.lock(slow_key{0}), support::asker{nullptr, &who[2]}};
    stopper.join();
    CHECK(closing.state() == "threw");
    CHECK(first.state() == "stopped");
    second.destroy();
}

TEST_CASE("deadlock_detector: who may not wait is in no cycle", "[deadlock][threads]")
{
    amux::deadlock_detector detector;
    int_mux full{{.max_waiters = 0, .deadlocks = &detector}};
    int_mux other{{.deadlocks = &detector}};
    std::atomic<int> arrived{0};
    int refused = 0;
    const int rounds = support::scaled(2'000);
    const auto meet = [&arrived](int n) {
        for (++arrived; arrived.load() < n;)
            std::this_thread::yield();
    };
    const auto run = [&](int_mux& mine, int_mux& theirs, bool counts) {
        for (int n = 0; n != rounds; ++n) {
            {
                const amux::context who;
                request held{mine.lock(1), support::asker{nullptr, &who}};
                meet(6 * n + 2);
                request asked{theirs.lock(1), support::asker{nullptr, &who}};
                held.unlock();
                meet(6 * n + 4);
                if (counts && asked.state() == "threw")
                    ++refused;
            }
            meet(6 * n + 6); // nothing is held
        }
    };
    std::thread one{[&] { run(other, full, false); }};
    run(full, other, true);
    one.join();
    CHECK(refused == 0); // whoever asks for the full one is told so at once, and goes on
}

TEST_CASE("deadlock_detector: threads ask, hold, downgrade and leave as they like",
          "[deadlock][threads]")
{
    amux::deadlock_detector detector;
    int_mux a{{.deadlocks = &detector}};
    int_mux b{{.deadlocks = &detector}};
    const int rounds = support::scaled(20'000);
    const auto run = [&](unsigned seed) {
        std::minstd_rand random{seed};
        const auto below = [&random](unsigned n) { return static_cast<int>(random() / 7 % n); };
        amux::manual_event_loop loop;
        const amux::context who[3];
        std::optional<request<int_mux::guard>> asked[3];
        for (int n = 0; n != rounds; ++n) {
            const int i = below(3);
            auto& mine = asked[i];
            const support::asker as{&loop, &who[i]};
            int_mux& m = below(2) == 0 ? a : b;
            if (mine && mine->state() == "owns" && below(3) == 0)
                mine->guard().downgrade();
            else if (mine)
                mine.reset();
            else if (below(4) == 0)
                mine.emplace(m.lock(), as);
            else
                mine.emplace(m.lock(below(2)), as);
            loop.run_ready();
        }
    };
    std::thread other{run, 1U};
    run(2);
    other.join();
    CHECK(a.tracked_keys() + b.tracked_keys() == 0);
    CHECK(a.snapshot().requests.empty());
}

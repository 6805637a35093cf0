// SPDX-License-Identifier: BSL-1.0
// Without this file a detector of deadlocks may be too late, or cry wolf, in an order of steps that is rare.
#include "schedules/explorer.hpp"
#include "schedules/policy.hpp"

#include <amux/asyncmux.hpp>
#include <amux/deadlock_detector.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <string>

namespace {

using namespace schedules;

/// Threads that each lock one mux and then the next, in a circle: every one gets through, or is refused and has given
/// back what it held.
class circle final : public program {
public:
    circle(int threads, bool whole) : threads_{threads}, whole_{whole} {}

    int threads() const override { return threads_; }
    std::string text() const override
    {
        return "a circle of " + std::to_string(threads_) +
               (whole_ ? ", whose second locks are on everything" : "");
    }

    void begin() override
    {
        detector_.emplace();
        for (std::size_t i = 0; i != size(); ++i)
            muxes_[i].emplace(amux::asyncmux_options{.deadlocks = &*detector_});
        refused_ = passed_ = 0;
    }

    void run(int t) override
    {
        const auto i = static_cast<std::size_t>(t);
        amux::sync_wait(both(*muxes_[i], *muxes_[(i + 1) % size()]));
    }

    void end() override
    {
        require(passed_ + refused_ == threads_, "a thread has neither both locks nor an error");
        require(refused_ <= 1, "more are refused than one who closes the circle");
        for (std::size_t i = 0; i != size(); ++i) {
            require(muxes_[i]->tracked_keys() == 0, "a lock is left");
            require(muxes_[i]->snapshot().requests.empty(), "a record is left");
            muxes_[i].reset();
        }
        detector_.reset();
    }

private:
    using mux = amux::asyncmux<int, explored<2>>;

    std::size_t size() const { return static_cast<std::size_t>(threads_); }

    amux::task<> both(mux& first, mux& second)
    {
        auto held = co_await first.lock_shared(0);
        try {
            if (whole_)
                auto other = co_await second.lock();
            else
                auto other = co_await second.lock(0);
            ++passed_;
        } catch (const amux::deadlock_error&) {
            ++refused_;
        }
    }

    int threads_;
    bool whole_;
    std::optional<amux::deadlock_detector> detector_;
    std::array<std::optional<mux>, 3> muxes_;
    int refused_ = 0;
    int passed_ = 0;
};

} // namespace

TEST_CASE("all schedules: threads lock in a circle", "[schedules][deadlock]")
{
    explorer e{2};
    for (const int threads : {2, 3}) {
        for (const bool whole : {false, true}) {
            circle p{threads, whole};
            e.run(p);
        }
    }
    CHECK((e.counted().programs > 0 || !e.complete()));
}

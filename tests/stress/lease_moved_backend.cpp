// SPDX-License-Identifier: BSL-1.0
// Without this file a backend that was moved into a lock may end on a thread of its own, which it cannot join.
#include "support/scale.hpp"

#include <amux/distributed_lock.hpp>
#include <amux/event_loop.hpp>
#include <amux/sync_wait.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <coroutine>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

using namespace std::chrono_literals;

namespace {

struct course_of_end {
    std::atomic<bool> begun{false}; // the lock is about to be destroyed
    std::chrono::nanoseconds answer_after{}; // from then on: the release is answered
    std::atomic<int> ended{0};
    std::atomic<int> ended_on_its_own_thread{0};
};

/// A store that answers on a thread of its own, grants everything, and counts where it ends.
class ending_backend {
    struct asked {
        std::coroutine_handle<> who;
        bool waits;
    };

    struct state {
        std::mutex mutex;
        std::condition_variable changed;
        std::deque<asked> questions;
        bool ends = false;
    };

public:
    class answer {
    public:
        answer(std::shared_ptr<state> s, bool waits) : state_{std::move(s)}, waits_{waits} {}
        bool await_ready() const noexcept { return false; }
        [[gnu::noinline]] void await_suspend(std::coroutine_handle<> h)
        {
            const std::lock_guard lock{state_->mutex};
            state_->questions.push_back({h, waits_});
            state_->changed.notify_one();
        }
        bool await_resume() const noexcept { return true; }

    private:
        std::shared_ptr<state> state_;
        bool waits_;
    };

    struct nobody : answer {
        using answer::answer;
        std::optional<std::string> await_resume() const { return std::nullopt; }
    };

    explicit ending_backend(course_of_end& end)
        : end_{&end}, thread_{[s = state_, &end] { run(*s, end); }}
    {}
    ending_backend(ending_backend&&) = default;
    ~ending_backend()
    {
        if (!state_)
            return;
        {
            const std::lock_guard lock{state_->mutex};
            state_->ends = true;
            state_->changed.notify_one();
        }
        if (thread_.get_id() == std::this_thread::get_id()) {
            ++end_->ended_on_its_own_thread;
            thread_.detach();
        } else {
            thread_.join();
        }
        ++end_->ended;
    }

    answer acquire(std::string_view, std::string_view, std::chrono::milliseconds)
    {
        return {state_, false};
    }
    answer extend(std::string_view, std::string_view, std::chrono::milliseconds)
    {
        return {state_, false};
    }
    answer release(std::string_view, std::string_view) { return {state_, true}; }
    nobody get(std::string_view) { return {state_, false}; }

private:
    static void run(state& s, course_of_end& end)
    {
        for (;;) {
            std::unique_lock lock{s.mutex};
            s.changed.wait(lock, [&s] { return s.ends || !s.questions.empty(); });
            if (s.questions.empty())
                return;
            const asked next = s.questions.front();
            s.questions.pop_front();
            lock.unlock();
            if (next.waits) {
                while (!end.begun)
                    std::this_thread::yield();
                const auto until = std::chrono::steady_clock::now() + end.answer_after;
                while (std::chrono::steady_clock::now() < until)
                    continue;
            }
            next.who.resume();
        }
    }

    course_of_end* end_;
    std::shared_ptr<state> state_ = std::make_shared<state>();
    std::thread thread_;
};

// A lock that is destroyed while the release of its only lease is on its way to the store.
void lock_and_go(course_of_end& end)
{
    amux::event_loop loop;
    std::optional<amux::distributed_lock<ending_backend>> locks;
    locks.emplace(ending_backend{end}, loop);
    static_cast<void>(loop.block_on(locks->acquire("k"))); // and released at once
    end.begun = true;
    locks.reset();
    while (end.ended == 0)
        std::this_thread::yield();
}

} // namespace

TEST_CASE("distributed_lock: a backend that was moved in never ends on a thread of its own",
          "[lease][stress]")
{
    const int rounds = support::scaled(2'000);
    int on_its_own = 0;
    for (int i = 0; i < rounds; ++i) {
        course_of_end end;
        end.answer_after = i % 4 == 0 ? 50us : std::chrono::nanoseconds{i % 400 * 10};
        lock_and_go(end);
        on_its_own += end.ended_on_its_own_thread;
    }
    CHECK(on_its_own == 0);
}

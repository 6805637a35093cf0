// SPDX-License-Identifier: BSL-1.0
// Without this file a release that a waiter of `memory_backend` does not hear of is found only by luck.
#include "schedules/explorer.hpp"
#include "schedules/frame.hpp"
#include "schedules/strand.hpp"

#include <amux/memory_backend.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace schedules;
using namespace std::chrono_literals;

/// "a" holds the key in the beginning, and waiter 0 waits for its release.
enum class step : std::uint8_t {
    wait, // waiter 1 does
    release,
    stop, // waiter 0
    stop_other,
    take, // "b" acquires it, if it can, and releases it at once
    extend,
    expire, // time passes
    run, // the loop
    destroy, // waiter 0, wherever it stands
};
constexpr const char* names[] = {"waiter 1 waits", "release",      "stop waiter 0",
                                 "stop waiter 1",  "take",         "extend",
                                 "time passes",    "run the loop", "destroy waiter 0"};

struct backend_text {
    bool on_loop = false;
    std::vector<std::vector<step>> threads;
};

constexpr auto ttl = 10ms;

class backend_program final : public program {
public:
    explicit backend_program(const backend_text& t) : text_{t} {}

    int threads() const override { return static_cast<int>(text_.threads.size()); }

    std::string text() const override
    {
        std::string s = text_.on_loop ? "on a loop" : "on threads";
        for (std::size_t t = 0; t < text_.threads.size(); ++t) {
            s += "; thread " + std::to_string(t) + ":";
            for (const step what : text_.threads[t])
                s += std::string{" "} + names[static_cast<std::size_t>(what)] + ",";
        }
        return s;
    }

    void begin() override
    {
        loop_.clear();
        store_.emplace(loop_);
        (void)store_->acquire("k", "a", ttl);
        released_last_ = false;
        for (waiter& w : all_) {
            w.stop.emplace();
            w.at = state::none;
        }
        wait(all_[0]);
        require(all_[0].at == state::waits, "a held key is not waited for");
    }

    void run(int t) override
    {
        for (const step s : text_.threads[static_cast<std::size_t>(t)]) {
            point("before a step");
            act(s);
        }
    }

    void end() override
    {
        loop_.run_ready();
        const bool is_free = !store_->get("k").value;
        for (waiter& w : all_) {
            require(w.at != state::waits || !is_free || !released_last_,
                    "somebody waits for a release that has happened");
            require(w.at != state::waits || !w.stop->stop_requested(),
                    "somebody waits though it was stopped");
            w.stop->request_stop();
            loop_.run_ready();
            require(w.at != state::waits, "a stop at the end is not heard");
            w.stop.reset();
            w.frame.require_untouched("a coroutine that was gone has been written to");
        }
        store_.reset();
    }

private:
    enum class state : std::uint8_t { none, waits, ended, destroyed };
    struct waiter {
        watched_memory frame;
        std::coroutine_handle<> handle;
        std::optional<std::stop_source> stop;
        state at = state::none;
    };

    void act(step s)
    {
        switch (s) {
            case step::wait:
                return wait(all_[1]);
            case step::release:
                return release("a");
            case step::stop:
            case step::stop_other: {
                const std::stop_source source = *all_[s == step::stop ? 0 : 1].stop;
                (void)std::stop_source{source}.request_stop();
                return;
            }
            case step::take:
                if (store_->acquire("k", "b", ttl).value.acquired) {
                    released_last_ = false;
                    release("b");
                }
                return;
            case step::extend:
                (void)store_->extend("k", "a", ttl);
                return;
            case step::expire:
                return advance_to(now() + std::chrono::nanoseconds{2 * ttl}.count());
            case step::run:
                return loop_.run_ready();
            case step::destroy:
                if (all_[0].at == state::waits) {
                    all_[0].at = state::destroyed;
                    std::exchange(all_[0].handle, nullptr).destroy();
                }
                return;
        }
    }

    void release(const char* token)
    {
        if (store_->release("k", token).value)
            released_last_ = true;
    }

    void wait(waiter& w)
    {
        const coroutine c = wait_for(w, *this);
        w.handle = c.started_on(text_.on_loop ? &loop_ : nullptr);
        w.at = state::waits;
        c.frame.resume();
    }

    static coroutine wait_for(waiter& self, backend_program& p)
    {
        co_await p.store_->wait_for_release("k", self.stop->get_token());
        point("a coroutine goes on");
        require(self.at == state::waits, "a waiter goes on twice, or after its end");
        self.at = state::ended;
        self.handle = nullptr;
    }

    const backend_text& text_;
    strand loop_;
    std::optional<amux::memory_backend> store_;
    std::array<waiter, 2> all_;
    bool released_last_ = false;
};

/// All programs of so many threads with so many steps each, every step at most once.
void run_all(explorer& e, bool on_loop, std::size_t threads, std::size_t length)
{
    std::vector<step> steps = {step::wait, step::release, step::stop,  step::stop_other,
                               step::take, step::extend,  step::expire};
    if (on_loop) {
        steps.push_back(step::run);
        steps.push_back(step::destroy);
    }
    backend_text t;
    t.on_loop = on_loop;
    std::vector<step> chosen;
    const auto extend = [&](const auto& self) -> void {
        if (chosen.size() == threads * length) {
            t.threads.clear();
            for (std::size_t i = 0; i < threads; ++i)
                t.threads.emplace_back(
                    chosen.begin() + static_cast<std::ptrdiff_t>(i * length),
                    chosen.begin() + static_cast<std::ptrdiff_t>((i + 1) * length));
            backend_program p{t};
            e.run(p);
            return;
        }
        for (const step s : steps) {
            if (std::count(chosen.begin(), chosen.end(), s) != 0)
                continue;
            // The loop belongs to thread 0.
            if ((s == step::run || s == step::destroy) && chosen.size() >= length)
                continue;
            chosen.push_back(s);
            self(self);
            chosen.pop_back();
        }
    };
    extend(extend);
}

} // namespace

TEST_CASE("all schedules: two threads use a memory_backend", "[schedules][backend]")
{
    explorer e{3};
    for (const bool on_loop : {false, true})
        run_all(e, on_loop, 2, 2);
    CHECK((e.counted().programs > 0 || !e.complete()));
}

TEST_CASE("all schedules: three threads use a memory_backend", "[schedules][backend]")
{
    explorer e{3};
    for (const bool on_loop : {false, true})
        run_all(e, on_loop, 3, 1);
    CHECK((e.counted().programs > 0 || !e.complete()));
}

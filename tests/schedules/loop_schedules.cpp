// SPDX-License-Identifier: BSL-1.0
// Without this file a wake-up of a loop, or its stop, that is lost between two instructions is found only by luck.
#include "schedules/explorer.hpp"
#include "schedules/memory.hpp"

#include <amux/event_loop.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace schedules;
using namespace std::chrono_literals;

enum class call : std::uint8_t { post, arm, stop };
enum class action : std::uint8_t { nothing, stop, cancel, post, arm };

constexpr int most_nodes = 4;
constexpr int child = 3; // is posted, or armed, by another node
constexpr auto delay = 10ms;

/// Each call of a thread is for a node of its own; `does` says what a node does when it runs: it cancels the next one,
/// and posts or arms the last.
struct loop_text {
    std::vector<std::vector<call>> threads;
    std::array<action, most_nodes> does{};
};

/// Thread 0 runs a loop until all is done, and destroys it. The others fill it.
class loop_program final : public program {
public:
    explicit loop_program(const loop_text& t) : text_{t} {}

    int threads() const override { return 1 + static_cast<int>(text_.threads.size()); }

    std::string text() const override
    {
        constexpr const char* calls[] = {"post", "arm", "stop"};
        constexpr const char* actions[] = {"does nothing", "stops", "cancels the next",
                                           "posts the last", "arms the last"};
        std::string s;
        int id = 0;
        for (std::size_t t = 0; t < text_.threads.size(); ++t) {
            s += "thread " + std::to_string(t + 1) + ":";
            for (const call c : text_.threads[t]) {
                s += std::string{" "} + calls[static_cast<std::size_t>(c)];
                if (c != call::stop)
                    s += " #" + std::to_string(id);
                ++id;
            }
            s += "; ";
        }
        for (int n = 0; n < id; ++n)
            s += "#" + std::to_string(n) + " " +
                 actions[static_cast<std::size_t>(text_.does[static_cast<std::size_t>(n)])] + "; ";
        return s;
    }

    void begin() override
    {
        loop_ = ::new (memory_.take(sizeof(amux::event_loop))) amux::event_loop;
        for (std::size_t i = 0; i < nodes_.size(); ++i) {
            nodes_[i].emplace(*this, i);
        }
        left_ = 0;
        for (const auto& calls : text_.threads)
            left_ += static_cast<int>(calls.size());
        inside_ = threads() - 1;
        several_stops_ = false;
        finished_ = false;
    }

    void run(int t) override
    {
        if (t == 0) {
            do {
                loop_->run();
            } while (!finished_);
            // With one stop, who makes it may still be leaving it; of several, one may still be coming.
            while (several_stops_ && inside_ != 0)
                yield();
            loop_->~event_loop();
            watched_memory::give_back(memory_.address());
            return;
        }
        std::size_t id = 0;
        for (int before = 0; before < t - 1; ++before)
            id += text_.threads[static_cast<std::size_t>(before)].size();
        for (const call c : text_.threads[static_cast<std::size_t>(t - 1)]) {
            point("before a call");
            if (c == call::stop && left_ == 1) {
                one_less();
            } else if (c == call::stop) {
                several_stops_ = true;
                loop_->stop();
                one_less();
            } else {
                queue(*nodes_[id], c == call::arm); // it counts until its node has run
            }
            ++id;
        }
        --inside_;
    }

    void end() override
    {
        for (const auto& n : nodes_)
            require(n->at != state::queued, "a node has not run");
        memory_.require_untouched("a loop that was gone has been written to");
    }

private:
    enum class state : std::uint8_t { idle, queued, ran, cancelled };

    struct node : amux::scheduler::node {
        node(loop_program& p, std::size_t i) noexcept
            : amux::scheduler::node{&node::happen}, owner{p}, index{i}
        {}
        static void happen(amux::scheduler::node& n) noexcept
        {
            auto& self = static_cast<node&>(n);
            self.owner.ran(self);
        }
        loop_program& owner;
        std::size_t index;
        state at = state::idle;
        bool is_in = false; // the call that queues it has returned
        amux::clock::time_point earliest{};
    };

    void queue(node& n, bool arm)
    {
        n.at = state::queued;
        n.earliest = amux::clock::now() + (arm ? delay : 0ms);
        if (arm)
            loop_->schedule_at(n.earliest, n);
        else
            loop_->post(n);
        n.is_in = true;
    }

    void ran(node& n)
    {
        require(thread() == 0, "a node runs elsewhere than on its loop");
        require(n.at == state::queued, "a node runs twice, or though it was cancelled");
        require(amux::clock::now() >= n.earliest, "a timer is early");
        n.at = state::ran;
        point("a node runs");
        switch (text_.does[n.index]) {
            case action::nothing:
                break;
            case action::stop:
                several_stops_ = true;
                loop_->stop();
                break;
            case action::cancel: {
                node& other = *nodes_[(n.index + 1) % 3];
                const bool was_queued = other.at == state::queued && other.is_in;
                if (loop_->cancel(other)) {
                    require(other.at == state::queued, "a node is cancelled that is not queued");
                    other.at = state::cancelled;
                    one_less();
                } else {
                    require(!was_queued, "a queued node is not cancelled");
                }
                break;
            }
            case action::post:
            case action::arm:
                ++left_;
                queue(*nodes_[child], text_.does[n.index] == action::arm);
                break;
        }
        one_less();
    }

    void one_less()
    {
        if (--left_ != 0)
            return;
        finished_ = true;
        loop_->stop();
    }

    const loop_text& text_;
    watched_memory memory_;
    amux::event_loop* loop_ = nullptr;
    std::array<std::optional<node>, most_nodes> nodes_;
    int left_ = 0; // nodes that have to run, and calls that have to be made
    int inside_ = 0; // the other threads
    bool several_stops_ = false;
    bool finished_ = false;
};

/// All that so many threads may do with one loop, and the nodes of it.
void run_all(explorer& e, const std::vector<std::size_t>& lengths)
{
    std::size_t total = 0;
    for (const std::size_t l : lengths)
        total += l;
    loop_text t;
    for (const std::size_t l : lengths)
        t.threads.emplace_back(l);
    const auto call_at = [&](std::size_t id) -> call& {
        std::size_t thread = 0;
        for (; id >= lengths[thread]; ++thread)
            id -= lengths[thread];
        return t.threads[thread][id];
    };
    const auto extend = [&](const auto& self, std::size_t id, bool with_child) -> void {
        if (id == total) {
            loop_program p{t};
            e.run(p);
            return;
        }
        for (const call c : {call::post, call::arm, call::stop}) {
            call_at(id) = c;
            for (const action a :
                 {action::nothing, action::stop, action::cancel, action::post, action::arm}) {
                if (c == call::stop && a != action::nothing)
                    continue;
                const bool makes_child = a == action::post || a == action::arm;
                if (makes_child && with_child)
                    continue;
                t.does[id] = a;
                self(self, id + 1, with_child || makes_child);
            }
        }
    };
    extend(extend, 0, false);
}

} // namespace

TEST_CASE("all schedules: an event_loop is filled and stopped by another thread",
          "[schedules][loop]")
{
    explorer e{3};
    run_all(e, {1});
    run_all(e, {2});
    CHECK((e.counted().programs > 0 || !e.complete()));
}

TEST_CASE("all schedules: an event_loop is filled and stopped by two other threads",
          "[schedules][loop]")
{
    explorer e;
    run_all(e, {1, 1});
    run_all(e, {2, 1});
    CHECK((e.counted().programs > 0 || !e.complete()));
}

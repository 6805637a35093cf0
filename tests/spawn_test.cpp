// SPDX-License-Identifier: BSL-1.0
// Without this file spawned tasks may leak, run on after their loop, recurse when it dies, or fail in silence.
#include <amux/spawn.hpp>

#include <amux/event_loop.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/task.hpp>

#include "support/allocation_counter.hpp"
#include "support/death.hpp"
#include "support/foreign_coroutine.hpp"
#include "support/node_recorder.hpp"
#include "support/probe.hpp"
#include "support/scale.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <coroutine>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using amux::event_loop;
using amux::manual_event_loop;
using amux::spawn;
using amux::task;
using namespace std::chrono_literals;

namespace {

/// Somebody's own loop: it tracks no roots, and cannot cancel what it does not hold.
class plain_port : public amux::scheduler {
public:
    void post(node& n) noexcept override
    {
        n.prev = nullptr;
        n.next = nullptr;
        (last_ ? last_->next : first_) = &n;
        last_ = &n;
    }
    void schedule_at(time_point, node& n) noexcept override { post(n); }
    bool cancel(node&) noexcept override { return false; }
    time_point now() const noexcept override { return {}; }

    void run()
    {
        while (node* const n = first_) {
            first_ = n->next;
            if (!first_)
                last_ = nullptr;
            n->run();
        }
    }

private:
    node* first_ = nullptr;
    node* last_ = nullptr;
};

task<> append(std::string& log, char letter)
{
    log += letter;
    co_return;
}

/// Waits on a loop; when its frame dies it posts a node there, as releasing a lock does for the next waiter, and the
/// frame of the next waiter takes that node out.
struct waiter {
    struct awaiter : amux::scheduler::node {
        explicit awaiter(waiter& w) noexcept : node{&resume}, self{w} {}
        ~awaiter()
        {
            if (handle && self.loop.cancel(*this))
                ++self.cancelled;
        }
        bool await_ready() const noexcept { return false; }
        void await_suspend(std::coroutine_handle<> h) noexcept
        {
            handle = h;
            self.queue.push_back(this);
        }
        void await_resume() const noexcept {}
        static void resume(node& n) noexcept
        {
            auto& a = static_cast<awaiter&>(n);
            std::exchange(a.handle, nullptr).resume();
        }
        waiter& self;
        std::coroutine_handle<> handle;
    };
    struct holder {
        waiter& self;
        ~holder()
        {
            if (self.next != self.queue.size())
                self.loop.post(*self.queue[self.next++]);
        }
    };

    manual_event_loop& loop;
    std::vector<awaiter*> queue;
    std::size_t next = 0;
    int cancelled = 0;
    int resumed = 0;

    task<> run()
    {
        const holder h{*this};
        awaiter a{*this};
        co_await a;
        ++resumed;
    }
};

} // namespace

TEST_CASE("spawn: the task begins on the scheduler, not in the call", "[spawn]")
{
    manual_event_loop loop;
    std::string log;
    spawn(loop, append(log, 'a'));
    loop.spawn(append(log, 'b'));
    CHECK(log.empty());
    CHECK(loop.run_ready() == 2);
    CHECK(log == "ab");
}

TEST_CASE("spawn: the task knows its scheduler, and is a context of its own without a parent",
          "[spawn]")
{
    manual_event_loop loop;
    support::place outer;
    support::place inner;
    const auto child = [&]() -> task<> { inner = co_await support::my_place{}; };
    const auto parent = [&]() -> task<> {
        outer = co_await support::my_place{};
        loop.spawn(child());
    };
    loop.spawn(parent());
    loop.run_ready();
    CHECK(outer.where == &loop);
    CHECK(inner.where == &loop);
    CHECK(outer.context != 0);
    CHECK(inner.context != 0);
    CHECK(outer.context != inner.context);
    CHECK(inner.parent == 0);
}

TEST_CASE("spawn: any task will do, its result is dropped", "[spawn]")
{
    manual_event_loop loop;
    const auto give = []() -> task<std::unique_ptr<int>> { co_return std::make_unique<int>(1); };
    spawn(loop, give());
    CHECK(loop.run_ready() == 1);
}

TEST_CASE("spawn: a task that has ended leaves nothing", "[spawn]")
{
    manual_event_loop loop;
    std::string log;
    loop.spawn(append(log, 'a'));
    loop.run_ready();
    const auto before = support::live_allocations();
    for (int i = 0; i < 1000; ++i) {
        loop.spawn(append(log, 'b'));
        loop.run_ready();
        log.clear();
    }
    CHECK(support::live_allocations() == before);
}

TEST_CASE("spawn: on a port that tracks nothing the task owns itself", "[spawn]")
{
    plain_port port;
    std::string log;
    const auto before = support::live_allocations();
    spawn(port, append(log, 'a'));
    port.run();
    CHECK(log == "a");
    CHECK(support::live_allocations() == before);
}

TEST_CASE("spawn: an exception that leaves the task ends the program", "[spawn][death]")
{
    const std::string said = support::death_of([] {
        event_loop loop;
        const auto fail = []() -> task<> {
            throw std::runtime_error{"nobody catches this"};
            co_return;
        };
        loop.spawn(fail());
        loop.run_ready();
    });
    CHECK(said.find("nobody catches this") != std::string::npos);
}

TEST_CASE("spawn: a loop that dies destroys what has not begun and what waits", "[spawn]")
{
    bool waiting_gone = false;
    bool begun_gone = false;
    bool ran_on = false;
    {
        event_loop loop;
        const auto wait = [&](support::flag_on_destruction) -> task<> {
            co_await loop.sleep_for(1h);
            ran_on = true;
        };
        loop.spawn(wait(support::flag_on_destruction{waiting_gone}));
        loop.run_ready();
        loop.spawn(wait(support::flag_on_destruction{begun_gone}));
        CHECK_FALSE(waiting_gone);
    }
    CHECK(waiting_gone);
    CHECK(begun_gone);
    CHECK_FALSE(ran_on);
}

TEST_CASE("spawn: a loop that dies takes what has not begun out of its queue", "[spawn]")
{
    auto loop = std::make_unique<event_loop>();
    const auto hop = [&]() -> support::hooked_coroutine { co_await loop->schedule(); };
    const auto keep = [](support::hooked_coroutine) -> task<> { co_return; };
    const auto nothing = []() -> task<> { co_return; };
    loop->spawn(nothing());
    auto behind = hop();
    behind.start(nullptr);
    loop->spawn(keep(std::move(behind))); // dies second, and then takes its node out of the queue
    CHECK_NOTHROW(loop.reset());
}

TEST_CASE("spawn: a loop that dies destroys a task that is spawned by a dying frame", "[spawn]")
{
    std::string log;
    bool gone = false;
    {
        manual_event_loop loop;
        const auto last = [&](support::flag_on_destruction) -> task<> {
            log += 'x';
            co_return;
        };
        struct spawning {
            manual_event_loop& loop;
            task<> work;
            ~spawning() { loop.spawn(std::move(work)); }
        };
        const auto wait = [&]() -> task<> {
            const spawning s{loop, last(support::flag_on_destruction{gone})};
            co_await loop.sleep_for(1h);
        };
        loop.spawn(wait());
        loop.run_ready();
    }
    CHECK(gone);
    CHECK(log.empty());
}

TEST_CASE("spawn: frames that die let others go on; those are destroyed too, and none is resumed",
          "[spawn]")
{
    const int tasks =
        support::scaled(100'000); // enough to overflow the stack if one destroyed the next
    auto loop = std::make_unique<manual_event_loop>();
    waiter w{*loop, {}};
    for (int i = 0; i < tasks; ++i)
        loop->spawn(w.run());
    loop->run_ready();
    REQUIRE(w.queue.size() == static_cast<std::size_t>(tasks));
    w.next = 1; // the first one to die is the first one that waits
    loop.reset();
    CHECK(w.resumed == 0);
    CHECK(w.cancelled == tasks - 1);
}

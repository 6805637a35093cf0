// SPDX-License-Identifier: BSL-1.0
// Without this file amux's port to Asio may lose a node, run two at once, or keep a program from its end.
#include "asio/support/library.hpp"
#include "support/allocation_counter.hpp"
#include "support/node_recorder.hpp"
#include "support/scale.hpp"

#include <amux/amux.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
using support::run;

TEST_CASE("asio_scheduler: what is posted runs in order of posting, and not inside the post",
          "[asio_scheduler]")
{
    asio::io_context io;
    amux::asio_scheduler loop{io.get_executor()};
    std::string log;
    support::recorded a{'a', log};
    support::recorded b{'b', log};
    support::recorded c{'c', log};
    support::calling first{[&] {
        loop.post(c);
        log += '1';
    }};
    loop.post(first);
    loop.post(a);
    loop.post(b);
    CHECK(log.empty());
    run(io);
    CHECK(log == "1abc");
}

TEST_CASE("asio_scheduler: timers run by due time, equal ones in order of arming, none too early",
          "[asio_scheduler]")
{
    asio::io_context io;
    amux::asio_scheduler loop{io.get_executor()};
    std::string log;
    support::recorded late{'d', log};
    support::recorded a{'a', log};
    support::recorded b{'b', log};
    support::recorded c{'c', log};
    const auto start = loop.now();
    loop.schedule_at(start + 40ms, late);
    loop.schedule_at(start + 10ms, b); // earlier than what is armed
    loop.schedule_at(start + 10ms, c);
    loop.schedule_at(start - 1s, a);
    io.run_one();
    CHECK(log == "a");
    run(io);
    CHECK(log == "abcd");
    CHECK(loop.now() >= start + 40ms);
}

TEST_CASE("asio_scheduler: a timer that is due before the one that is armed comes in time",
          "[asio_scheduler]")
{
    asio::io_context io;
    amux::asio_scheduler loop{io.get_executor()};
    std::string log;
    support::recorded late{'l', log};
    support::recorded soon{'s', log};
    const auto start = loop.now();
    loop.schedule_at(start + 10min, late);
    io.run_one(); // it is armed
    loop.schedule_at(start + 5ms, soon);
    while (log.empty() && loop.now() < start + 1min)
        io.run_one_for(1min);
    CHECK(log == "s");
    CHECK(loop.now() < start + 1min);
    CHECK(loop.cancel(late));
}

TEST_CASE("asio_scheduler: what is cancelled does not run, and keeps nobody in run",
          "[asio_scheduler]")
{
    asio::io_context io;
    amux::asio_scheduler loop{io.get_executor()};
    std::string log;
    support::recorded posted{'p', log};
    support::recorded timer{'t', log};
    support::recorded never{'n', log};
    support::calling canceller{[&] {
        CHECK(loop.cancel(posted));
        CHECK(loop.cancel(timer));
        CHECK_FALSE(loop.cancel(timer));
        CHECK_FALSE(loop.cancel(never));
    }};
    const auto start = loop.now();
    loop.schedule_at(start + 10min, timer);
    io.run_one(); // it is armed
    loop.post(canceller);
    loop.post(posted);
    run(io);
    CHECK(log.empty());
    CHECK(loop.now() < start + 5min);

    SECTION("also when it is cancelled while nothing runs")
    {
        loop.schedule_at(loop.now() + 10min, timer);
        io.restart();
        io.run_one();
        loop.cancel(timer);
        run(io);
        CHECK(loop.now() < start + 5min);
    }
}

TEST_CASE("asio_scheduler: the executor's other handlers get their turn beside nodes without end",
          "[asio_scheduler]")
{
    asio::io_context io;
    amux::asio_scheduler loop{io.get_executor()};
    bool stop = false;
    int turns = 0;
    struct again : amux::scheduler::node {
        again(amux::scheduler& s, bool& b, int& n) : node{&run}, loop{s}, stop{b}, turns{n} {}
        static void run(node& n) noexcept
        {
            auto& self = static_cast<again&>(n);
            ++self.turns;
            if (!self.stop)
                self.loop.post(self);
        }
        amux::scheduler& loop;
        bool& stop;
        int& turns;
    } node{loop, stop, turns};
    loop.post(node);
    asio::post(io, [&] { stop = true; });
    run(io);
    CHECK(turns <= 65);
}

TEST_CASE("asio_scheduler: over a pool its nodes run one at a time, and none is lost",
          "[asio_scheduler]")
{
    asio::thread_pool pool{3};
    amux::asio_scheduler loop{pool.get_executor()};
    const int count = support::scaled(20'000);
    std::atomic<int> inside{0};
    std::atomic<bool> together{false};
    int ran = 0; // by nodes only: a race for the thread sanitizer if two run at once
    struct counting : amux::scheduler::node {
        counting(std::atomic<int>& i, std::atomic<bool>& t, int& r)
            : node{&run}, inside{i}, together{t}, ran{r}
        {}
        static void run(node& n) noexcept
        {
            auto& self = static_cast<counting&>(n);
            if (self.inside.fetch_add(1) != 0)
                self.together = true;
            if (++self.ran % 64 == 0)
                std::this_thread::yield();
            self.inside.fetch_sub(1);
        }
        std::atomic<int>& inside;
        std::atomic<bool>& together;
        int& ran;
    };
    std::deque<counting> nodes;
    for (int i = 0; i != 2 * count; ++i)
        nodes.emplace_back(inside, together, ran);
    {
        std::jthread timers{[&] {
            for (int i = 0; i != count; ++i)
                loop.schedule_at(loop.now() + std::chrono::microseconds{i % 100},
                                 nodes[static_cast<std::size_t>(i)]);
        }};
        for (int i = count; i != 2 * count; ++i)
            loop.post(nodes[static_cast<std::size_t>(i)]);
    }
    pool.join();
    CHECK_FALSE(together);
    CHECK(ran == 2 * count);
}

TEST_CASE("asio_scheduler: posting and timers allocate nothing", "[asio_scheduler]")
{
    asio::io_context io;
    amux::asio_scheduler loop{io.get_executor()};
    std::string log;
    log.reserve(100);
    support::recorded posted{'p', log};
    support::recorded timer{'t', log};
    const auto round = [&] {
        loop.post(posted);
        loop.schedule_at(loop.now() + 100us, timer);
        run(io);
    };
    round();
    const auto before = support::allocations();
    for (int i = 0; i != 10; ++i)
        round();
    CHECK(support::allocations() == before);
    CHECK(log.size() == 22);
}

TEST_CASE("asio_scheduler: what does not fit in its memory, or comes twice, is taken from the heap",
          "[asio_scheduler]")
{
    const auto memory = std::make_shared<amux::detail::asio_memory>();
    amux::detail::asio_allocator<char> a{memory};
    amux::detail::asio_allocator<int> same{a};
    CHECK(same == a);
    CHECK_FALSE(same == amux::detail::asio_allocator<int>{nullptr});
    char* const own = a.allocate(100);
    char* const second = a.allocate(100);
    char* const large = a.allocate(100'000);
    CHECK(own != second);
    a.deallocate(own, 100);
    CHECK(a.allocate(1) == own);
    a.deallocate(own, 1);
    a.deallocate(second, 100);
    a.deallocate(large, 100'000);
}

TEST_CASE("asio_scheduler: destroyed, it runs nothing any more, and its tasks are gone",
          "[asio_scheduler]")
{
    asio::io_context io;
    auto loop =
        std::make_unique<amux::asio_scheduler<asio::io_context::executor_type>>(io.get_executor());
    amux::asyncmux<> mux;
    std::string log;
    support::recorded behind{'b', log};
    const auto work = [](amux::asyncmux<>& m, std::string& l) -> amux::task<> {
        const auto guard = co_await m.try_lock_for("k", 10min);
        l += 'w';
    };
    amux::spawn(*loop, work(mux, log));

    SECTION("in its own turn")
    {
        support::calling killer{[&] { loop.reset(); }};
        loop->post(killer);
        loop->post(behind);
        run(io);
        CHECK(log == "w"); // the task came first
    }
    SECTION("while a turn is posted and a timer is armed")
    {
        const auto held = mux.try_lock("k");
        io.run_one();
        loop->post(behind);
        loop.reset();
        run(io);
        CHECK(log.empty());
    }
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asio_scheduler: it may go before the context, with its turn still posted there",
          "[asio_scheduler]")
{
    std::optional<asio::io_context> io{std::in_place};
    std::string log;
    support::recorded node{'n', log};
    {
        amux::asio_scheduler<> loop{asio::make_strand(*io)};
        loop.schedule_at(loop.now() + 10min, node);
        io->poll();
        loop.cancel(node);
        loop.post(node);
    }
    io.reset();
    CHECK(log.empty());
}

TEST_CASE("asio_scheduler: leases need no other thread", "[asio_scheduler]")
{
    asio::io_context io;
    amux::asio_scheduler loop{io.get_executor()};
    amux::memory_backend store{loop};
    amux::distributed_lock locks{store, loop};
    std::string log;
    int released = 0;
    const auto hold = [&](char name) -> amux::task<> {
        auto lease = co_await locks.acquire("k", {.ttl = 10s, .renew = true});
        log += name;
        released += co_await lease.release() ? 1 : 0;
    };
    amux::spawn(loop, hold('a'));
    amux::spawn(loop, hold('b'));
    run(io);
    CHECK(log == "ab");
    CHECK(released == 2);
    CHECK(store.size() == 0);
}

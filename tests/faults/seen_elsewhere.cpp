// SPDX-License-Identifier: BSL-1.0
// Without this file faults that locks of other languages and libraries have had may come to this one unseen.
#include "support/foreign_coroutine.hpp"
#include "support/request.hpp"
#include "support/scale.hpp"

#include <amux/asyncmux.hpp>
#include <amux/event_loop.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/task.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::asyncmux;
using support::fire_and_forget;
using support::form;
using support::journal;
using support::request;
using guard = asyncmux<>::guard;

// Seen in Go's x/sync semaphore, embassy's FairSemaphore and .NET's ReaderWriterLockSlim: the first in the queue, who asks
// for much, goes away; those behind, who ask for less, sleep on until somebody releases something.
TEST_CASE("asyncmux: whoever leaves the head of the queue lets in at once those who fit then",
          "[asyncmux][field]")
{
    const auto asked = GENERATE(form::key, form::whole, form::several);
    const int way = GENERATE(0, 1, 2);
    amux::manual_event_loop loop;
    asyncmux<> mux;
    std::stop_source stop;
    const std::vector<std::string> keys{"k", "l"};
    const support::asker here{.where = &loop};
    std::optional<request<guard>> head;
    request reader{mux.lock_shared("k")};
    if (asked == form::key)
        head.emplace(mux.try_lock_for("k", 1s, stop.get_token()), here);
    else if (asked == form::whole)
        head.emplace(mux.try_lock_for(1s, stop.get_token()), here);
    else
        head.emplace(mux.try_lock_all_for(keys, 1s, stop.get_token()), here);
    request same_key{mux.lock_shared("k")};
    request with_another{mux.lock_all_shared("k", "m")};
    request everything{mux.lock_shared()};
    CHECK(same_key.state() == "waits");
    CHECK(with_another.state() == "waits");
    CHECK(everything.state() == "waits");
    if (way == 0) {
        stop.request_stop();
    } else if (way == 1) {
        loop.advance(1s);
        loop.run_ready();
    } else {
        head->destroy();
    }
    CHECK(same_key.state() == "owns");
    CHECK(with_another.state() == "owns");
    CHECK(everything.state() == "owns");
    loop.run_ready();
}

// std::shared_mutex allows a maximum of readers that nobody names; a counter of 16 bits has been one.
TEST_CASE("asyncmux: seventy thousand readers hold at the same time", "[asyncmux][field]")
{
    constexpr std::size_t many = 70'000;
    const int kind = GENERATE(0, 1, 2);
    asyncmux<int> mux;
    std::vector<asyncmux<int>::guard> readers;
    for (std::size_t i = 0; i != many; ++i) {
        readers.push_back(kind == 0   ? mux.try_lock_shared(1)
                          : kind == 1 ? mux.try_lock_shared()
                                      : mux.try_lock_all_shared(1, 2));
    }
    request writer{mux.lock(1)};
    const auto seen = mux.snapshot();
    CHECK((kind == 1 ? seen.whole.holders : seen.keys.at(0).holders) == many);
    while (readers.size() > 1)
        readers.pop_back();
    CHECK(writer.state() == "waits");
    readers.clear();
    CHECK(writer.state() == "owns");
    writer.unlock();
    CHECK(mux.tracked_keys() == 0);
}

namespace {

fire_and_forget destroys_when_stopped(asyncmux<>& mux, std::stop_token stop,
                                      std::optional<request<guard>>& victim)
{
    try {
        guard g = co_await mux.lock("k", std::move(stop));
    } catch (const amux::lock_cancelled_error&) {
        victim.reset();
    }
}

} // namespace

// One token for a whole group of tasks is the usual case. A list of callbacks that is walked while its members go away has
// crashed more than one library.
TEST_CASE("asyncmux: one that is stopped may destroy another that is about to be",
          "[asyncmux][field]")
{
    const bool victim_first = GENERATE(false, true);
    asyncmux<> mux;
    std::stop_source stop;
    guard holder = mux.try_lock("k");
    std::optional<request<guard>> victim;
    const auto ask = [&] { victim.emplace(mux.lock_all("k", "l", stop.get_token())); };
    if (victim_first)
        ask();
    destroys_when_stopped(mux, stop.get_token(), victim);
    if (!victim_first)
        ask();
    request third{mux.lock("k", stop.get_token())};
    request fourth{mux.lock("k")};
    stop.request_stop();
    CHECK_FALSE(victim);
    CHECK(third.state() == "stopped");
    CHECK(fourth.state() == "waits");
    holder.unlock();
    CHECK(fourth.state() == "owns");
    CHECK(mux.tracked_keys() == 1);
}

// Seen with tokens that live as long as the program: each request leaves a callback in them, or a reference.
TEST_CASE("asyncmux: a token that outlives its requests knows none of them any more",
          "[asyncmux][field]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    std::stop_source stop;
    const auto token = stop.get_token();
    for (int i = 0; i != 100; ++i) {
        request at_once{mux.lock("k", token)};
        request granted{mux.lock("k", token)};
        request timed{mux.try_lock_for("k", 1s, token), {.where = &loop}};
        auto destroyed = std::make_unique<request<guard>>(mux.lock("k", token));
        loop.advance(1s);
        loop.run_ready();
        destroyed.reset();
        at_once.unlock();
        CHECK(timed.state() == "empty");
        CHECK(granted.state() == "owns");
    }
    request holder{mux.lock("k", token)};
    stop.request_stop(); // with a sanitizer: into nobody's memory
    CHECK(holder.state() == "owns");
    CHECK(loop.run_ready() == 0);
}

TEST_CASE("asyncmux: who could have stopped a request may be gone before it is granted",
          "[asyncmux][field]")
{
    asyncmux<> mux;
    guard holder = mux.try_lock("k");
    auto stop = std::make_unique<std::stop_source>();
    request waiter{mux.lock("k", stop->get_token())};
    stop.reset();
    CHECK(waiter.state() == "waits");
    holder.unlock();
    CHECK(waiter.state() == "owns");
}

namespace {

fire_and_forget throws_and_waits(asyncmux<>& mux, int& steps)
{
    guard g = co_await mux.lock("k");
    try {
        throw std::runtime_error{"inner"};
    } catch (const std::runtime_error&) {
        ++steps;
    }
    g = co_await mux.lock("other");
    ++steps;
}

} // namespace

// Whoever resumes others in a destructor resumes them in the middle of somebody's exception.
TEST_CASE("asyncmux: a coroutine that runs while an exception passes has exceptions of its own",
          "[asyncmux][field]")
{
    asyncmux<> mux;
    int steps = 0;
    std::string caught;
    guard other = mux.try_lock("other");
    try {
        const guard holder = mux.try_lock("k");
        throws_and_waits(mux, steps);
        throw std::logic_error{"outer"};
    } catch (const std::exception& e) {
        caught = e.what();
    }
    CHECK(caught == "outer");
    CHECK(steps == 1);
    other.unlock();
    CHECK(steps == 2);
    CHECK(mux.tracked_keys() == 0);
}

namespace {

/// How many keys a search meets on average when these are spread over as many buckets, or a bit more; and the greatest
/// part of them in one of 16 shards.
struct spread {
    double met = 0;
    double fullest = 0;
};
template <class KeyOf>
spread spread_of(KeyOf key)
{
    constexpr std::uint64_t many = 20'000;
    std::vector<double> buckets(32'768);
    std::vector<double> shards(16);
    for (std::uint64_t i = 0; i != many; ++i) {
        const std::uint64_t h = amux::detail::mixed(static_cast<std::size_t>(key(i)));
        ++buckets[h % buckets.size()];
        ++shards[h >> 60];
    }
    double met = 0;
    for (const double n : buckets)
        met += n * (n + 1) / 2;
    return {met / many, *std::max_element(shards.begin(), shards.end()) / many};
}

} // namespace

// The standard hash of a number is the number. A table that takes its low bits, or a lock per stripe, makes one queue of
// all keys that are multiples of 2^n: pointers, packed coordinates, numbers from a sharded counter.
TEST_CASE("asyncmux: keys that differ in a few bits only are spread like any others",
          "[asyncmux][field]")
{
    static_assert(sizeof(std::size_t) == 8);
    for (int bits = 0; bits <= 48; ++bits) {
        CAPTURE(bits);
        const spread strided = spread_of([=](std::uint64_t i) { return i << bits; });
        CHECK(strided.met < 2.2); // by chance: 1.3
        CHECK(strided.fullest < 0.2); // by chance: 0.0625
    }
    for (int bits = 8; bits <= 40; ++bits) {
        CAPTURE(bits);
        const auto grid = [=](std::uint64_t i) { return i % 141 | i / 141 << bits; };
        CHECK(spread_of(grid).met < 2.2);
        CHECK(spread_of(grid).fullest < 0.2);
    }
}

namespace {

amux::task<> locks(asyncmux<>& mux, const char* key, journal& log)
{
    guard g = co_await mux.lock(key);
    log.emplace_back(key);
}

} // namespace

// Seen where a future that holds a place in the queue is not polled any more: all wait for one that does not run.
TEST_CASE("asyncmux: a granted task whose loop stands still is named, and holds up its key alone",
          "[asyncmux][field]")
{
    asyncmux<> mux;
    journal log;
    amux::event_loop stopped;
    amux::event_loop other;
    guard holder = mux.try_lock("k");
    stopped.spawn(locks(mux, "k", log));
    stopped.run_ready();
    other.spawn(locks(mux, "k", log));
    other.run_ready();
    holder.unlock();
    stopped.stop();
    stopped.run(); // returns at once
    other.spawn(locks(mux, "free", log));
    other.run_ready();
    CHECK(log == journal{"free"});
    const auto seen = mux.snapshot().keys.at(0);
    CHECK(seen.granted_not_resumed == 1);
    CHECK(seen.waiters == 1);
    stopped.run_ready(); // it goes on
    other.run_ready();
    CHECK(log == journal{"free", "k", "k"});
}

namespace {

/// Hands the lock to the other one of its kind, and asks for it again.
fire_and_forget plays(asyncmux<>& mux, amux::scheduler* where, const int& limit, int& turns)
{
    while (turns < limit) {
        guard g = co_await mux.lock("ball").resume_on(where);
        ++turns;
    }
}

} // namespace

// Seen in cppcoro and others, and so documented here: who releases runs those who waited, for as long as they go on.
TEST_CASE("asyncmux: two who hand a lock to each other keep the thread that let them, or a loop",
          "[asyncmux][field]")
{
    asyncmux<> mux;
    amux::event_loop loop;
    int turns = 0;
    guard holder = mux.try_lock("ball");
    SECTION("without a place the releasing call returns when they have ended")
    {
        const int limit = 100'000;
        plays(mux, nullptr, limit, turns);
        plays(mux, nullptr, limit, turns);
        holder.unlock();
        CHECK(turns >= limit);
    }
    SECTION("with resume_on it returns at once, and a budget is kept")
    {
        int limit = (std::numeric_limits<int>::max)();
        plays(mux, &loop, limit, turns);
        plays(mux, &loop, limit, turns);
        holder.unlock();
        CHECK(turns == 0);
        loop.run_for(1ms);
        CHECK(turns > 0);
        limit = 0;
        loop.run_ready();
    }
    CHECK(mux.tracked_keys() == 0);
}

namespace {

amux::task<> holds_and_waits(asyncmux<int>& mux, int number)
{
    auto own = co_await mux.lock(number);
    auto next = co_await mux.lock(number - 1);
}

} // namespace

// Each frame that dies lets the next one go on, which dies as well.
TEST_CASE("asyncmux: a long chain of holders that wait for each other dies without a deep stack",
          "[asyncmux][field]")
{
    const int length = support::scaled(200'000);
    asyncmux<int> mux;
    auto holder = mux.try_lock(0);
    {
        amux::event_loop loop;
        for (int i = 1; i <= length; ++i)
            loop.spawn(holds_and_waits(mux, i));
        loop.run_ready();
        CHECK(mux.tracked_keys() == static_cast<std::size_t>(length) + 1);
    }
    CHECK(mux.tracked_keys() == 1);
}

// Seen in limits that count the one who holds, or let in one too many.
TEST_CASE("asyncmux: where nobody may wait, what is free is granted all the same",
          "[asyncmux][field]")
{
    asyncmux<> mux{{.max_waiters = 0}};
    request free{mux.lock("k")};
    request held{mux.lock("k")};
    request whole{mux.lock()};
    request several{mux.lock_all("k", "l")};
    CHECK(free.state() == "owns");
    CHECK(held.state() == "full");
    CHECK(whole.state() == "full");
    CHECK(several.state() == "full");
    free.unlock();
    request again{mux.lock()};
    CHECK(again.state() == "owns");
    CHECK(mux.tracked_keys() == 0);
}

// Seen in vs-threading's AsyncReaderWriterLock: granted at once, then stopped, then asked for its result: an error, and a
// lock that nobody can release.
TEST_CASE("asyncmux: a stop after a grant at once, before the coroutine goes on, changes nothing",
          "[asyncmux][field]")
{
    asyncmux<> mux;
    std::stop_source stop;
    {
        auto awaiter = mux.lock("k", stop.get_token()).operator co_await();
        REQUIRE(awaiter.await_ready());
        stop.request_stop();
        const guard g = awaiter.await_resume();
        CHECK(g.owns_lock());
    }
    CHECK(mux.tracked_keys() == 0);
}

// Seen in JavaScript's async-lock: who wants two keys queues for the second when it has the first, and others pass it.
TEST_CASE("asyncmux: who waits for two keys has its place at both from the beginning",
          "[asyncmux][field]")
{
    asyncmux<> mux;
    request first{mux.lock_all("a", "b")};
    request second{mux.lock_all("b", "c")};
    request third{mux.lock_all("c", "d")};
    request fourth{mux.lock("d")};
    CHECK(second.state() == "waits");
    CHECK(third.state() == "waits");
    CHECK(fourth.state() == "waits");
    first.unlock();
    CHECK(second.state() == "owns");
    CHECK(third.state() == "waits");
    second.unlock();
    CHECK(third.state() == "owns");
    CHECK(fourth.state() == "waits");
    third.unlock();
    CHECK(fourth.state() == "owns");
}

namespace {

std::chrono::nanoseconds time_of_snapshot(asyncmux<int>& mux, std::size_t keys)
{
    auto shortest = (std::chrono::nanoseconds::max)();
    for (int i = 0; i != 3; ++i) {
        const auto start = std::chrono::steady_clock::now();
        REQUIRE(mux.snapshot().keys.size() == keys);
        const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - start;
        shortest = std::min(shortest, time);
    }
    return shortest;
}

} // namespace

// Seen in diagnostics that walk a list for each member of another, with every lock held: looking at the queue stops it.
TEST_CASE("asyncmux: a snapshot of one who waits for many keys costs what these keys cost",
          "[asyncmux][field][cost]")
{
    constexpr std::size_t many = 30'000;
    std::vector<int> keys(many);
    std::iota(keys.begin(), keys.end(), 0);
    asyncmux<int> mux;
    std::vector<asyncmux<int>::guard> held;
    for (std::size_t i = 0; i != many; ++i)
        held.push_back(mux.try_lock(keys[i]));
    const auto without = time_of_snapshot(mux, many);
    held.erase(held.begin(), held.begin() + many / 2); // reserved by one who waits for the others
    request waiter{mux.lock_all(keys)};
    CHECK(waiter.state() == "waits");
    CHECK(time_of_snapshot(mux, many) < 20 * without); // looking each time: two hundred times
    const auto seen = mux.snapshot();
    for (const auto& key : seen.keys) {
        if (key.waiters != 1)
            FAIL("a key that is waited for, or reserved, has one waiter");
    }
}

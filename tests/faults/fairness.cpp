// SPDX-License-Identifier: BSL-1.0
// Without this file somebody may barge in, be overtaken or starve, or a long queue may cost more than its length.
#include "support/request.hpp"
#include "support/scale.hpp"

#include <amux/asyncmux.hpp>
#include <amux/manual_event_loop.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <numeric>
#include <random>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

using amux::asyncmux;
using support::form;
using support::journal;
using support::request;
using guard = asyncmux<>::guard;

TEST_CASE("asyncmux: five waiters are served in order of arrival", "[asyncmux][fairness]")
{
    asyncmux<> mux;
    journal log;
    request holder{mux.lock("k")};
    support::requests<asyncmux<>> queue;
    for (const char* name : {"1", "2", "3", "4", "5"})
        queue.emplace_back(mux.lock("k"), support::asker{nullptr, nullptr, &log, name});
    holder.unlock();
    for (auto& r : queue)
        r.unlock();
    CHECK(log == journal{"1", "2", "3", "4", "5"});
}

TEST_CASE("asyncmux: readers in a row get in together, and the next writer alone",
          "[asyncmux][fairness]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    journal log;
    const auto named = [&](const char* name) { return support::asker{&loop, nullptr, &log, name}; };
    request holder{mux.lock("k")};
    request s1{mux.lock_shared("k"), named("s1")};
    request s2{mux.lock_shared("k"), named("s2")};
    request s3{mux.lock_shared("k"), named("s3")};
    request x{mux.lock("k"), named("x")};
    request s4{mux.lock_shared("k"), named("s4")};
    holder.unlock();
    loop.run_ready();
    CHECK(log == journal{"s1", "s2", "s3"});
    s2.unlock();
    s1.unlock();
    s3.unlock();
    loop.run_ready();
    CHECK(log.back() == "x");
    CHECK(s4.state() == "waits");
    x.unlock();
    loop.run_ready();
    CHECK(s4.state() == "owns");
}

TEST_CASE("asyncmux: a reader that arrives after a waiting writer waits behind it",
          "[asyncmux][fairness]")
{
    asyncmux<> mux;
    request reader{mux.lock_shared("k")};
    request beside{mux.lock_shared("k")};
    CHECK(beside.state() == "owns");
    request writer{mux.lock("k")};
    request late{mux.lock_shared("k")};
    CHECK(writer.state() == "waits");
    CHECK(late.state() == "waits");
    reader.unlock();
    beside.unlock();
    CHECK(writer.state() == "owns");
    CHECK(late.state() == "waits");
}

TEST_CASE("asyncmux: overlapping readers do not starve a writer of the whole mux",
          "[asyncmux][fairness]")
{
    asyncmux<int> mux;
    support::requests<asyncmux<int>> readers;
    readers.emplace_back(mux.lock_shared(0));
    request whole{mux.lock()};
    for (int i = 1; i != 50; ++i)
        readers.emplace_back(mux.lock_shared(int{i})); // behind it
    CHECK(readers[0].state() == "owns");
    CHECK(readers[1].state() == "waits");
    readers[0].unlock();
    CHECK(whole.state() == "owns");
    CHECK(readers[49].state() == "waits");
    whole.unlock();
    CHECK(readers[1].state() == "owns");
    CHECK(readers[49].state() == "owns");
}

TEST_CASE("asyncmux: what coexists with a waiting lock on the whole mux passes it",
          "[asyncmux][fairness]")
{
    asyncmux<> mux;
    request writer{mux.lock("k")};
    request whole_reader{mux.lock_shared()};
    request reader{mux.lock_shared("other")};
    request another_whole_reader{mux.lock_shared()};
    request late_writer{mux.lock("other")};
    CHECK(whole_reader.state() == "waits");
    CHECK(reader.state() == "owns");
    CHECK(another_whole_reader.state() == "waits"); // for the writer of k, not for the other one
    CHECK(late_writer.state() == "waits");
    writer.unlock();
    CHECK(whole_reader.state() == "owns");
    CHECK(another_whole_reader.state() == "owns");
}

TEST_CASE("asyncmux: other keys pass at once, however long the queue of one is",
          "[asyncmux][fairness]")
{
    asyncmux<> mux;
    request holder{mux.lock("a")};
    request waiter{mux.lock("a")};
    request other{mux.lock("b")};
    CHECK(other.state() == "owns");

    request whole_reader{mux.lock_shared()};
    request writer_behind{mux.lock("c")};
    request reader_behind{mux.lock_shared("d")};
    CHECK(writer_behind.state() == "waits");
    CHECK(reader_behind.state() == "owns");
}

namespace {

/// Divides itself at the first lock.
struct divided : amux::multi_threaded {
    struct mutex : amux::detail::spin_lock {
        bool try_lock() noexcept { return false; }
    };
    static constexpr unsigned collisions_to_grow = 1;
};
using divided_mux = asyncmux<std::string, divided>;

} // namespace

TEMPLATE_TEST_CASE("asyncmux: locks conflict as the table says, held or waiting ahead",
                   "[asyncmux][fairness]", asyncmux<>, divided_mux)
{
    const auto forms = {form::key,          form::key_shared, form::whole,
                        form::whole_shared, form::several,    form::several_shared};
    const auto is_shared = [](form f) {
        return f == form::key_shared || f == form::whole_shared || f == form::several_shared;
    };
    for (const form first : forms) {
        for (const form second : forms) {
            const bool conflict = !is_shared(first) || !is_shared(second);
            for (const bool waiting : {false, true}) {
                TestType mux;
                support::requests<TestType> asks;
                // A lock on the whole mux keeps the first one waiting; only shared ones pass it.
                if (waiting)
                    ask(asks, mux, is_shared(first) ? form::whole : form::whole_shared);
                ask(asks, mux, first);
                ask(asks, mux, second);
                INFO(static_cast<int>(first) << " then " << static_cast<int>(second) << waiting);
                if (!waiting)
                    CHECK(asks.back().state() == (conflict ? "waits" : "owns"));
                else
                    asks.front().unlock();
                CHECK(asks.back().state() == (conflict ? "waits" : "owns"));
            }
        }
    }
}

TEST_CASE("asyncmux: a set of keys reserves what is free, and holds followers back there",
          "[asyncmux][fairness]")
{
    asyncmux<> mux;
    request holder{mux.lock("b")};
    request both{mux.lock_all("a", "b", "c")};
    request a{mux.lock("a")};
    request d{mux.lock("d")};
    CHECK(a.state() == "waits");
    CHECK(d.state() == "owns");
    holder.unlock();
    CHECK(both.state() == "owns");
    CHECK(a.state() == "waits");
    both.unlock();
    CHECK(a.state() == "owns");
}

TEST_CASE("asyncmux: a set that waits at two keys is granted when it has been handed both",
          "[asyncmux][fairness]")
{
    asyncmux<> mux;
    request a{mux.lock("a")};
    request b{mux.lock("b")};
    request both{mux.lock_all("a", "b")};
    a.unlock();
    CHECK(both.state() == "waits");
    CHECK_FALSE(mux.try_lock("a")); // reserved
    b.unlock();
    CHECK(both.state() == "owns");
}

TEST_CASE("asyncmux: sets that name the same keys in another order do not deadlock",
          "[asyncmux][fairness]")
{
    asyncmux<> mux;
    request holder{mux.lock_shared()};
    request ab{mux.lock_all("a", "b")};
    request ba{mux.lock_all("b", "a")};
    request abc{mux.lock_all_shared("c", "b", "a")};
    holder.unlock();
    CHECK(ab.state() == "owns");
    ab.unlock();
    CHECK(ba.state() == "owns");
    ba.unlock();
    CHECK(abc.state() == "owns");
}

TEST_CASE("asyncmux: what one release grants is resumed in order of arrival",
          "[asyncmux][fairness]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    journal log;
    const auto named = [&](const char* name) { return support::asker{&loop, nullptr, &log, name}; };
    request whole{mux.lock()};
    request w1{mux.lock("z"), named("w1")};
    request w2{mux.lock_shared("a"), named("w2")};
    request w3{mux.lock_all("m", "n"), named("w3")};
    request w4{mux.lock_shared("a"), named("w4")};
    request w5{mux.lock("k"), named("w5")};
    request w6{mux.lock_shared("b"), named("w6")};
    whole.unlock();
    loop.run_ready();
    CHECK(log == journal{"w1", "w2", "w3", "w4", "w5", "w6"});
}

TEST_CASE("asyncmux: a lock is handed over before anybody runs, so none can barge in",
          "[asyncmux][fairness]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux;
    request holder{mux.lock("k")};
    request next{mux.lock("k"), {.where = &loop}};
    holder.unlock();
    CHECK_FALSE(mux.try_lock("k"));
    CHECK_FALSE(mux.try_lock_shared("k"));
    CHECK_FALSE(mux.try_lock());
    CHECK_FALSE(mux.try_lock_all("k", "free"));
    request late{mux.lock("k")};
    CHECK(late.state() == "waits");
    loop.run_ready();
    CHECK(next.state() == "owns");
}

TEST_CASE("asyncmux: try_lock never fails on what is free, nor passes one who waits",
          "[asyncmux][fairness]")
{
    asyncmux<> mux;
    for (int i = 0; i != 1000; ++i) {
        REQUIRE(mux.try_lock("k"));
        REQUIRE(mux.try_lock());
        REQUIRE(mux.try_lock_all("k", "l"));
    }
    request reader{mux.lock_shared("k")};
    CHECK(mux.try_lock_shared("k"));
    request writer{mux.lock("k")};
    CHECK_FALSE(mux.try_lock_shared("k"));
    CHECK_FALSE(mux.try_lock_all_shared("k", "l"));
    CHECK(mux.try_lock("l"));
}

TEST_CASE("asyncmux: a try that fails leaves no trace", "[asyncmux][fairness]")
{
    asyncmux<> mux;
    request holder{mux.lock("k")};
    CHECK_FALSE(mux.try_lock("k"));
    CHECK_FALSE(mux.try_lock_shared("k"));
    CHECK_FALSE(mux.try_lock());
    CHECK_FALSE(mux.try_lock_shared());
    CHECK_FALSE(mux.try_lock_all("a", "k", "b"));
    CHECK_FALSE(mux.try_lock_all_shared(std::vector{"a", "k", "b"}));
    CHECK(mux.tracked_keys() == 1);
    CHECK(mux.snapshot().keys.at(0).waiters == 0);
    request a{mux.lock("a")};
    CHECK(a.state() == "owns");
    holder.unlock();
    a.unlock();
    CHECK(mux.try_lock());
}

namespace {

/// Makes and ends `count` waiters behind one lock, and says how many were served or stopped.
template <class Ask>
int serve(int count, Ask ask, bool stop_them)
{
    asyncmux<int> mux;
    auto whole = std::make_unique<request<asyncmux<int>::guard>>(mux.lock());
    std::vector<std::stop_source> stops(static_cast<std::size_t>(stop_them ? count : 0));
    support::requests<asyncmux<int>> waiters;
    for (int i = 0; i != count; ++i)
        ask(waiters, mux, i,
            stop_them ? stops[static_cast<std::size_t>(i)].get_token() : std::stop_token{});
    std::shuffle(stops.begin(), stops.end(), std::mt19937{7});
    for (auto& s : stops)
        s.request_stop();
    whole.reset();
    int done = 0;
    for (auto& w : waiters) {
        if (w.state() == "owns")
            w.unlock();
        done += w.state() != "waits" ? 1 : 0;
    }
    return done;
}

} // namespace

// A walk over all waiters at each step would take hours here.
TEST_CASE(
    "asyncmux: a hundred thousand waiters cost what they are, granted or stopped in any order",
    "[asyncmux][fairness][cost]")
{
    const int count = support::scaled(100000);
    const bool stop_them = GENERATE(false, true);
    using to_t = support::requests<asyncmux<int>>;
    const auto distinct = [](to_t& to, asyncmux<int>& mux, int i, std::stop_token s) {
        to.emplace_back(mux.lock(int{i}, std::move(s)));
    };
    const auto one_key = [](to_t& to, asyncmux<int>& mux, int, std::stop_token s) {
        to.emplace_back(mux.lock(1, std::move(s)));
    };
    const auto shared_whole_between = [](to_t& to, asyncmux<int>& mux, int i, std::stop_token s) {
        if (i % 2 == 0)
            to.emplace_back(mux.lock_shared(int{i}, std::move(s)));
        else
            to.emplace_back(i % 4 == 1 ? mux.lock_shared(std::move(s)) : mux.lock(std::move(s)));
    };
    CHECK(serve(count, distinct, stop_them) == count);
    CHECK(serve(count, one_key, stop_them) == count);
    CHECK(serve(count / 10, shared_whole_between, stop_them) == count / 10);
}

TEST_CASE("asyncmux: a writer that is stopped over and over does not cost those behind it",
          "[asyncmux][fairness][cost]")
{
    const int count = support::scaled(50000);
    asyncmux<int> mux;
    request holder{mux.lock_shared(1)};
    std::stop_source first_stop;
    request first{mux.lock(1, first_stop.get_token())};
    support::requests<asyncmux<int>> readers;
    for (int i = 0; i != count; ++i)
        readers.emplace_back(mux.lock_shared(1));
    for (int i = 0; i != count; ++i) {
        std::stop_source stop;
        request writer{mux.lock(1, stop.get_token())};
        stop.request_stop();
        REQUIRE(writer.state() == "stopped");
    }
    CHECK(readers.front().state() == "waits");
    first_stop.request_stop();
    CHECK(readers.front().state() == "owns");
    CHECK(readers.back().state() == "owns");
}

namespace {

template <class F>
std::chrono::steady_clock::duration time_of(F f)
{
    const auto start = std::chrono::steady_clock::now();
    f();
    return std::chrono::steady_clock::now() - start;
}

/// The best of several times: it was not interrupted.
template <class F>
std::chrono::steady_clock::duration best_of(F f)
{
    auto best = f();
    for (int round = 0; round != 6; ++round)
        best = (std::min)(best, f());
    return best;
}

} // namespace

TEST_CASE("asyncmux: a lock on the whole mux costs the same however many keys are held",
          "[asyncmux][fairness][cost]")
{
    const auto time_of_locks = [](int keys) {
        asyncmux<int> mux;
        std::vector<asyncmux<int>::guard> readers;
        for (int i = 0; i != keys; ++i)
            readers.push_back(mux.try_lock_shared(i));
        bool all = true;
        const auto time = best_of([&] {
            return time_of([&] {
                for (int i = 0; i != 100; ++i)
                    all = mux.try_lock_shared() && all;
            });
        });
        CHECK(all);
        return time;
    };
    // One that looked at every key would take hundreds of times as long.
    CHECK(time_of_locks(50000) < 50 * time_of_locks(2));
}

TEST_CASE("asyncmux: a set of keys, a close and a snapshot cost what they name",
          "[asyncmux][fairness][cost]")
{
    const int which = GENERATE(0, 1, 2);
    const auto best_time = [which](std::size_t count) {
        std::vector<int> keys(count);
        std::iota(keys.begin(), keys.end(), 0);
        return best_of([&] {
            asyncmux<int> mux;
            asyncmux<int>::guard all;
            const auto take_all = [&] { all = mux.try_lock_all(keys); };
            if (which == 0)
                return time_of(take_all);
            take_all();
            support::requests<asyncmux<int>> waiters;
            for (const int k : keys)
                waiters.emplace_back(mux.lock(which == 1 ? k : k % 3));
            return which == 1 ? time_of([&] { mux.close(); })
                              : time_of([&] { REQUIRE(mux.snapshot().keys.size() == count); });
        });
    };
    // Sixteen times as many do not fit into the caches any more; so they take longer, but do not look at each other.
    CHECK(best_time(32000) < (which == 1 ? 400 : 1500) * best_time(2000));
}

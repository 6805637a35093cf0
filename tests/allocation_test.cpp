// SPDX-License-Identifier: BSL-1.0
// Without this file a lock may come to allocate, on a path that runs a million times a second, and nobody notices.
#include "support/allocation_counter.hpp"
#include "support/request.hpp"

#include <amux/asyncmux.hpp>
#include <amux/deadlock_detector.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/task.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <cstddef>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

using namespace std::chrono_literals;
using amux::asyncmux;
using support::allocations;
using support::request;

namespace {

/// Asks again and again, and holds what it gets for a frame of the loop, so that others wait.
template <class Mux, class Ask>
amux::task<> locks_each_frame(amux::manual_event_loop& loop, Mux& mux, Ask ask, const bool& end)
{
    int round = 0;
    while (!end) {
        auto g = co_await ask(mux, round++);
        co_await loop.schedule();
    }
}

/// What a thousand frames allocate, after some to warm up in, when so many coroutines ask.
template <class Mux, class Ask>
std::size_t allocated(Mux& mux, int coroutines, Ask ask)
{
    amux::manual_event_loop loop;
    bool end = false;
    for (int i = 0; i != coroutines; ++i)
        loop.spawn(locks_each_frame(loop, mux, ask, end));
    const auto frames = [&loop](int count) {
        for (int i = 0; i != count; ++i) {
            loop.run_ready();
            loop.advance(1ms);
        }
    };
    frames(300);
    const std::size_t before = allocations();
    frames(1000);
    const std::size_t count = allocations() - before;
    end = true;
    frames(100);
    return count;
}

/// A key that owns something, so that it is not trivial to destroy, without memory of its own.
struct owner_key {
    explicit owner_key(int i) noexcept : id{i} {}
    owner_key(const owner_key& other) noexcept : id{other.id} { ++copies; }
    owner_key(owner_key&& other) noexcept : id{other.id} {}
    owner_key& operator=(const owner_key&) = default;
    ~owner_key() { id = -1; }
    bool operator==(const owner_key&) const = default;
    static inline int copies = 0;
    int id;
};
struct owner_hash {
    std::size_t operator()(const owner_key& k) const noexcept
    {
        return static_cast<std::size_t>(k.id);
    }
};

} // namespace

TEMPLATE_TEST_CASE("asyncmux: locking a key allocates nothing once it is warm, contended or not",
                   "[asyncmux][allocation]", amux::multi_threaded, amux::single_threaded)
{
    const int coroutines = GENERATE(1, 5);
    const std::string short_key = "k";
    const std::string long_key(200, 'l');
    const std::string_view view{long_key};

    asyncmux<int, TestType> ints;
    CHECK(allocated(ints, coroutines, [](auto& m, int) { return m.lock(7); }) == 0);
    CHECK(allocated(ints, coroutines, [](auto& m, int i) { return m.lock_shared(i % 50); }) == 0);
    asyncmux<std::string, TestType> strings;
    CHECK(allocated(strings, coroutines, [&](auto& m, int) { return m.lock(short_key); }) == 0);
    CHECK(allocated(strings, coroutines, [&](auto& m, int) { return m.lock(long_key); }) == 0);
    CHECK(allocated(strings, coroutines, [&](auto& m, int i) {
              return m.lock(view.substr(static_cast<std::size_t>(i % 50)));
          }) == 0);
    CHECK(allocated(strings, coroutines,
                    [](auto& m, int) { return m.lock("a literal that is long"); }) == 0);
    asyncmux<owner_key, TestType, owner_hash> owners;
    CHECK(allocated(owners, coroutines, [](auto& m, int i) { return m.lock(owner_key{i % 9}); }) ==
          0);
}

TEMPLATE_TEST_CASE("asyncmux: the other forms allocate nothing once they are warm",
                   "[asyncmux][allocation]", amux::multi_threaded, amux::single_threaded)
{
    const int coroutines = GENERATE(1, 5);
    const bool detects = GENERATE(false, true);
    const std::string a(100, 'a');
    const std::vector<std::string> keys{"x", a, "y", "x"};
    std::stop_source source;
    const std::stop_token stop = source.get_token();
    asyncmux<std::string, TestType> mux{{.prevent_reentrancy = detects, .max_waiters = 100}};

    CHECK(allocated(mux, coroutines, [](auto& m, int) { return m.lock(); }) == 0);
    CHECK(allocated(mux, coroutines, [&](auto& m, int) { return m.lock_shared(stop); }) == 0);
    CHECK(allocated(mux, coroutines, [&](auto& m, int) { return m.lock(a, stop); }) == 0);
    CHECK(allocated(mux, coroutines, [&](auto& m, int) { return m.lock_all(keys); }) == 0);
    CHECK(allocated(mux, coroutines, [&](auto& m, int) { return m.lock_all(a, "b", "c"); }) == 0);
    CHECK(allocated(mux, coroutines, [&](auto& m, int) { return m.try_lock_for(a, 1h); }) == 0);
    CHECK(allocated(mux, coroutines, [&](auto& m, int) {
              return m.try_lock_all_for(keys, 1ms, stop); // some of them time out
          }) == 0);
}

TEST_CASE("asyncmux: records, and a search for deadlocks, allocate nothing once they are warm",
          "[asyncmux][allocation]")
{
    amux::deadlock_detector detector;
    asyncmux<> mux{{.deadlocks = &detector}};
    asyncmux<> recorded{{.record_requests = true}};
    const int coroutines = GENERATE(1, 5);
    for (auto* m : {&mux, &recorded}) {
        CHECK(allocated(*m, coroutines, [](auto& x, int) { return x.lock("k"); }) == 0);
        CHECK(allocated(*m, coroutines, [](auto& x, int) { return x.lock(); }) == 0);
        CHECK(allocated(*m, coroutines, [](auto& x, int) { return x.lock_all("k", "l"); }) == 0);
    }
}

TEST_CASE("asyncmux: a release with a thousand waiters allocates nothing", "[asyncmux][allocation]")
{
    const bool shared = GENERATE(false, true);
    amux::manual_event_loop loop;
    asyncmux<> mux;
    std::stop_source stop;
    request holder{mux.lock_all("k", "l")};
    support::requests<asyncmux<>> waiters;
    for (int i = 0; i != 1000; ++i) {
        if (shared)
            waiters.emplace_back(mux.lock_shared("k", stop.get_token()));
        else
            waiters.emplace_back(mux.lock("k", stop.get_token()), support::asker{.where = &loop});
    }
    const std::size_t before = allocations();
    holder.unlock(); // resumes the readers inside
    CHECK(allocations() == before);
    stop.request_stop(); // posts the writers
    CHECK(allocations() == before);
    loop.run_ready();
    CHECK(waiters.back().state() == (shared ? "owns" : "stopped"));
}

TEST_CASE("asyncmux: trying, failing and looking a view up allocate nothing",
          "[asyncmux][allocation]")
{
    asyncmux<> mux;
    const std::string key(100, 'k');
    const std::string_view view{key};
    auto holder = mux.try_lock(view);
    (void)mux.try_lock_all(view, "warm");
    const std::size_t before = allocations();
    bool granted = false;
    for (int i = 0; i != 100; ++i) {
        granted = granted || mux.try_lock(view) || mux.try_lock_shared(view) || mux.try_lock() ||
                  mux.try_lock_all(view, "free");
        holder.downgrade();
        holder.unlock();
        holder = mux.try_lock(view);
    }
    CHECK(allocations() == before);
    CHECK_FALSE(granted);
    CHECK(holder.owns_lock());
}

TEST_CASE("asyncmux: trying asks nobody who it is, and needs no memory to prevent reentrancy",
          "[asyncmux][allocation]")
{
    asyncmux<> plain;
    asyncmux<> mux{{.prevent_reentrancy = true}};
    const std::string key = "key";
    std::size_t before = allocations();
    const auto other = plain.try_lock(key);
    const std::size_t needed = allocations() - before;
    before = allocations();
    auto g = mux.try_lock(key);
    CHECK(allocations() - before == needed);
    CHECK(*g.key() == key);
    g.downgrade();
    CHECK(mux.try_lock_shared(key));
    CHECK_FALSE(mux.try_lock(key));
    CHECK_FALSE(mux.try_lock());
    g.unlock();
    CHECK(mux.try_lock());
}

TEST_CASE("asyncmux: an idle mux owns no memory and is small", "[asyncmux][allocation]")
{
    const std::size_t before = allocations();
    asyncmux<> mux;
    amux::unsynchronized_asyncmux<int> unsynchronized;
    CHECK(allocations() == before);
    CHECK(sizeof mux <= 256);
    CHECK(sizeof unsynchronized <= 256);
}

TEST_CASE("asyncmux: memory follows the most keys in use at a time, not all that ever were",
          "[asyncmux][allocation]")
{
    asyncmux<> mux;
    const auto live_before = support::live_allocations();
    for (int i = 0; i != 10000; ++i)
        (void)mux.try_lock(std::to_string(i));
    CHECK(support::live_allocations() - live_before < 10);
}

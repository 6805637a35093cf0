// SPDX-License-Identifier: BSL-1.0
// Without this file nobody knows whether what compiles with another standard library also works.
#include <amux/amux.hpp>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

using namespace std::chrono_literals;

namespace {

int passed = 0;
int failed = 0;

void check(bool good, const char* what)
{
    ++(good ? passed : failed);
    if (!good)
        std::printf("FAILED libcxx: %s\n", what);
}

using keyed_mux = amux::asyncmux<>;

amux::task<> pass_through(keyed_mux& mux, std::string key, std::string& order, char name)
{
    const auto guard = co_await mux.lock(key);
    order += name;
}

void waits_in_order()
{
    amux::manual_event_loop loop;
    keyed_mux mux{{.name = "smoke"}};
    std::string order;
    auto holder = mux.try_lock("a");
    loop.spawn(pass_through(mux, "a", order, '1'));
    loop.spawn(pass_through(mux, "a", order, '2'));
    loop.spawn(pass_through(mux, "b", order, 'b'));
    loop.run_ready();
    check(order == "b", "who asks for a key that is held waits, others do not");
    holder.unlock();
    loop.run_ready();
    check(order == "b12" && mux.tracked_keys() == 0, "who waits is served in order");
}

amux::task<> ask_with_stop(keyed_mux& mux, std::stop_token stop, std::string& said)
{
    try {
        const auto guard = co_await mux.lock("a", stop);
    } catch (const amux::lock_cancelled_error& e) {
        said = e.what();
    }
}

void stops()
{
    amux::manual_event_loop loop;
    keyed_mux mux;
    const auto holder = mux.try_lock();
    std::stop_source source;
    std::string said;
    loop.spawn(ask_with_stop(mux, source.get_token(), said));
    loop.run_ready();
    check(said.empty(), "a keyed lock waits while the whole mux is held");
    source.request_stop();
    loop.run_ready();
    check(said.find('a') != said.npos, "a stopped request ends with an error that names the key");
}

amux::task<> ask_for_a_time(keyed_mux& mux, std::optional<bool>& owns)
{
    const auto guard = co_await mux.try_lock_shared_for("a", 50ms);
    owns = guard.owns_lock();
}

void runs_out_of_time()
{
    amux::manual_event_loop loop;
    keyed_mux mux;
    const auto holder = mux.try_lock("a");
    std::optional<bool> owns;
    loop.spawn(ask_for_a_time(mux, owns));
    loop.run_ready();
    loop.advance(49ms);
    loop.run_ready();
    check(!owns, "a request waits until its time is over");
    loop.advance(1ms);
    loop.run_ready();
    check(owns == false, "then it gets an empty guard");
}

using lease_locks = amux::distributed_lock<amux::memory_backend&>;

amux::task<> hold_lease(lease_locks& locks, std::vector<bool>& seen)
{
    amux::acquired_lock lease = co_await locks.acquire("k", {.ttl = 1s});
    seen.push_back(lease.is_held());
    const bool other = (co_await locks.try_acquire("k")).has_value();
    seen.push_back(!other);
    const bool released = co_await lease.release();
    seen.push_back(released && !lease.is_held());
}

void leases()
{
    amux::manual_event_loop loop;
    amux::memory_backend store{loop};
    lease_locks locks{store, loop};
    std::vector<bool> seen;
    loop.spawn(hold_lease(locks, seen));
    for (int i = 0; i != 100 && seen.size() != 3; ++i) {
        loop.advance(1s);
        loop.run_ready();
    }
    check(seen.size() == 3 && store.size() == 0, "a lease is held and released");
}

constexpr int rounds = 2000;

amux::task<> count(keyed_mux& mux, int& counter, amux::event_loop& loop)
{
    for (int i = 0; i != rounds; ++i) {
        const auto guard = co_await mux.lock("counter");
        const int before = counter;
        if (i % 100 == 0)
            co_await loop.schedule();
        counter = before + 1;
    }
}

amux::task<> join(std::deque<amux::task_group>& groups)
{
    for (amux::task_group& g : groups)
        co_await g.join();
}

void counts_with_threads()
{
    keyed_mux mux;
    int counter = 0;
    std::deque<amux::loop_thread> threads(3);
    std::deque<amux::task_group> groups;
    for (amux::loop_thread& t : threads) {
        groups.emplace_back(t.loop());
        groups.back().spawn(count(mux, counter, t.loop()));
    }
    amux::sync_wait(join(groups));
    check(counter == 3 * rounds, "threads take turns");
}

} // namespace

int main()
{
    waits_in_order();
    stops();
    runs_out_of_time();
    leases();
    counts_with_threads();
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a dashboard of leases may show losses as releases, and never a renewal that came late.
#include "support/allocation_counter.hpp"
#include "support/lease_bench.hpp"

#include <amux/lease_counters.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>

using namespace std::chrono_literals;
using amux::acquired_lock;
using support::asked;
using course = amux::testing::course;
using operation = amux::testing::operation;

namespace {

/// As `lease_bench`, with hooks that count and then write down.
struct counting_bench {
    amux::manual_event_loop loop;
    amux::testing::scripted_backend store{loop};
    support::hook_log log;
    amux::lease_counters counters{loop};
    amux::distributed_lock<amux::testing::scripted_backend&> locks{
        store, loop, {}, counters.hooks(log.hooks())};

    void pass(std::chrono::milliseconds d = {})
    {
        loop.advance(d);
        loop.run_ready();
    }
    acquired_lock hold(amux::acquire_options options, std::stop_token stop = {})
    {
        asked lease{loop, locks.acquire("k", options, std::move(stop))};
        pass();
        return std::move(lease.value());
    }
    void extend(acquired_lock& l, std::optional<std::chrono::milliseconds> ttl = {})
    {
        asked done{loop, ttl ? l.extend(*ttl) : l.extend()};
        pass();
        REQUIRE(done.state() == "done");
    }
    amux::lease_counts counts() const { return counters.counts(); }
};

} // namespace

TEST_CASE("lease_counters: what is given back is released, not lost", "[lease][counters]")
{
    counting_bench b;
    {
        acquired_lock l = b.hold({.ttl = 1s});
        CHECK(b.counts().acquired == 1);
        CHECK(b.counts().held() == 1);
        CHECK(b.counts().released == 0);
    }
    b.pass();
    CHECK(b.counts().released == 1);
    CHECK(b.counts().held() == 0);
    CHECK(b.counts().expired + b.counts().aborted + b.counts().errors == 0);
    CHECK(b.log.names() == "acquire release");
}

TEST_CASE("lease_counters: losses are counted by their reason", "[lease][counters]")
{
    counting_bench b;
    acquired_lock expired = b.hold({.ttl = 1s});
    b.pass(2s);
    CHECK(b.counts().expired == 1);
    CHECK(b.counts().aborted == 0);
    std::stop_source stop;
    acquired_lock aborted = b.hold({.ttl = 1s}, stop.get_token());
    stop.request_stop();
    b.pass();
    CHECK(b.counts().expired == 1);
    CHECK(b.counts().aborted == 1);
    CHECK(b.counts().released == 0);
    CHECK(b.counts().held() == 0);
    CHECK(b.log.count("lost") == 2);
}

TEST_CASE("lease_counters: a renewal in time is none that is late", "[lease][counters]")
{
    counting_bench b;
    acquired_lock l = b.hold({.ttl = 1s, .renew = true, .renew_interval = 500ms});
    for (int i = 0; i != 500; ++i)
        b.pass(10ms);
    CHECK(b.counts().renewals >= 10);
    CHECK(b.counts().renewals == static_cast<std::uint64_t>(b.log.count("renew")));
    CHECK(b.counts().late_renewals == 0);
}

TEST_CASE("lease_counters: a renewal is late with less than a quarter of the ttl left",
          "[lease][counters]")
{
    counting_bench b;
    acquired_lock l = b.hold({.ttl = 1s}); // believed in for 988 ms
    b.pass(730ms);
    b.extend(l);
    CHECK(b.counts().late_renewals == 0);
    b.pass(745ms);
    b.extend(l);
    CHECK(b.counts().late_renewals == 1);
    b.extend(l, 4s); // in time, and from now on a quarter is one second
    b.pass(2900ms);
    b.extend(l);
    CHECK(b.counts().late_renewals == 1);
    b.pass(3100ms);
    b.extend(l);
    CHECK(b.counts().late_renewals == 2);
    CHECK(b.counts().renewals == 5);
}

TEST_CASE("lease_counters: an answer that is slow makes a renewal late", "[lease][counters]")
{
    counting_bench b;
    acquired_lock l = b.hold({.ttl = 1s, .renew = true});
    b.store.next(operation::extend, course::late(600ms));
    for (int i = 0; i != 100; ++i)
        b.pass(10ms);
    CHECK(l.is_held());
    CHECK(b.counts().late_renewals == 1);
}

TEST_CASE("lease_counters: trouble is counted, and is no loss", "[lease][counters]")
{
    counting_bench b;
    acquired_lock l = b.hold({.ttl = 1s, .renew = true});
    b.store.next(operation::extend, course::fails(amux::backend_error_kind::not_applied));
    // Renewed within 333 ms, and once more within 63 ms of the trouble; the next is due after another 266 ms.
    for (int i = 0; i != 45; ++i)
        b.pass(10ms);
    CHECK(b.counts().errors == 1);
    CHECK(b.counts().held() == 1);
    CHECK(b.counts().renewals == 1);
}

TEST_CASE("lease_counters: without memory, and before hooks that throw, all else is counted",
          "[lease][counters]")
{
    amux::manual_event_loop loop;
    amux::lease_counters counters{loop};
    int told = 0;
    amux::lock_hooks next;
    next.on_acquire = [&told](const amux::lock_event&) {
        ++told;
        throw std::runtime_error{"a hook's own"};
    };
    const amux::lock_hooks hooks = counters.hooks(next);
    amux::lock_event e;
    e.token = "a token";
    e.ttl = 1s;
    e.expires_at = std::chrono::system_clock::now() + 1s;
    {
        const support::no_memory now{1};
        try {
            hooks.on_acquire(e);
        } catch (const std::exception&) { // what is thrown is the lock's affair
        }
    }
    hooks.on_renew(e);
    hooks.on_release(e);
    CHECK(told == 1);
    CHECK(counters.counts().acquired == 1);
    CHECK(counters.counts().renewals == 1);
    CHECK(counters.counts().late_renewals == 0);
    CHECK(counters.counts().held() == 0);
}

TEST_CASE("lease_counters: of a lease that is over nothing is kept", "[lease][counters]")
{
    amux::manual_event_loop loop;
    amux::lease_counters counters{loop};
    const amux::lock_hooks hooks = counters.hooks();
    const auto end = GENERATE(&amux::lock_hooks::on_release, &amux::lock_hooks::on_lost);
    const auto one_lease = [&](int n) {
        amux::lock_event e;
        e.token = "a token that is longer than any small buffer of a string" + std::to_string(n);
        e.ttl = 1s;
        hooks.on_acquire(e);
        (hooks.*end)(e);
    };
    one_lease(0);
    const std::ptrdiff_t before = support::live_allocations();
    for (int n = 1; n != 100; ++n)
        one_lease(n);
    CHECK(support::live_allocations() == before);
    CHECK(counters.counts().acquired == 100);
}

TEST_CASE("lease_counters: an exporter gets each figure under its name", "[metrics]")
{
    amux::lease_counts c;
    c.acquired = 28;
    c.released = 2;
    c.expired = 3;
    c.aborted = 4;
    c.renewals = 50;
    c.late_renewals = 6;
    c.errors = 7;
    std::string text;
    for (const amux::metric& m : c.metrics())
        text += std::string{m.name} + ' ' + to_string(m.type) + ' ' +
                std::to_string(static_cast<int>(m.value)) + '\n';
    CHECK(text ==
          "amux_leases_acquired_total counter 28\n"
          "amux_leases_released_total counter 2\n"
          "amux_leases_expired_total counter 3\n"
          "amux_leases_aborted_total counter 4\n"
          "amux_lease_renewals_total counter 50\n"
          "amux_lease_late_renewals_total counter 6\n"
          "amux_lease_errors_total counter 7\n"
          "amux_leases_held gauge 19\n");
}

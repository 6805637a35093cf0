// SPDX-License-Identifier: BSL-1.0
// Without this file nobody can say who holds a lock, from where, and for how long.
#include "support/death.hpp"
#include "support/request.hpp"

#include <amux/asyncmux.hpp>
#include <amux/long_holds.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/spawn.hpp>
#include <amux/task.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using amux::asyncmux;
using amux::lock_mode;
using amux::task;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using support::request;

namespace {

/// Time stands still, and what a mux records goes by it.
struct recorded_world {
    amux::manual_event_loop loop;
    asyncmux<> mux{{.name = "m", .record_requests = true, .time = &loop}};
    amux::context one;
    amux::context two;

    support::asker by(const amux::context& who) { return {&loop, &who}; }
};

} // namespace

TEST_CASE("snapshot: with records it says who holds and waits, how, and for how long",
          "[asyncmux][records]")
{
    recorded_world w;
    request held{w.mux.lock_all_shared("k", "l"), w.by(w.one)};
    w.loop.advance(3s);
    request waits{w.mux.lock("l"), w.by(w.two)};
    w.loop.advance(2s);
    auto tried = w.mux.try_lock("free");

    auto now = w.mux.snapshot().requests;
    REQUIRE(now.size() == 3);
    CHECK((now[0].granted && now[0].context == w.one.id() && now[0].mode == lock_mode::shared));
    CHECK(now[0].keys == std::vector<std::string>{"k", "l"});
    CHECK((now[0].waited == 0s && now[0].held == 5s));
    CHECK((!now[1].granted && now[1].context == w.two.id() && now[1].mode == lock_mode::exclusive));
    CHECK((now[1].waited == 2s && now[1].held == 0s));
    CHECK((now[2].granted && now[2].context == 0 && now[2].where.line() == 0));
    CHECK((now[0].number < now[1].number && now[1].number < now[2].number));

    held.unlock();
    w.loop.run_ready();
    w.loop.advance(1s);
    now = w.mux.snapshot().requests;
    REQUIRE(now.size() == 2);
    CHECK((now[0].granted && now[0].waited == 2s && now[0].held == 1s));
    waits.unlock();
    tried.unlock();
    CHECK(w.mux.snapshot().requests.empty());
}

TEST_CASE("snapshot: whoever leaves without a lock leaves no record", "[asyncmux][records]")
{
    recorded_world w;
    std::stop_source stop;
    request held{w.mux.lock(), w.by(w.one)};
    request stopped{w.mux.lock("k", stop.get_token()), w.by(w.two)};
    request limited{w.mux.try_lock_for("k", 1s), w.by(w.two)};
    request gone{w.mux.lock_shared(), w.by(w.two)};
    CHECK_FALSE(w.mux.try_lock("k"));
    CHECK(w.mux.snapshot().requests.size() == 4);
    stop.request_stop();
    w.loop.advance(1s);
    w.loop.run_ready();
    gone.destroy();
    CHECK(w.mux.snapshot().requests.size() == 1);
    held.guard().downgrade();
    CHECK(w.mux.snapshot().requests.at(0).mode == lock_mode::shared);
    CHECK(w.mux.snapshot().requests.at(0).whole);
}

TEST_CASE("snapshot: a record says where its lock is awaited", "[asyncmux][records]")
{
    recorded_world w;
    std::vector<amux::request_snapshot<std::string>> seen;
    auto look = [&] { seen.push_back(w.mux.snapshot().requests.at(0)); };
    auto works = [&]() -> task<void> {
        {
            auto guard = co_await w.mux.lock("k");
            look();
        }
        co_await w.mux.with_lock("k", look);
    };
    constexpr unsigned line = __LINE__ - 5;
    spawn(w.loop, works());
    w.loop.run_ready();
    REQUIRE(seen.size() == 2);
    CHECK(seen[0].where.line() == line);
    CHECK_THAT(seen[0].where.file_name(), EndsWith("request_record_test.cpp"));
    CHECK(std::string{seen[0].where.function_name()} != "");
    CHECK(seen[1].where.line() == line + 3);
    CHECK(seen[0].context == seen[1].context);
}

TEST_CASE("asyncmux: destroyed while it is held it says who holds it", "[asyncmux][records]")
{
    const std::string said = support::death_of([] {
        auto mux = std::make_unique<asyncmux<>>(
            amux::asyncmux_options{.name = "m", .record_requests = true});
        const amux::context who;
        request held{mux->lock("account-7"), {nullptr, &who}};
        request waits{mux->lock()};
        support::destroy(mux);
    });
    CHECK_THAT(said, ContainsSubstring("destroyed while it is held or waited for: m\n"
                                       "  'account-7' held (exclusive) by context "));
    CHECK_THAT(said, ContainsSubstring("request.hpp:"));
    CHECK_THAT(said, ContainsSubstring("\n  the whole mux waited for (exclusive) at "));
}

TEST_CASE("asyncmux: a key that has no text is named as one", "[asyncmux][records]")
{
    struct opaque {
        int id;
        bool operator==(const opaque&) const = default;
    };
    struct hash {
        std::size_t operator()(const opaque&) const noexcept { return 0; }
    };
    const std::string said = support::death_of([] {
        using mux_type = asyncmux<opaque, amux::multi_threaded, hash>;
        auto mux = std::make_unique<mux_type>(amux::asyncmux_options{.record_requests = true});
        auto held = mux->try_lock_all(opaque{1}, opaque{2});
        support::destroy(mux);
    });
    CHECK_THAT(said, ContainsSubstring("\n  (a key), (a key) held (exclusive)\n"));
}

TEST_CASE("tell_long_holds: it tells of each lock once, when its time is over",
          "[asyncmux][records]")
{
    recorded_world w;
    std::stop_source stop;
    std::vector<std::uint64_t> told;
    spawn(w.loop, amux::tell_long_holds(
                      w.mux, w.loop, 10s, [&](const auto& r) { told.push_back(r.context); },
                      stop.get_token()));
    const auto after = [&](std::chrono::seconds s) {
        w.loop.advance(s);
        w.loop.run_ready();
        return told.size();
    };
    w.loop.run_ready();
    CHECK(after(4s) == 0);
    request first{w.mux.lock("k"), w.by(w.one)}; // at 4, so due at 14
    CHECK(after(4s) == 0);
    request second{w.mux.lock("l"), w.by(w.two)}; // at 8, so due at 18
    request waits{w.mux.lock("l"), w.by(w.one)};
    CHECK(after(5s) == 0);
    CHECK(after(1s) == 1); // 14
    CHECK(after(3s) == 1);
    CHECK(after(1s) == 2); // 18
    CHECK(told == std::vector{w.one.id(), w.two.id()});
    CHECK(after(30s) == 2);
    second.unlock();
    w.loop.run_ready();
    CHECK(after(9s) == 2);
    CHECK(after(1s) == 3); // who waited has held it for as long
    stop.request_stop();
    w.loop.run_ready();
    CHECK(after(60s) == 3);
}

TEST_CASE("tell_long_holds: what it cannot do it says", "[asyncmux][records]")
{
    recorded_world w;
    const auto ignore = [](const auto&) {};
    asyncmux<> plain;
    CHECK_FALSE(plain.records_requests());
    CHECK_THROWS_AS(amux::tell_long_holds(plain, w.loop, 1s, ignore), std::invalid_argument);
    CHECK_THROWS_AS(amux::tell_long_holds(w.mux, w.loop, 0s, ignore), std::invalid_argument);
    std::stop_source stop;
    spawn(w.loop, amux::tell_long_holds(w.mux, w.loop, amux::clock::duration::max(), ignore,
                                        stop.get_token()));
    CHECK(w.loop.run_ready() != 0); // and it sleeps
    stop.request_stop();
    w.loop.run_ready();
}

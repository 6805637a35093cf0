// SPDX-License-Identifier: BSL-1.0
// Without this file a hook, or a callback of a lease, may break the lock when it throws, blocks or calls back.
#include "support/lease_bench.hpp"

#include <amux/distributed_lock.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::acquired_lock;
using amux::backend_error_kind;
using amux::end_reason;
using amux::lock_event;
using amux::task;
using support::asked;
using support::lease_bench;
using course = lease_bench::course;
using operation = lease_bench::operation;

namespace {

/// A lock whose hooks do what a test says, one after the other of the same kind.
struct hooked {
    amux::manual_event_loop loop;
    amux::testing::scripted_backend store{loop};
    std::string names;
    std::function<void(const std::string&, const lock_event&)> act;
    amux::distributed_lock<amux::testing::scripted_backend&> locks{store, loop, {}, hooks()};

    amux::lock_hooks hooks()
    {
        const auto hook = [this](const char* name) {
            return [this, name](const lock_event& e) {
                names += (names.empty() ? "" : " ") + std::string{name};
                if (act)
                    act(name, e);
            };
        };
        return {hook("acquire"), hook("release"), hook("renew"), hook("lost"), hook("error")};
    }
    void pass(std::chrono::milliseconds d = {})
    {
        for (; d > 0ms; d -= 1ms) {
            loop.advance(1ms);
            loop.run_ready();
        }
        loop.run_ready();
    }
    template <class T>
    asked<T> ask(task<T> work)
    {
        return {loop, std::move(work)};
    }
};

} // namespace

TEST_CASE("lock_hooks: each is told all there is to tell", "[lease][hooks]")
{
    lease_bench b;
    std::stop_source stop;
    const auto same = [&](const std::string& hook, const acquired_lock& l) {
        const lock_event& e = b.log.last(hook);
        CHECK(e.key == l.key());
        CHECK(e.token == l.token());
        CHECK(e.fence == l.fence());
        CHECK(e.ttl == 1s);
        CHECK(e.metadata == "host 7");
        const auto away = e.expires_at - std::chrono::system_clock::now();
        CHECK(away < 1s);
        CHECK(away > -10s);
        CHECK(e.reason.has_value() == (hook == "release" || hook == "lost"));
        CHECK((e.cause != nullptr) == (hook == "error"));
    };
    const amux::acquire_options options{.ttl = 1s, .renew = true, .metadata = "host 7"};
    {
        acquired_lock l = b.hold("k", options);
        same("acquire", l);
        b.store.next(operation::extend, course::fails(backend_error_kind::not_applied));
        b.pass_slowly(600ms);
        same("error", l);
        same("renew", l);
        auto answer = b.ask(l.release());
        b.pass();
        same("release", l);
        CHECK(b.log.last("release").reason == end_reason::released);
    }
    {
        acquired_lock l = b.hold("k", options, stop.get_token());
        stop.request_stop();
        b.pass();
        same("lost", l);
        CHECK(b.log.last("lost").reason == end_reason::aborted);
    }
}

TEST_CASE("lock_hooks: on_acquire comes first, and then one end", "[lease][hooks]")
{
    lease_bench b;
    std::optional<acquired_lock> l;
    std::stop_source stop;
    auto answer = b.ask(b.locks.acquire("k", {.ttl = 1s, .renew = true}, stop.get_token()));
    b.pass();
    CHECK(b.log.names() == "acquire");
    l.emplace(std::move(answer.value()));
    bool released = false;
    SECTION("released")
    {
        l.reset();
        released = true;
    }
    SECTION("expired")
    {
        b.store.always(operation::extend, course::held());
        b.pass_slowly(1s);
    }
    SECTION("stopped")
    {
        stop.request_stop();
    }
    SECTION("usurped")
    {
        b.store.usurp("k", "stranger", 1h);
        b.pass_slowly(400ms);
    }
    b.pass();
    l.reset();
    stop.request_stop();
    b.pass_slowly(3s, 100ms);
    CHECK(b.log.names() == (released ? "acquire release" : "acquire lost"));
}

TEST_CASE("lock_hooks: one that throws breaks nothing", "[lease][hooks]")
{
    hooked h;
    h.act = [](const std::string&, const lock_event&) { throw std::runtime_error{"a hook"}; };
    if (GENERATE(false, true))
        h.act = [](const std::string&, const lock_event&) { throw 7; };
    h.store.next(operation::acquire, course::fails(backend_error_kind::not_applied));
    auto l = h.ask(h.locks.acquire("k", {.ttl = 1s, .poll_interval = 10ms, .renew = true}));
    h.pass(20ms);
    REQUIRE(l.state() == "done");
    h.pass(400ms);
    CHECK(l.value().is_held());
    auto answer = h.ask(l.value().release());
    h.pass();
    CHECK(answer.value());
    auto lost = h.ask(h.locks.acquire("k", {.ttl = 1s}));
    h.pass(1s);
    CHECK_FALSE(lost.value().is_held());
    CHECK(h.names == "error acquire renew release acquire lost");
}

TEST_CASE("lock_hooks: none at all", "[lease][hooks]")
{
    amux::manual_event_loop loop;
    amux::testing::scripted_backend store{loop};
    amux::distributed_lock locks{store, loop, {}, {.on_acquire = nullptr}};
    store.next(operation::acquire, course::fails(backend_error_kind::not_applied));
    asked l{loop, locks.acquire("k", {.ttl = 1s, .poll_interval = 10ms})};
    loop.run_ready();
    loop.advance(20ms);
    loop.run_ready();
    REQUIRE(l.state() == "done");
    loop.advance(1s);
    loop.run_ready();
    CHECK_FALSE(l.value().is_held());
}

TEST_CASE("lock_hooks: one that destroys the handle, or releases it", "[lease][hooks]")
{
    hooked h;
    const std::string where = GENERATE("renew", "error", "lost");
    const int how = GENERATE(0, 1, 2);
    std::optional<acquired_lock> l;
    std::vector<asked<bool>> answers;
    h.act = [&](const std::string& name, const lock_event& e) {
        if (name != where || !l)
            return;
        if (how == 0)
            l.reset();
        else if (how == 1)
            answers.push_back(h.ask(l->release()));
        else
            answers.push_back(h.ask(h.locks.release(e.key, e.token)));
    };
    auto call = h.ask(h.locks.acquire("k", {.ttl = 1s, .renew = true}));
    h.pass();
    l.emplace(std::move(call.value()));
    auto end = h.ask(l->ended());
    if (where == "error")
        h.store.next(operation::extend, course::fails(backend_error_kind::not_applied));
    if (where == "lost")
        h.store.drop("k");
    h.pass(2s);
    CHECK(end.state() == "done");
    CHECK(h.names == (where == "lost" ? "acquire lost" : "acquire " + where + " release"));
    CHECK_FALSE(h.store.holder("k"));
    for (auto& a : answers)
        CHECK(a.value() == (where != "lost"));
}

TEST_CASE("lock_hooks: one may release what was just acquired", "[lease][hooks]")
{
    hooked h;
    std::optional<asked<bool>> answer;
    h.act = [&](const std::string& name, const lock_event& e) {
        if (name == "acquire")
            answer.emplace(h.ask(h.locks.release(e.key, e.token)));
    };
    auto l = h.ask(h.locks.acquire("k", {.ttl = 1s, .renew = true}));
    h.pass();
    CHECK(answer->value());
    CHECK_FALSE(l.value().is_held());
    CHECK(h.names == "acquire release");
    h.pass(2s);
    CHECK(h.store.count(operation::extend) == 0);
}

TEST_CASE("lock_hooks: one may acquire, extend, inspect and drain", "[lease][hooks]")
{
    hooked h;
    std::optional<acquired_lock> l;
    std::optional<asked<acquired_lock>> again;
    std::optional<asked<amux::clock::time_point>> extended;
    std::optional<asked<std::optional<amux::lease_info>>> seen;
    std::optional<asked<bool>> drained;
    h.act = [&](const std::string& name, const lock_event& e) {
        if (name == "renew" && l && !extended) {
            extended.emplace(h.ask(l->extend(2s)));
            seen.emplace(h.ask(h.locks.inspect(e.key)));
        } else if (name == "lost" && !again) {
            again.emplace(h.ask(h.locks.acquire(e.key)));
        } else if (name == "release") {
            drained.emplace(h.ask(h.locks.drain(1s)));
        }
    };
    auto call = h.ask(h.locks.acquire("k", {.ttl = 1s, .renew = true}));
    h.pass();
    l.emplace(std::move(call.value()));
    h.pass(400ms);
    CHECK(extended->state() == "done");
    CHECK(seen->value()->token == l->token());
    h.store.drop("k");
    h.pass(1s);
    REQUIRE(again->state() == "done");
    again->drop();
    h.pass();
    CHECK(drained->value());
}

TEST_CASE("lock_hooks: one that blocks for a ttl makes others late, not wrong", "[lease][hooks]")
{
    hooked h;
    const std::string where = GENERATE("renew", "acquire", "error");
    bool blocked = false;
    auto other = h.ask(h.locks.acquire("other", {.ttl = 1s, .renew = true}));
    h.pass();
    h.act = [&](const std::string& name, const lock_event& e) {
        if (name == where && e.key == "k" && !std::exchange(blocked, true))
            h.loop.advance(1s);
    };
    h.store.decide = [&](const amux::testing::backend_call& call) -> std::optional<course> {
        if (where == "error" && call.op == operation::extend && call.key == "k")
            return course::fails(backend_error_kind::not_applied);
        return std::nullopt;
    };
    auto l = h.ask(h.locks.acquire("k", {.ttl = 1s, .renew = true}));
    while (!blocked)
        h.pass(1ms);
    h.pass();
    CHECK_FALSE(other.value().is_held());
    CHECK_FALSE(l.value().is_held());
    other.drop();
    l.drop();
    h.pass(100ms);
    CHECK(h.store.size() == 0);
}

TEST_CASE("lost_token: a callback may end, destroy or ask for anything", "[lease][hooks]")
{
    lease_bench b;
    std::stop_source stop;
    std::optional<acquired_lock> l{
        b.hold("k", {.ttl = 1s, .stop_margin = 100ms}, stop.get_token())};
    const int how = GENERATE(0, 1, 2, 3, 4);
    const bool early = GENERATE(false, true);
    std::optional<asked<bool>> answer;
    std::optional<asked<acquired_lock>> again;
    std::optional<asked<amux::clock::time_point>> extended;
    const std::stop_token token = l->lost_token();
    const auto callback = [&] {
        if (how == 0)
            l.reset();
        else if (how == 1)
            answer.emplace(b.ask(l->release()));
        else if (how == 2)
            again.emplace(b.ask(b.locks.acquire("k")));
        else if (how == 3)
            extended.emplace(b.ask(l->extend()));
        else
            b.loop.advance(1s); // it blocks
    };
    const std::stop_callback on_lost{token, callback};
    if (early)
        stop.request_stop();
    else
        b.pass(888ms);
    b.pass();
    CHECK(token.stop_requested());
    switch (how) {
        case 0:
            CHECK(b.log.names() == (early ? "acquire lost" : "acquire release"));
            break;
        case 1:
            CHECK(answer->value() == !early);
            CHECK(b.log.names() == (early ? "acquire lost" : "acquire release"));
            break;
        case 2:
            b.pass(1s);
            CHECK(again->state() == "done");
            break;
        case 3:
            CHECK(extended->state() == (early ? "ended" : "done"));
            break;
        default:
            b.pass();
            CHECK(b.log.names() == "acquire lost");
    }
}

TEST_CASE("lock_hooks: the lock may be destroyed in its last hook", "[lease][hooks]")
{
    amux::manual_event_loop loop;
    amux::testing::scripted_backend store{loop};
    std::unique_ptr<amux::distributed_lock<amux::testing::scripted_backend&>> locks;
    amux::lock_hooks hooks;
    hooks.on_release = [&](const lock_event&) { locks = nullptr; };
    locks = std::make_unique<amux::distributed_lock<amux::testing::scripted_backend&>>(
        store, loop, amux::distributed_lock_options{}, hooks);
    asked l{loop, locks->acquire("k")};
    loop.run_ready();
    l.drop();
    loop.run_ready();
    CHECK(locks == nullptr);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a request may be handled without its lock, answered wrongly when there is none, or leave a lease behind.
#include <amux/web.hpp>

#include "support/lease_bench.hpp"

#include <amux/distributed_lock.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

using namespace std::chrono_literals;
using amux::hold_for_request;
using amux::web_hold;
using support::asked;
using support::lease_bench;
using course = lease_bench::course;
using operation = lease_bench::operation;

namespace {

/// A request of a server that nobody knows.
struct web_request {
    std::string account;
    std::string_view text() const { return account; }
};

std::string account_of(const web_request& r)
{
    return "payments:" + r.account;
}

std::string strict(const web_request& r)
{
    if (r.account == "?")
        throw std::out_of_range{"no account"};
    return r.account;
}

std::optional<std::string> unless_reading(const web_request& r)
{
    if (r.account == "read")
        return {};
    return r.account;
}

// g++ 12 destroys twice what is braced inside a co_await expression.
static_assert(std::is_trivially_copyable_v<amux::web_lock_options>);
// Whoever moved it out would leave a hold that knows nothing of its lease.
static_assert(
    std::is_same_v<decltype(std::declval<web_hold&>().lease()), const amux::acquired_lock*>);

template <class Lock>
asked<web_hold> begin(lease_bench& b, const Lock& lock, std::string account,
                      std::stop_token closed = {})
{
    auto a = b.ask(lock.begin(web_request{std::move(account)}, std::move(closed)));
    b.pass();
    return a;
}

std::string status_line(const amux::web_answer& a)
{
    return std::to_string(a.status) + " retry " + std::to_string(a.retry_after.count());
}

std::string told_by_hook;
void say_conflict(amux::web_answer& a, amux::web_refusal why, const std::exception_ptr& cause)
{
    told_by_hook = cause ? support::error_text(cause) : "nothing was thrown";
    if (why == amux::web_refusal::busy)
        a = {409, "text/plain", "later", 7s};
}
void fail_to_log(amux::web_answer& a, amux::web_refusal /*why*/,
                 const std::exception_ptr& /*cause*/)
{
    a.status = 200;
    throw std::runtime_error{"the disk is full"};
}
void say_422(amux::web_answer& a, amux::web_refusal /*why*/, const std::exception_ptr& /*cause*/)
{
    a.status = 422;
}

} // namespace

TEST_CASE("web: the lease is taken before the handler, and given back once", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, account_of, {.lease = {.ttl = 10s}});
    auto first = begin(b, lock, "7");
    REQUIRE(first.state() == "done");
    web_hold hold = std::move(first.value());
    REQUIRE(hold);
    CHECK(hold.is_held());
    CHECK(hold.lease()->key() == "payments:7");
    CHECK(b.store.holder("payments:7") == hold.lease()->token());

    hold.give_back();
    hold.give_back();
    b.pass();
    CHECK_FALSE(hold.is_held());
    CHECK(hold.lease() == nullptr);
    CHECK_FALSE(hold.is_lost());
    CHECK(b.store.size() == 0);
    CHECK(b.log.names() == "acquire release");
}

TEST_CASE("web: a hold that is dropped gives the lease back", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, account_of);
    {
        auto first = begin(b, lock, "7");
        const web_hold hold = std::move(first.value());
        CHECK(b.store.size() == 1);
    }
    b.pass();
    CHECK(b.store.size() == 0);
}

TEST_CASE("web: a hold that a handler moves away is given back by the end of the response", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, account_of);
    auto first = begin(b, lock, "7");
    web_hold& hold = first.value(); // what the server keeps
    const web_hold moved = std::move(hold);
    CHECK(moved.is_held());
    CHECK(hold.is_held()); // NOLINT(bugprone-use-after-move): what this is about
    CHECK(hold.lease() == nullptr);
    CHECK_FALSE(hold.is_lost());
    hold.give_back();
    b.pass();
    CHECK_FALSE(moved.is_held());
    CHECK_FALSE(moved.is_lost());
    CHECK(b.store.size() == 0);
    CHECK(b.log.names() == "acquire release");
}

TEST_CASE("web: requests with the same key wait for each other, others do not", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, account_of);
    auto first = begin(b, lock, "7");
    auto second = begin(b, lock, "7");
    auto other = begin(b, lock, "8");
    CHECK(other.state() == "done");
    CHECK(second.state() == "waits");
    first.value().give_back();
    b.pass();
    REQUIRE(second.state() == "done");
    CHECK(second.value().is_held());
}

TEST_CASE("web: one that does not wait is refused with 423, or 409 by option", "[web]")
{
    lease_bench b;
    const int status = GENERATE(423, 409, 429, 418);
    const auto lock =
        hold_for_request(b.locks, "one", {.wait = false, .busy_status = status, .retry_after = 3s});
    auto first = begin(b, lock, "");
    CHECK(first.value().is_held());
    auto second = begin(b, lock, "");
    REQUIRE_FALSE(second.value());
    CHECK(status_line(second.value().answer()) == std::to_string(status) + " retry 3");
    CHECK(second.value().answer().content_type == "application/problem+json");
    CHECK(second.value().lease() == nullptr);
}

TEST_CASE("web: the answer is a problem document that says no more than it must", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, "secret", {.wait = false});
    auto first = begin(b, lock, "");
    auto second = begin(b, lock, "");
    CHECK(second.value().answer().body ==
          "{\"title\":\"Locked\",\"status\":423,"
          "\"detail\":\"Another request for the same thing is being handled.\"}\n");
}

TEST_CASE("web: a wait that takes too long is answered with 503", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, account_of, {.lease = {.max_wait = 2s}});
    auto first = begin(b, lock, "7");
    auto second = begin(b, lock, "7");
    b.pass_slowly(3s);
    REQUIRE(second.state() == "done");
    REQUIRE_FALSE(second.value());
    CHECK(status_line(second.value().answer()) == "503 retry 1");
    CHECK(second.value().answer().body.find("Other requests") != std::string::npos);
    CHECK(first.value().is_held());
}

TEST_CASE("web: a store in trouble is answered with 503", "[web]")
{
    lease_bench b;
    const auto kind =
        GENERATE(amux::backend_error_kind::permanent, amux::backend_error_kind::not_applied);
    const bool passes = kind != amux::backend_error_kind::permanent;
    const auto lock =
        hold_for_request(b.locks, account_of, {.wait = false, .on_refusal = &say_conflict});
    b.store.next(operation::acquire, course::fails(kind));
    auto first = begin(b, lock, "7");
    REQUIRE_FALSE(first.value());
    CHECK(status_line(first.value().answer()) == (passes ? "503 retry 1" : "503 retry 0"));
    CHECK(told_by_hook.find("payments:7") != std::string::npos);
}

TEST_CASE("web: who waits while the store is in trouble is told of that, not of others", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, account_of, {.lease = {.max_wait = 2s}});
    b.store.always(operation::acquire, course::fails(amux::backend_error_kind::not_applied));
    auto first = begin(b, lock, "7");
    auto behind = begin(b, lock, "7"); // asks nothing, while the first does
    b.pass_slowly(3s);
    for (auto* one : {&first, &behind}) {
        REQUIRE(one->state() == "done");
        CHECK(status_line(one->value().answer()) == "503 retry 1");
        CHECK(one->value().answer().body.find("The store of locks") != std::string::npos);
    }
}

TEST_CASE("web: a key function that throws or gives nothing is answered with 400", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, strict);
    const std::string account = GENERATE("?", "");
    auto first = begin(b, lock, account);
    REQUIRE_FALSE(first.value());
    CHECK(status_line(first.value().answer()) == "400 retry 0");
    CHECK(b.store.calls().empty());
    CHECK_THROWS_AS(hold_for_request(b.locks, ""), std::invalid_argument);
}

TEST_CASE("web: a key function gives any text, and may be a pointer to a member", "[web]")
{
    lease_bench b;
    const web_request r{"7"};
    const auto key_of = [&](auto key_function) {
        auto first = b.ask(hold_for_request(b.locks, key_function).begin(r));
        b.pass();
        const amux::acquired_lock* const lease = first.value().lease();
        return first.value() ? lease ? lease->key() : "no lock" : "refused";
    };
    CHECK(key_of(&web_request::account) == "7");
    CHECK(key_of(&web_request::text) == "7");
    CHECK(key_of([](const web_request& q) { return q.text(); }) == "7");
    CHECK(key_of([](web_request q) { return q.account; }) == "7");
    CHECK(key_of([](const web_request&) { return "8"; }) == "8");
    CHECK(key_of([](const web_request&) { return static_cast<const char*>(nullptr); }) ==
          "refused");
    CHECK(key_of([](const web_request& q) { return std::optional{q.text()}; }) == "7");
    CHECK(key_of([](const web_request&) { return std::optional<std::string_view>{}; }) ==
          "no lock");
}

template <class T>
constexpr bool may_be_key = amux::detail::request_key<T>;

TEST_CASE("web: a pointer that may be null is no key, so that none runs unlocked by mistake",
          "[web]")
{
    CHECK(may_be_key<std::string>);
    CHECK(may_be_key<std::optional<std::string_view>>);
    CHECK_FALSE(may_be_key<const std::string*>);
    CHECK_FALSE(may_be_key<std::optional<int>>);
}

TEST_CASE("web: a request that needs no lock runs without one", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, unless_reading);
    auto first = begin(b, lock, "read");
    REQUIRE(first.value());
    CHECK(first.value().lease() == nullptr);
    CHECK_FALSE(first.value().is_held());
    CHECK_FALSE(first.value().lost_token().stop_possible());
    CHECK_FALSE(first.value().is_lost());
    CHECK(b.store.calls().empty());
    CHECK(begin(b, lock, "write").value().is_held());
}

TEST_CASE("web: a client that goes while it waits leaves the line", "[web]")
{
    lease_bench b;
    const bool at_once = GENERATE(false, true);
    const auto lock = hold_for_request(b.locks, account_of, {.release_on_close = at_once});
    std::stop_source closed;
    auto first = begin(b, lock, "7");
    auto second = begin(b, lock, "7", closed.get_token());
    auto third = begin(b, lock, "7");
    closed.request_stop();
    b.pass();
    REQUIRE(second.state() == "done");
    CHECK_FALSE(second.value());
    CHECK(second.value().answer().status == 503);
    first.value().give_back();
    b.pass();
    CHECK(third.value().is_held());
}

TEST_CASE("web: a client that has gone is not served", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, account_of);
    std::stop_source closed;
    b.store.next(operation::acquire, course::held());
    auto first = begin(b, lock, "7", closed.get_token());
    b.store.answer(1);
    closed.request_stop(); // before the grant is looked at
    b.pass();
    REQUIRE(first.state() == "done");
    CHECK_FALSE(first.value());
    b.pass_slowly(1s);
    CHECK(b.store.size() == 0);
}

TEST_CASE("web: a client that goes between the grant and the handler is not served", "[web]")
{
    lease_bench b;
    amux::manual_event_loop here; // where the request is served
    const auto lock = hold_for_request(b.locks, account_of);
    std::stop_source closed;
    asked<web_hold> first{here, lock.begin(web_request{"7"}, closed.get_token())};
    here.run_ready();
    b.pass();
    REQUIRE(b.store.size() == 1);
    closed.request_stop();
    here.run_ready();
    REQUIRE(first.state() == "done");
    CHECK_FALSE(first.value());
    b.pass();
    CHECK(b.store.size() == 0);
}

TEST_CASE("web: a client that goes while the handler works ends no lease, unless told to", "[web]")
{
    lease_bench b;
    const bool at_once = GENERATE(false, true);
    const auto lock = hold_for_request(b.locks, account_of, {.release_on_close = at_once});
    std::stop_source closed;
    auto first = begin(b, lock, "7", closed.get_token());
    auto& hold = first.value();
    const auto lost = hold.lost_token();
    closed.request_stop();
    b.pass();
    CHECK(hold.closed_token().stop_requested());
    CHECK(hold.is_held() == !at_once);
    CHECK(lost.stop_requested() == at_once);
    CHECK(b.store.size() == (at_once ? 0 : 1));
    hold.give_back();
    b.pass();
    CHECK(b.store.size() == 0);
}

TEST_CASE("web: a lease that is lost is told to the handler, and answered with 500", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, account_of, {.lease = {.ttl = 1s}});
    auto first = begin(b, lock, "7");
    auto& hold = first.value();
    CHECK_FALSE(hold.is_lost());
    b.pass_slowly(2s);
    CHECK(hold.lost_token().stop_requested());
    CHECK_FALSE(hold.is_held());
    CHECK(hold.is_lost());
    CHECK(status_line(hold.loss()) == "500 retry 0");
}

TEST_CASE("web: a lease that the handler has given back itself is not lost", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, account_of);
    auto first = begin(b, lock, "7");
    auto& hold = first.value();
    auto released = b.ask(hold.lease()->release());
    b.pass();
    CHECK(released.state() == "done");
    CHECK_FALSE(hold.is_lost());
    CHECK_FALSE(hold.is_held());
}

TEST_CASE("web: a lease that somebody takes away by its token is lost", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, account_of, {.lease = {.renew = true}});
    auto first = begin(b, lock, "7");
    auto& hold = first.value();
    auto taken = b.ask(b.locks.release("payments:7", hold.lease()->token()));
    b.pass();
    CHECK(taken.value());
    CHECK(hold.lost_token().stop_requested());
    CHECK_FALSE(hold.is_held());
    CHECK(hold.is_lost());
}

TEST_CASE("web: draining answers those who wait, and leaves those who work", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, account_of);
    auto first = begin(b, lock, "7");
    auto second = begin(b, lock, "7");
    auto drained = b.ask(b.locks.drain(5s));
    b.pass();
    REQUIRE_FALSE(second.value());
    CHECK(status_line(second.value().answer()) == "503 retry 1");
    CHECK(first.value().is_held());
    auto third = begin(b, lock, "8");
    CHECK_FALSE(third.value());
    CHECK(drained.state() == "done");
}

TEST_CASE("web: what a client is told can be changed", "[web]")
{
    lease_bench b;
    const auto lock =
        hold_for_request(b.locks, "one", {.wait = false, .on_refusal = &say_conflict});
    auto first = begin(b, lock, "");
    auto second = begin(b, lock, "");
    CHECK(status_line(second.value().answer()) == "409 retry 7");
    CHECK(second.value().answer().body == "later");
    CHECK(second.value().answer().content_type == "text/plain");
    CHECK(told_by_hook == "nothing was thrown");
}

TEST_CASE("web: the document says the status that was put in its place", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, strict, {.on_refusal = &say_422});
    auto first = begin(b, lock, "");
    CHECK(first.value().answer().status == 422);
    CHECK(first.value().answer().body.find("\"status\":422") != std::string::npos);
}

TEST_CASE("web: a function that throws when it is told of a refusal changes nothing", "[web]")
{
    lease_bench b;
    const auto lock = hold_for_request(b.locks, strict, {.on_refusal = &fail_to_log});
    auto first = begin(b, lock, "");
    REQUIRE(first.state() == "done");
    CHECK(status_line(first.value().answer()) == "400 retry 0");
    auto second = begin(b, lock, "7");
    CHECK(second.value().loss().status == 500);
}

TEST_CASE("web: the metadata of the options need not outlive the call", "[web]")
{
    lease_bench b;
    std::string machine = "the machine in the third rack from the left";
    const auto lock = hold_for_request(b.locks, account_of, {.lease = {.metadata = machine}});
    const std::string kept = machine;
    machine.assign(machine.size(), 'x'); // as a temporary that is gone, but for certain
    auto first = begin(b, lock, "7");
    CHECK(first.value().lease()->metadata() == kept);
}

TEST_CASE("web: options of the lease that cannot be are told before any request comes", "[web]")
{
    lease_bench b;
    CHECK_THROWS_AS(hold_for_request(b.locks, "one", {.lease = {.ttl = 1ms}}),
                    std::invalid_argument);
    CHECK_THROWS_AS(hold_for_request(b.locks, account_of, {.lease = {.max_wait = -1ms}}),
                    std::invalid_argument);
    CHECK(b.store.calls().empty());
}

TEST_CASE("web: a busy answer that no client would take for a refusal cannot be asked for", "[web]")
{
    lease_bench b;
    const int status = GENERATE(-1, 0, 200, 304, 399, 600);
    CHECK_THROWS_AS(hold_for_request(b.locks, "one", {.busy_status = status}),
                    std::invalid_argument);
    CHECK_THROWS_AS(hold_for_request(b.locks, account_of, {.retry_after = -1s}),
                    std::invalid_argument);
    CHECK_NOTHROW(hold_for_request(b.locks, "one", {.busy_status = 599, .retry_after = 0s}));
}

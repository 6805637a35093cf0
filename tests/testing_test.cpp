// SPDX-License-Identifier: BSL-1.0
// Without this file what tests leases may itself be wrong: a suite that cannot fail, a store that ignores its script.
#include <amux/manual_event_loop.hpp>
#include <amux/testing/conformance.hpp>
#include <amux/testing/history.hpp>
#include <amux/testing/scripted_backend.hpp>

#include "support/broken_backend.hpp"
#include "support/death.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using namespace amux::testing;
using amux::manual_event_loop;

namespace {

/// What a call has come to, and when.
struct heard {
    std::string what = "nothing";
    std::chrono::milliseconds at{-1};
};

template <class Call>
amux::task<> hear(manual_event_loop& loop, Call call, heard& out)
{
    std::string what;
    try {
        const auto answer = co_await std::move(call);
        if constexpr (std::is_same_v<decltype(answer), const bool>)
            what = answer ? "yes" : "no";
        else
            what = answer.acquired ? "yes" : "no";
    } catch (const amux::backend_error& e) {
        what = to_string(e.kind());
    } catch (const std::exception& e) {
        what = e.what();
    }
    out = {what,
           std::chrono::duration_cast<std::chrono::milliseconds>(loop.now().time_since_epoch())};
}

struct bench {
    manual_event_loop loop;
    scripted_backend store{loop};

    void acquire(heard& out, const std::string& key = "k", const std::string& token = "t")
    {
        loop.spawn(hear(loop, store.acquire(key, token, 10s), out));
        loop.run_ready();
    }
    void pass(int steps)
    {
        for (; steps > 0; --steps) {
            loop.advance(1ms);
            loop.run_ready();
        }
    }
};

std::vector<std::string> failed(const std::vector<conformance_result>& results)
{
    std::vector<std::string> names;
    for (const auto& r : results) {
        if (!r.ok)
            names.push_back(r.name + ": " + r.message);
    }
    return names;
}

std::string faults_of(const std::string& lines, bool complete = true)
{
    history h;
    if (h.add_lines(lines) != 0)
        return "not understood";
    std::string text;
    for (const auto& f : h.faults(complete))
        text += f.substr(0, f.find(':')) + "; ";
    return text;
}

} // namespace

TEST_CASE("scripted_backend: each course acts and answers when it says", "[testing]")
{
    struct row {
        course way;
        int acts; // ms; -1: never
        int answers;
        std::string what;
    };
    const auto odd = std::make_exception_ptr(std::runtime_error{"odd"});
    const auto refused = amux::backend_error_kind::not_applied;
    const row r = GENERATE_COPY(
        row{course::at_once(), 0, 0, "yes"}, row{course::late(5ms), 0, 5, "yes"},
        row{course::slow(3ms, 4ms), 3, 7, "yes"}, row{course::fails(refused), -1, 0, "not applied"},
        row{course::fails(refused, 6ms), -1, 6, "not applied"},
        row{course::throws(odd), -1, 0, "odd"}, row{course::loses_reply(), 0, 0, "indeterminate"},
        row{course::loses_reply(8ms), 0, 8, "indeterminate"},
        row{course::is_silent(9ms), -1, 9, "indeterminate"},
        row{course::acts_late(7ms, 2ms), 7, 2, "indeterminate"},
        row{course::acts_late(2ms, 7ms), 2, 7, "indeterminate"});
    bench b;
    b.store.next(operation::acquire, r.way);
    heard out;
    b.acquire(out);
    for (int now = 0; now < 15; ++now) {
        CAPTURE(now, r.what);
        CHECK((out.what != "nothing") == (now >= r.answers));
        CHECK(b.store.holder("k").has_value() == (r.acts >= 0 && now >= r.acts));
        b.pass(1);
    }
    CHECK(out.what == r.what);
    CHECK(out.at == std::chrono::milliseconds{r.answers});
    const backend_call& c = b.store.calls().at(0);
    CHECK(c.acted.has_value() == (r.acts >= 0));
    CHECK(c.answered.has_value());
    CHECK(b.store.in_flight() == 0);
}

TEST_CASE("scripted_backend: a call that is held goes as the test says", "[testing]")
{
    bench b;
    b.store.always(operation::acquire, course::held());
    heard out;
    b.acquire(out);
    b.pass(10'000);
    CHECK(out.what == "nothing");
    CHECK(b.store.in_flight() == 1);
    const auto number = b.store.oldest_in_flight(operation::acquire);
    SECTION("answered")
    {
        b.store.answer(number);
        CHECK(out.what == "yes");
        CHECK(b.store.holder("k") == "t");
    }
    SECTION("carried out, then answered")
    {
        b.store.act(number);
        CHECK(out.what == "nothing");
        b.store.drop("k");
        b.store.answer(number);
        CHECK(out.what == "yes");
        CHECK(b.store.holder("k") == std::nullopt);
    }
    SECTION("failed")
    {
        b.store.fail(number, std::make_exception_ptr(std::runtime_error{"trouble"}));
        CHECK(out.what == "trouble");
        CHECK(b.store.holder("k") == std::nullopt);
    }
    CHECK(b.store.in_flight() == 0);
    CHECK(b.store.oldest_in_flight(operation::acquire) == 0);
}

TEST_CASE("scripted_backend: to end a call twice ends the program with a message", "[testing]")
{
    const auto text = support::death_of([] {
        bench b;
        b.store.always(operation::acquire, course::held());
        heard out;
        b.acquire(out);
        const auto number = b.store.oldest_in_flight(operation::acquire);
        b.store.answer(number);
        b.store.answer(number);
    });
    CHECK(text.find("told to end a call that is not in flight") != text.npos);
    const auto later = support::death_of([] {
        bench b;
        b.store.next(operation::acquire, course::acts_late(50ms, 5ms));
        heard out;
        b.acquire(out);
        const auto number = b.store.oldest_in_flight(operation::acquire);
        b.pass(10); // its caller has given up, it is still to be carried out
        b.store.answer(number);
    });
    CHECK(later == text);
}

TEST_CASE("scripted_backend: its calls have names", "[testing]")
{
    CHECK(std::string{to_string(operation::acquire)} == "acquire");
    CHECK(std::string{to_string(operation::wait)} == "wait");
}

TEST_CASE("scripted_backend: answers may come in another order than requests", "[testing]")
{
    bench b;
    b.store.next(operation::acquire, course::slow(5ms, 5ms));
    heard first;
    heard second;
    b.acquire(first, "k", "one");
    b.acquire(second, "k", "two");
    CHECK(second.what == "yes");
    b.pass(20);
    CHECK(first.what == "no");
}

TEST_CASE("scripted_backend: `next` goes before `decide`, and that before `always`", "[testing]")
{
    bench b;
    b.store.always(operation::acquire, course::fails(amux::backend_error_kind::permanent));
    b.store.next(operation::acquire, course::at_once());
    b.store.next(operation::release, course::at_once());
    b.store.decide = [](const backend_call& c) -> std::optional<course> {
        if (c.number == 2)
            return course::fails(amux::backend_error_kind::not_applied);
        return std::nullopt;
    };
    heard out[3];
    for (auto& o : out)
        b.acquire(o);
    CHECK(out[0].what == "yes");
    CHECK(out[1].what == "not applied");
    CHECK(out[2].what == "permanent");
}

TEST_CASE("scripted_backend: the log tells every call, and may be cut", "[testing]")
{
    bench b;
    heard out;
    b.pass(3);
    b.acquire(out);
    b.store.release("k", "t");
    b.store.get("other");
    REQUIRE(b.store.calls().size() == 3);
    CHECK(b.store.calls()[0].ttl == 10s);
    CHECK(b.store.calls()[0].at == b.loop.now());
    CHECK(b.store.calls()[1].op == operation::release);
    CHECK(b.store.calls()[1].token == "t");
    CHECK(b.store.calls()[2].key == "other");
    b.store.next(operation::acquire, course::late(1ms));
    b.acquire(out);
    b.store.forget_calls();
    b.pass(1); // an answer to a call that was forgotten
    b.acquire(out);
    CHECK(b.store.calls().size() == 1);
    b.store.keep_no_log();
    b.acquire(out);
    CHECK(b.store.calls().empty());
    CHECK(b.store.count(operation::acquire) == 4);
    CHECK(b.store.count() == 6);
}

TEST_CASE("scripted_backend: the store may lose a lease, or give it to a stranger", "[testing]")
{
    bench b;
    heard out;
    b.acquire(out);
    b.store.usurp("k", "stranger", 20ms);
    CHECK(b.store.holder("k") == "stranger");
    b.pass(20);
    CHECK(b.store.size() == 0);
    b.acquire(out);
    b.store.drop("k");
    b.store.drop("k");
    CHECK(b.store.size() == 0);
}

TEST_CASE("scripted_backend: a request outlives who asked, and the store", "[testing]")
{
    manual_event_loop loop;
    std::optional<scripted_backend> store{std::in_place, loop};
    heard out;
    SECTION("the caller goes")
    {
        store->next(operation::acquire, course::slow(5ms, 5ms));
        {
            const auto unheard = store->acquire("k", "t", 1s);
        }
        loop.advance(20ms);
        loop.run_ready();
        CHECK(store->holder("k") == "t");
    }
    SECTION("both go, and the store has answered already")
    {
        store->next(operation::acquire, course::acts_late(50ms, 5ms));
        loop.spawn(hear(loop, store->acquire("k", "t", 1s), out));
        loop.run_ready();
        loop.advance(10ms);
        loop.run_ready();
        CHECK(out.what == "indeterminate");
        CHECK(store->in_flight() == 0);
        CHECK(store->oldest_in_flight(operation::acquire) == 0);
        store.reset();
        loop.advance(100ms);
        loop.run_ready();
    }
    SECTION("the store goes")
    {
        store->always(operation::acquire, course::slow(5ms, 5ms));
        loop.spawn(hear(loop, store->acquire("k", "t", 1s), out));
        loop.run_ready();
        store.reset();
        CHECK(out.what == "indeterminate");
        loop.advance(20ms);
        loop.run_ready();
    }
}

TEST_CASE("scripted_backend: hints may be late, fail, or not come", "[testing]")
{
    bench b;
    b.store.usurp("k", "t", 1h);
    heard out;
    std::stop_source stop;
    const auto wait = [&](course way) {
        b.store.next(operation::wait, std::move(way));
        b.loop.spawn([](bench& self, heard& told, std::stop_token s) -> amux::task<> {
            std::string what = "told";
            try {
                co_await self.store.wait_for_release("k", s);
            } catch (const amux::backend_error&) {
                what = "trouble";
            }
            told = {what, std::chrono::duration_cast<std::chrono::milliseconds>(
                              self.loop.now().time_since_epoch())};
        }(b, out, stop.get_token()));
        b.loop.run_ready();
        b.pass(10);
        CHECK(out.what == "nothing");
        b.store.drop("k");
        b.loop.run_ready();
    };
    SECTION("late")
    {
        wait(course::late(5ms));
        b.pass(20);
        CHECK(out.what == "told");
        CHECK(out.at == 15ms);
    }
    SECTION("fails")
    {
        wait(course::fails(amux::backend_error_kind::not_applied, 12ms));
        b.pass(20);
        CHECK(out.what == "trouble");
        CHECK(out.at == 12ms);
    }
    SECTION("never")
    {
        wait(course::held());
        b.pass(10'000);
        CHECK(out.what == "nothing");
        stop.request_stop();
        b.loop.run_ready();
        CHECK(out.what == "told");
    }
}

TEST_CASE("run_conformance: good backends pass, with all refinements and with none",
          "[testing][conformance]")
{
    manual_event_loop loop;
    scripted_backend all{loop};
    const auto full = run_conformance(all, in_virtual_time(loop));
    CHECK(failed(full).empty());
    plain_scripted_backend four{all};
    const auto plain = run_conformance(four, in_virtual_time(loop));
    CHECK(failed(plain).empty());
    CHECK(plain.size() == 13);
    CHECK(full.size() == 21);
    support::broken_backend sound{support::mistake::none, loop};
    CHECK(failed(run_conformance(sound, in_virtual_time(loop))).empty());
}

TEST_CASE("run_conformance: every mistake is found", "[testing][conformance]")
{
    const int number = GENERATE(range(1, support::mistakes));
    CAPTURE(number);
    manual_event_loop loop;
    support::broken_backend backend{static_cast<support::mistake>(number), loop};
    const auto bad = failed(run_conformance(backend, in_virtual_time(loop)));
    REQUIRE(!bad.empty());
    CHECK(bad.front().find(": ") + 2 < bad.front().size()); // it says what was expected
}

namespace {

/// Keeps no law: each operation throws what is no exception.
struct rude_backend {
    amux::task<bool> acquire(std::string_view, std::string_view, std::chrono::milliseconds)
    {
        throw 7;
        co_return false;
    }
    amux::task<bool> extend(std::string_view, std::string_view, std::chrono::milliseconds)
    {
        throw 7;
        co_return false;
    }
    amux::task<bool> release(std::string_view, std::string_view)
    {
        throw 7;
        co_return false;
    }
    amux::task<std::optional<std::string>> get(std::string_view)
    {
        throw 7;
        co_return std::nullopt;
    }
};

} // namespace

TEST_CASE("run_conformance: what is thrown is a failed case, whatever it is",
          "[testing][conformance]")
{
    manual_event_loop loop;
    rude_backend backend;
    const auto results = run_conformance(backend, in_virtual_time(loop));
    REQUIRE(!results.empty());
    for (const auto& r : results) {
        CHECK_FALSE(r.ok);
        CHECK(r.message == "something was thrown");
    }
}

TEST_CASE("history: a line is read as it was written", "[testing][history]")
{
    const std::string line =
        GENERATE("asked 5 p k 1.2", "granted 1200 p1 key c fence 18446744073709551615 until 77",
                 "granted -5 p k c until 9", "believes 7 p k c until 3", "ended 8 p k c",
                 "failed 9 p k c", "died 10 p");
    const auto e = history::from_line(line);
    REQUIRE(e);
    CHECK(history::to_line(*e) == line);
    CHECK(history::from_line("  " + line + " \r"));
    const std::string bad =
        GENERATE("", "granted 1 p k c", "asked x p k c", "asked 1 p k", "seen 1 p k c",
                 "ended 1x p k c", "died 1 p k", "granted 1 p k c until soon");
    CHECK_FALSE(history::from_line(bad));
    history h;
    CHECK(h.add_lines(line + "\n\nnonsense\n" + line) == 1);
    CHECK(h.size() == 2);
}

TEST_CASE("history: a word that is not known yet is passed over, with its number",
          "[testing][history]")
{
    const auto e = history::from_line("granted 1 p k c colour 3 until 9");
    REQUIRE(e);
    CHECK(history::to_line(*e) == "granted 1 p k c until 9");
}

TEST_CASE("history: nothing is found where nothing is wrong", "[testing][history]")
{
    CHECK(faults_of("").empty());
    CHECK(faults_of("asked 0 a k 1 \n granted 1 a k 1 fence 1 until 10 \n asked 2 b k 1 \n"
                    "ended 5 a k 1 \n granted 5 b k 1 fence 2 until 15 \n ended 30 b k 1 \n"
                    "asked 16 a k 2 \n granted 16 a k 2 fence 9 until 20 \n died 17 a \n"
                    "asked 18 b k 2 \n failed 40 b k 2")
              .empty());
    // A longer belief that was given up in time, and a shorter one after an extend.
    CHECK(faults_of("asked 0 a k 1 \n granted 0 a k 1 until 10 \n believes 9 a k 1 until 30 \n"
                    "believes 12 a k 1 until 20 \n asked 1 b k 1 \n granted 20 b k 1 until 25 \n"
                    "ended 26 b k 1 \n ended 40 a k 1")
              .empty());
    CHECK(faults_of("asked 0 a k 1 \n granted 0 a k 1 until 10 \n"
                    "asked 0 a other 1 \n granted 0 a other 1 until 10",
                    false)
              .empty());
}

TEST_CASE("history: every fault is found", "[testing][history]")
{
    const std::string two = "asked 0 a k 1 \n asked 0 b k 1 \n granted 1 a k 1 fence 1 until 10 \n";
    CHECK(faults_of(two + "granted 9 b k 1 fence 2 until 20 \n ended 9 b k 1", false).empty());
    CHECK(faults_of(two + "granted 9 b k 1 fence 2 until 20 \n ended 11 a k 1 \n ended 12 b k 1") ==
          "a's call 1 for k and b's call 1 for k believe at once; ");
    CHECK(faults_of(two + "believes 9 a k 1 until 12 \n granted 11 b k 1 until 20", false) ==
          "a's call 1 for k and b's call 1 for k believe at once; ");
    CHECK(faults_of(two + "ended 2 a k 1 \n granted 3 b k 1 fence 1 until 20", false) ==
          "b's call 1 for k has a fence not above that of a's call 1 for k, which was granted "
          "before; ");
    CHECK(faults_of("asked 0 a k 1") == "a's call 1 for k never ends; ");
    CHECK(faults_of("granted 0 a k 1 until 2", false) == "a's call 1 for k was never asked; ");
    CHECK(faults_of("asked 0 a k 1 \n asked 1 a k 1", false) ==
          "a's call 1 for k is asked twice; ");
    CHECK(faults_of("asked 0 a k 1 \n ended 1 a k 1") == "a's call 1 for k ends without a grant; ");
    CHECK(faults_of("asked 0 a k 1 \n failed 1 a k 1 \n failed 2 a k 1") ==
          "a's call 1 for k ends twice; ");
    CHECK(faults_of(two + "granted 2 a k 1 until 10", false) ==
          "a's call 1 for k is granted twice; ");
    CHECK(faults_of(two + "failed 2 a k 1", false) == "a's call 1 for k fails after its grant; ");
    CHECK(faults_of(two + "ended 2 a k 1 \n believes 3 a k 1 until 9", false) ==
          "a's call 1 for k goes on after its end; ");
    CHECK(faults_of(two + "ended 2 a k 1 \n granted 3 a k 1 until 9", false) ==
          "a's call 1 for k goes on after its end; ");
    CHECK(faults_of(two + "believes 11 a k 1 until 19", false) ==
          "a's call 1 for k believes again after its time was up; ");
    CHECK(faults_of("asked 0 a k 1 \n believes 1 a k 1 until 9", false) ==
          "a's call 1 for k believes without a grant; ");
}

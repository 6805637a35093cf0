// SPDX-License-Identifier: BSL-1.0
// Without this file the figures that an operator is alarmed by may be anything.
#include "../examples/prometheus/text.hpp"
#include "support/allocation_counter.hpp"
#include "support/request.hpp"
#include "support/virtual_clock.hpp"

#include <amux/asyncmux.hpp>
#include <amux/counting.hpp>
#include <amux/lease_counters.hpp>
#include <amux/manual_event_loop.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <regex>
#include <set>
#include <sstream>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
using support::request;
using support::virtual_clock;

namespace {

template <class Threading>
using counted_mux = amux::asyncmux<std::string, amux::counting<Threading, virtual_clock>>;

/// Is told of everything, and defines only what it must.
struct plain_observer {
    int told = 0;
    void on_wait(const amux::lock_observation&) noexcept { ++told; }
    void on_grant(const amux::lock_observation&) noexcept { ++told; }
    void on_release(const amux::lock_observation&) noexcept { ++told; }
};
struct observed : amux::multi_threaded {
    using observer = plain_observer;
};

/// Is told of those who leave, too.
struct leaving_observer : plain_observer {
    int left = 0;
    void on_leave(const amux::lock_observation&) noexcept { ++left; }
};
struct observed_leaving : amux::multi_threaded {
    using observer = leaving_observer;
};

/// Every other exchange fails, as if another thread had been quicker.
struct contended : amux::single_threaded {
    template <class T>
    struct atomic : amux::detail::plain<T> {
        using amux::detail::plain<T>::plain;
        bool compare_exchange_weak(T& expected, T desired, std::memory_order order) noexcept
        {
            fails = !fails;
            if (!fails)
                return amux::detail::plain<T>::compare_exchange_weak(expected, desired, order);
            expected = this->load();
            return false;
        }
        bool fails = false;
    };
};

/// Of the two coroutines, that is.
template <class Mux>
std::size_t allocations_of_a_wait()
{
    Mux mux;
    static_cast<void>(mux.try_lock(1));
    const std::size_t before = support::allocations();
    request a{mux.lock(1)};
    request b{mux.lock(1)};
    return support::allocations() - before;
}

/// The names that are given, when `text` is what the format allows and no more; else empty, and why.
std::set<std::string> strictly_parsed(const std::string& text)
{
    static const std::regex help{R"(# HELP (amux_[a-z_]+) (?:[^\\\n]|\\\\|\\n)+)"};
    static const std::regex type{R"(# TYPE (amux_[a-z_]+) (counter|gauge))"};
    static const std::regex sample{
        R"re((amux_[a-z_]+)\{[a-z_]+="(?:[^\\"\n]|\\["n\\])*"\} [0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?)re"};
    std::set<std::string> found;
    std::string announced;
    std::string typed;
    std::istringstream lines{text};
    for (std::string line; std::getline(lines, line);) {
        std::smatch m;
        if (std::regex_match(line, m, help) && found.count(m[1]) == 0) {
            announced = m[1];
            typed.clear();
        } else if (std::regex_match(line, m, type) && m[1] == announced && typed.empty()) {
            typed = m[2];
            const bool total = announced.size() > 6 && announced.ends_with("_total");
            if (total != (typed == "counter"))
                return {};
        } else if (std::regex_match(line, m, sample) && m[1] == announced && !typed.empty()) {
            found.insert(announced);
        } else {
            UNSCOPED_INFO(line);
            return {};
        }
    }
    return text.ends_with('\n') ? found : std::set<std::string>{};
}

} // namespace

TEMPLATE_TEST_CASE("counting: grants at once, waits, grants after a wait and releases",
                   "[counting]", amux::multi_threaded, amux::single_threaded)
{
    counted_mux<TestType> mux;
    request a{mux.lock("a")};
    CHECK_FALSE(mux.try_lock("a"));
    request b{mux.lock("a")};
    request all{mux.lock_all("a", "b", "c")};
    request whole{mux.lock_shared()};
    const amux::mux_counts waiting = mux.observer().counts();
    CHECK(waiting.grants_at_once == 1);
    CHECK(waiting.waits == 3);
    CHECK(waiting.waiting() == 3);
    CHECK(waiting.held() == 1);
    a.unlock();
    b.unlock();
    all.unlock();
    whole.unlock();
    const amux::mux_counts done = mux.observer().counts();
    CHECK(done.grants_at_once == 1);
    CHECK(done.grants_after_wait == 3);
    CHECK(done.releases == 4);
    CHECK(done.waiting() == 0);
    CHECK(done.held() == 0);
    CHECK(done.waits_given_up == 0);
}

TEMPLATE_TEST_CASE("counting: a wait counts from its beginning to its end, however it ends",
                   "[counting]", amux::multi_threaded, amux::single_threaded)
{
    counted_mux<TestType> mux;
    request a{mux.lock("a")};
    std::stop_source stop;
    request stopped{mux.lock("a", stop.get_token())};
    virtual_clock::advance(2s);
    request b{mux.lock("a")};
    virtual_clock::advance(5s);
    stop.request_stop(); // after 7 s
    CHECK(mux.observer().counts().longest_wait == 7s);
    virtual_clock::advance(1s);
    a.unlock(); // b has waited for 6 s
    const amux::mux_counts c = mux.observer().counts();
    CHECK(c.longest_wait == 7s);
    CHECK(c.total_wait == 13s);
    CHECK(c.waits_given_up == 1);
    CHECK(c.grants_after_wait == 1);
    CHECK(c.waiting() == 0);
}

TEST_CASE("counting: closed, destroyed and timed out are waits given up", "[counting]")
{
    counted_mux<amux::multi_threaded> mux;
    request a{mux.lock("a")};
    {
        request destroyed{mux.lock("a")};
    }
    CHECK(mux.observer().counts().waits_given_up == 1);
    amux::manual_event_loop loop;
    request timed_out{mux.try_lock_for("a", 1s), {&loop}};
    loop.advance(1s);
    loop.run_ready();
    CHECK(mux.observer().counts().waits_given_up == 2);
    request closed{mux.lock_all("a", "b")};
    mux.close();
    CHECK(mux.observer().counts().waits_given_up == 3);
    CHECK(mux.observer().counts().waiting() == 0);
}

TEST_CASE("counting: an empty set of keys is granted, and given back at once", "[counting]")
{
    counted_mux<amux::multi_threaded> mux;
    request whole{mux.lock()};
    const std::vector<std::string> none;
    request awaited{mux.lock_all(none)};
    auto tried = mux.try_lock_all_shared(none);
    CHECK(mux.observer().counts().grants_at_once == 3);
    CHECK(mux.observer().counts().releases == 2);
    CHECK(mux.observer().counts().held() == 1);
    awaited.unlock();
    tried.unlock();
    whole.unlock();
    CHECK(mux.observer().counts().releases == 3);
    CHECK(mux.observer().counts().held() == 0);
}

TEST_CASE("counting: the observer that was there before is told as well", "[counting]")
{
    amux::asyncmux<std::string, amux::counting<observed>> mux;
    request a{mux.lock("a")};
    {
        request given_up{mux.lock("a")};
    }
    request b{mux.lock("a")};
    a.unlock();
    b.unlock();
    CHECK(mux.observer().told == 6); // two waits, two grants, two releases
    CHECK(mux.observer().counts().waits_given_up == 1);

    amux::asyncmux<std::string, amux::counting<observed_leaving>> other;
    request held{other.lock("a")};
    {
        request given_up{other.lock("a")};
    }
    CHECK(other.observer().left == 1);
}

TEST_CASE("counting: no thread takes a longest wait from another", "[counting]")
{
    counted_mux<contended> mux;
    request a{mux.lock("a")};
    request b{mux.lock("a")};
    virtual_clock::advance(3s);
    a.unlock();
    CHECK(mux.observer().counts().longest_wait == 3s);
}

TEST_CASE("counting: threads do not meet, and a mux stays small", "[counting]")
{
    std::vector<unsigned> numbers(2);
    for (unsigned& number : numbers)
        std::thread{[&number] {
            number = amux::detail::thread_number();
            if (amux::detail::thread_number() != number)
                number = 0;
        }}.join();
    numbers.push_back(amux::detail::thread_number());
    numbers.push_back(0);
    CHECK(std::set<unsigned>(numbers.begin(), numbers.end()).size() == 4);
    CHECK(sizeof(amux::counting<>::observer) == std::size_t{8} * 64);
    CHECK(sizeof(amux::counting<amux::single_threaded>::observer) == 56);
}

TEST_CASE("counting: a mux counts from its first lock on", "[counting]")
{
    // [use]
    amux::asyncmux<std::string, amux::counting<>> accounts;
    const bool free = accounts.try_lock("ann").owns_lock();
    const amux::mux_counts c = accounts.observer().counts();
    // [/use]
    CHECK(free);
    CHECK(c.grants_at_once == 1);
    CHECK(c.releases == 1);
    CHECK(amux::asyncmux<int, amux::counting<>>{}.observer().counts().grants_at_once == 0);
}

TEST_CASE("counting: allocates nothing", "[counting]")
{
    CHECK(allocations_of_a_wait<amux::asyncmux<int, amux::counting<>>>() ==
          allocations_of_a_wait<amux::asyncmux<int>>());
}

TEST_CASE("metrics: what has not counted is nothing", "[metrics]")
{
    for (const amux::metric& m : amux::mux_counts{}.metrics())
        CHECK(m.value == 0);
    for (const amux::metric& m : amux::lease_counts{}.metrics())
        CHECK(m.value == 0);
}

TEST_CASE("metrics: an exporter gets names, types and seconds that Prometheus takes", "[metrics]")
{
    amux::mux_counts c;
    c.grants_at_once = 5;
    c.grants_after_wait = 2;
    c.waits = 4;
    c.waits_given_up = 1;
    c.releases = 6;
    c.total_wait = 2500ms;
    c.longest_wait = 1500ms;
    const std::string text = prometheus::text_of<amux::mux_counts>("mux", {{"accounts", c}});
    CHECK(strictly_parsed(text).size() == 9);
    const auto says = [&text](std::string_view line) {
        return text.find("\n" + std::string{line} + "\n") != text.npos;
    };
    CHECK(says("amux_mux_grants_total{mux=\"accounts\"} 7"));
    CHECK(says("amux_mux_grants_after_wait_total{mux=\"accounts\"} 2"));
    CHECK(says("amux_mux_releases_total{mux=\"accounts\"} 6"));
    CHECK(says("amux_mux_waits_total{mux=\"accounts\"} 4"));
    CHECK(says("amux_mux_waits_given_up_total{mux=\"accounts\"} 1"));
    CHECK(says("amux_mux_wait_seconds_total{mux=\"accounts\"} 2.5"));
    CHECK(says("amux_mux_longest_wait_seconds{mux=\"accounts\"} 1.5"));
    CHECK(says("amux_mux_waiting{mux=\"accounts\"} 1"));
    CHECK(says("amux_mux_held{mux=\"accounts\"} 1"));
}

TEST_CASE("metrics: several sources share one announcement, and any name is a label", "[metrics]")
{
    amux::mux_counts many;
    many.grants_at_once = std::uint64_t{1} << 40;
    const std::string text = prometheus::text_of<amux::mux_counts>(
        "mux", {{"plain", many}, {"\"quoted\"\\\nline", many}});
    CHECK(strictly_parsed(text).size() == 9);
    CHECK(text.find("# HELP amux_mux_grants_total Locks that were granted, at once or after a "
                    "wait.\n# TYPE amux_mux_grants_total counter\n"
                    "amux_mux_grants_total{mux=\"plain\"} 1099511627776\n"
                    "amux_mux_grants_total{mux=\"\\\"quoted\\\"\\\\\\nline\"} 1099511627776\n") ==
          0);
    const std::string leases =
        prometheus::text_of<amux::lease_counts>("locks", {{"jobs", amux::lease_counts{}}});
    CHECK(strictly_parsed(text + leases).size() == 17);
    CHECK(strictly_parsed(text + text).empty());
    CHECK(strictly_parsed(text.substr(0, text.size() - 1)).empty());
}

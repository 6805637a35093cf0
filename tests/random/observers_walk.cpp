// SPDX-License-Identifier: BSL-1.0
// Without this file figures and traces are tested for the orders of events that somebody has thought of.
#include "support/request.hpp"
#include "support/scale.hpp"
#include "support/virtual_clock.hpp"

#include <amux/asyncmux.hpp>
#include <amux/counting.hpp>
#include <amux/tracing.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <random>
#include <sstream>
#include <string>
#include <utility>

using support::virtual_clock;

namespace {

using mux_type = amux::asyncmux<
    int, amux::tracing<int, amux::counting<amux::multi_threaded, virtual_clock>, virtual_clock>>;

/// Requests of all kinds that come, go, share and give up in any order; and what they have seen themselves.
class observed_walk {
public:
    explicit observed_walk(unsigned seed) : mux{{.record_requests = seed % 2 != 0}}, random_{seed}
    {
        mux.observer().start(10'000);
    }

    void step()
    {
        const unsigned what = random_() % 8;
        if (what < 2) {
            virtual_clock::advance(std::chrono::microseconds{random_() % 100});
        } else if (what < 5 || requests_.empty()) {
            arrive();
        } else {
            const auto nth = static_cast<std::ptrdiff_t>(random_() % requests_.size());
            auto one = std::next(requests_.begin(), nth);
            if (what == 5 && one->asked.state() == "owns" && one->exclusive) {
                one->asked.guard().downgrade();
                end_of_exclusive(*one);
            } else {
                leave(one);
            }
        }
        look();
    }
    void end()
    {
        while (!requests_.empty()) {
            leave(requests_.begin());
            look();
        }
    }

    /// What the requests say, against the figures.
    bool agrees() const
    {
        const amux::mux_counts c = mux.observer().counts();
        return c.waiting() == waiting_ && c.held() == held_ && c.waits_given_up == given_up_ &&
               c.grants_at_once + c.grants_after_wait == grants_ && c.total_wait == waited_ &&
               c.longest_wait == longest_;
    }

    mutable mux_type mux;
    amux::clock::duration exclusive{}; // the time that one key, or the whole mux, was held so

    amux::clock::duration waited() const noexcept { return waited_; }

private:
    struct member {
        template <class Operation>
        member(Operation operation, bool in_x, bool several)
            : exclusive{in_x}, set{several}, asked{std::move(operation)}
        {}
        bool exclusive;
        bool set;
        bool waits = false;
        bool owns = false;
        amux::clock::time_point since = virtual_clock::now(); // of the wait, then of the hold
        support::request<mux_type::guard> asked;
    };
    using place = std::list<member>::iterator;

    void arrive()
    {
        const int key = static_cast<int>(random_() % 3);
        switch (random_() % 7) {
            case 0:
                requests_.emplace_back(mux.lock_shared(), false, false);
                break;
            case 1:
                requests_.emplace_back(mux.lock(), true, false);
                break;
            case 2:
                requests_.emplace_back(mux.lock_all(key, (key + 1) % 3), true, true);
                break;
            case 3:
                requests_.emplace_back(mux.lock_all(key, key), true, true);
                break;
            case 4:
                requests_.emplace_back(mux.lock_shared(key), false, false);
                break;
            default:
                requests_.emplace_back(mux.lock(key), true, false);
        }
        member& m = requests_.back();
        m.waits = m.asked.state() == "waits";
        if (!m.waits)
            granted(m);
    }
    void leave(place one)
    {
        if (one->asked.state() == "owns") {
            end_of_exclusive(*one);
            --held_;
        } else {
            ++given_up_;
            end_of_wait(*one);
        }
        requests_.erase(one);
    }
    /// Who waited and has the lock now.
    void look()
    {
        waiting_ = 0;
        for (member& m : requests_) {
            if (m.waits && m.asked.state() == "owns") {
                end_of_wait(m);
                granted(m);
            }
            waiting_ += m.waits ? 1 : 0;
        }
    }
    void granted(member& m)
    {
        m.since = virtual_clock::now();
        ++grants_;
        ++held_;
    }
    void end_of_wait(member& m)
    {
        m.waits = false;
        const auto took = virtual_clock::now() - m.since;
        waited_ += took;
        longest_ = (std::max)(longest_, took);
    }
    void end_of_exclusive(member& m)
    {
        if (m.exclusive && !m.set)
            exclusive += virtual_clock::now() - m.since;
        m.exclusive = false;
    }

    std::mt19937 random_;
    std::list<member> requests_;
    std::uint64_t waiting_ = 0;
    std::uint64_t held_ = 0;
    std::uint64_t given_up_ = 0;
    std::uint64_t grants_ = 0;
    amux::clock::duration waited_{};
    amux::clock::duration longest_{};
};

double number_after(const std::string& line, const std::string& name)
{
    const auto at = line.find("\"" + name + "\":");
    return at == line.npos ? 0 : std::stod(line.substr(at + name.size() + 3));
}

/// Of all exclusive holds, and of all waits, in microseconds.
std::pair<double, double> times_of(const std::string& document)
{
    std::istringstream lines{document};
    double held = 0;
    double waited = 0;
    for (std::string line; std::getline(lines, line);) {
        held += number_after(line, "dur");
        if (line.find("\"cat\":\"wait\"") != line.npos)
            waited += (line.starts_with(R"({"ph":"b")") ? -1 : 1) * number_after(line, "ts");
    }
    return {held, waited};
}

} // namespace

TEST_CASE("observers: figures and traces agree with what the requests have seen",
          "[random][counting][tracing]")
{
    unsigned seed = Catch::getSeed();
    for (int n = support::scaled(200); n > 0; --n, ++seed) {
        CAPTURE(seed);
        observed_walk w{seed};
        bool agrees = true;
        for (int i = 0; i != 100; ++i) {
            w.step();
            agrees = agrees && w.agrees();
        }
        w.end();
        REQUIRE(agrees);
        REQUIRE(w.agrees());
        const auto [held, waited] = times_of(w.mux.observer().chrome_trace());
        using microseconds = std::chrono::duration<double, std::micro>;
        REQUIRE(held == microseconds{w.exclusive}.count());
        REQUIRE(waited == microseconds{w.waited()}.count());
        REQUIRE(w.mux.observer().dropped() == 0);
    }
}

// SPDX-License-Identifier: BSL-1.0
// Without this file an order of answers, time, stop, extend and release that nobody has thought of may tell a lease's end
// twice, or never, or let its holder believe for too long.
#include "support/lease_world.hpp"
#include "support/scale.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using support::lease_event;
using support::lease_event_names;
using support::lease_events;
using support::lease_variant;
using support::lease_world;

namespace {

/// Every order of at most so many events: each beginning is a world of its own.
class explorer {
public:
    explorer(lease_variant v, std::size_t depth) : variant_{v}, depth_{depth} {}

    void explore()
    {
        if (path_.size() == depth_)
            return;
        for (std::size_t e = 0; e < lease_events && complaint.empty(); ++e) {
            path_.push_back(static_cast<lease_event>(e));
            if (run())
                explore();
            path_.pop_back();
        }
    }

    std::size_t orders = 0;
    std::string complaint;

private:
    bool run()
    {
        lease_world w{variant_};
        for (const lease_event e : path_) {
            if (!w.happens(e))
                return false;
        }
        ++orders;
        if (w.trouble().empty())
            w.finish();
        if (!w.trouble().empty()) {
            complaint = "not so: " + w.trouble() + "; after";
            for (const lease_event e : path_)
                complaint += std::string{" | "} + lease_event_names[static_cast<std::size_t>(e)];
        }
        return true;
    }

    lease_variant variant_;
    std::size_t depth_;
    std::vector<lease_event> path_;
};

std::size_t depth()
{
    return support::scaled(10) >= 10 ? 5 : 4;
}

std::size_t explore(lease_variant v, std::size_t deep)
{
    explorer all{v, deep};
    all.explore();
    CAPTURE(v.renew, v.margin.count(), v.quiet, all.orders);
    REQUIRE(all.complaint == "");
    return all.orders;
}

} // namespace

TEST_CASE("acquired_lock: in every order of five events it ends as the table of states says",
          "[distributed_lock][random]")
{
    std::size_t orders = 0;
    for (const bool renew : {false, true}) {
        orders += explore({renew, 0ms, 0}, depth());
        orders += explore({renew, 300ms, 0}, 4);
    }
    INFO("orders explored: " << orders);
    CHECK(orders > 5'000);
}

TEST_CASE("acquired_lock: it ends once, too, when several events come before its loop runs",
          "[distributed_lock][random]")
{
    std::size_t orders = 0;
    for (const bool renew : {false, true}) {
        for (unsigned quiet = 1; quiet < 8; ++quiet)
            orders += explore({renew, 0ms, quiet}, depth() - 1);
    }
    INFO("orders explored: " << orders);
    CHECK(orders > 5'000);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a server may be given by its name only where nobody has tried.
#include <amux/detail/redis_address.hpp>
#include <amux/detail/redis_waker.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <poll.h>

using amux::detail::redis_addresses;
using amux::detail::redis_resolver;
using amux::detail::redis_waker;

namespace {

/// Waits for the resolver's thread, which has to wake us.
std::optional<redis_addresses> answer_of(redis_resolver& r, redis_waker& waker)
{
    pollfd p{waker.fd(), POLLIN, 0};
    while (::poll(&p, 1, 60'000) > 0) {
        waker.drain();
        waker.sleep_until((redis_waker::time_point::max)());
        if (auto answer = r.take())
            return answer;
    }
    return std::nullopt;
}

} // namespace

TEST_CASE("redis_resolver: an address in numbers is known at once", "[redis]")
{
    const auto waker = std::make_shared<redis_waker>();
    redis_resolver r;
    CHECK_FALSE(r.take()); // nothing was asked
    for (const char* const host : {"127.0.0.1", "::1"}) {
        r.start(host, 6379, waker);
        const auto answer = r.take();
        REQUIRE(answer);
        CHECK(answer->found.size() == 1);
    }
    CHECK_FALSE(r.take()); // it was given
}

TEST_CASE("redis_resolver: a name is looked up on another thread, which wakes who asked", "[redis]")
{
    const auto waker = std::make_shared<redis_waker>();
    waker->sleep_until((redis_waker::time_point::max)());
    redis_resolver r;
    r.start("localhost", 6379, waker);
    r.start("localhost", 6379, waker); // the question is out already
    const auto answer = answer_of(r, *waker);
    REQUIRE(answer);
    CHECK_FALSE(answer->found.empty());
    CHECK(answer->trouble.empty());
}

TEST_CASE("redis_resolver: what is no name says so", "[redis]")
{
    const auto waker = std::make_shared<redis_waker>();
    waker->sleep_until((redis_waker::time_point::max)());
    redis_resolver r;
    r.start(std::string(300, 'x'), 6379, waker);
    const auto answer = answer_of(r, *waker);
    REQUIRE(answer);
    CHECK(answer->found.empty());
    CHECK_FALSE(answer->trouble.empty());
}

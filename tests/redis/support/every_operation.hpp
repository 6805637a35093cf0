// SPDX-License-Identifier: BSL-1.0
// Without this file each way to a server would be tried with another choice of operations, or wait out the whole law.
#pragma once

#include <amux/event_loop.hpp>
#include <amux/redis_backend.hpp>
#include <amux/task.hpp>
#include <amux/when_all.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <optional>
#include <string>

namespace support {

/// Takes a key, is asked for it by another, and gives it away.
inline amux::task<> take_ask_and_release(amux::redis_backend& b, const std::string& metadata)
{
    using std::chrono::seconds;
    const amux::acquire_result first = co_await b.acquire("k", "first", seconds{60}, metadata);
    const amux::acquire_result again = co_await b.acquire("k", "first", seconds{60});
    const amux::acquire_result other = co_await b.acquire("k", "other", seconds{60});
    const std::optional<std::string> holder = co_await b.get("k");
    const std::optional<amux::lease_info> info = co_await b.inspect("k");
    const bool extended = co_await b.extend("k", "first", seconds{60});
    const bool extended_by_other = co_await b.extend("k", "other", seconds{60});
    const bool released_by_other = co_await b.release("k", "other");
    const bool released = co_await b.release("k", "first");
    CHECK(first.acquired);
    CHECK(again.acquired);
    CHECK(first.fence);
    CHECK(again.fence == first.fence);
    CHECK_FALSE(other.acquired);
    CHECK(holder == "first");
    CHECK(info.has_value());
    const bool whole = info && info->metadata == metadata; // too long to be shown
    CHECK(whole);
    CHECK(extended);
    CHECK_FALSE(extended_by_other);
    CHECK_FALSE(released_by_other);
    CHECK(released);
}

inline amux::task<> wait_for_release(amux::redis_backend& b)
{
    co_await b.wait_for_release("k");
}
inline amux::task<> release(amux::redis_backend& b)
{
    const bool released = co_await b.release("k", "first");
    CHECK(released);
}

/// Checks that every operation does over this way to a server what it does over any other.
inline void check_every_operation(amux::redis_backend& b, const std::string& metadata = "who")
{
    amux::event_loop loop;
    loop.block_on(take_ask_and_release(b, metadata));
    loop.block_on(take_ask_and_release(b, "")); // the key is free again
    const auto take = [](amux::redis_backend& in) -> amux::task<bool> {
        const auto r = co_await in.acquire("k", "first", std::chrono::seconds{60});
        co_return r.acquired;
    };
    CHECK(loop.block_on(take(b)));
    loop.block_on(amux::when_all(wait_for_release(b), release(b)));
}

} // namespace support

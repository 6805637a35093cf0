// SPDX-License-Identifier: BSL-1.0
// Without this file no test of redlock can say how each of its nodes behaves.
#pragma once

#include <amux/manual_event_loop.hpp>
#include <amux/memory_backend.hpp>
#include <amux/redlock.hpp>
#include <amux/task.hpp>
#include <amux/testing/scripted_backend.hpp>

#include "support/lease_bench.hpp"

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace support {

using std::chrono::milliseconds;
using namespace std::chrono_literals;

/// Stands for a scripted store, which does not move.
class scripted_node {
public:
    explicit scripted_node(amux::testing::scripted_backend& store) noexcept : store_{&store} {}

    auto acquire(std::string_view key, std::string_view token, milliseconds ttl,
                 std::string_view metadata = {})
    {
        return store_->acquire(key, token, ttl, metadata);
    }
    auto extend(std::string_view key, std::string_view token, milliseconds ttl)
    {
        return store_->extend(key, token, ttl);
    }
    auto release(std::string_view key, std::string_view token)
    {
        return store_->release(key, token);
    }
    auto get(std::string_view key) { return store_->get(key); }
    auto inspect(std::string_view key) { return store_->inspect(key); }
    auto wait_for_release(std::string_view key, std::stop_token stop)
    {
        return store_->wait_for_release(key, std::move(stop));
    }

private:
    amux::testing::scripted_backend* store_;
};

inline std::vector<amux::memory_backend> memories(std::size_t count, amux::scheduler& time)
{
    std::vector<amux::memory_backend> all;
    for (std::size_t n = 0; n < count; ++n)
        all.emplace_back(time);
    return all;
}

/// A redlock over scripted stores, on a loop of its own.
struct redlock_world {
    explicit redlock_world(std::size_t count = 3, const amux::redlock_options& options = {})
    {
        for (std::size_t n = 0; n < count; ++n)
            stores.emplace_back(loop);
        lock = std::make_unique<amux::redlock<scripted_node>>(nodes(), loop, options);
    }

    std::vector<scripted_node> nodes()
    {
        std::vector<scripted_node> all;
        for (auto& s : stores)
            all.emplace_back(s);
        return all;
    }

    asked<amux::unfenced_result> acquire(std::string_view token, milliseconds ttl = 10s)
    {
        return {loop, acquire_task(*lock, std::string{token}, ttl)};
    }
    /// The token is granted its lease, at once.
    void grant(std::string_view token, milliseconds ttl = 10s)
    {
        auto a = acquire(token, ttl);
        loop.run_ready();
        if (!a.value().acquired)
            throw std::logic_error{"not granted"};
    }
    asked<bool> extend(std::string_view token, milliseconds ttl = 10s)
    {
        return {loop, extend_task(*lock, std::string{token}, ttl)};
    }
    asked<bool> release(std::string_view token)
    {
        return {loop, release_task(*lock, std::string{token})};
    }
    asked<std::optional<std::string>> get() { return {loop, get_task(*lock)}; }

    void pass(milliseconds d) { let_pass(loop, d); }

    /// At how many nodes the token has the key.
    std::size_t held_by(std::string_view token)
    {
        std::size_t n = 0;
        for (auto& s : stores)
            n += s.holder(key) == token ? 1 : 0;
        return n;
    }
    /// Calls that a node has got.
    std::size_t calls(amux::testing::operation op) const
    {
        std::size_t n = 0;
        for (const auto& s : stores)
            n += s.count(op);
        return n;
    }

    static constexpr std::string_view key = "k";
    amux::manual_event_loop loop;
    std::deque<amux::testing::scripted_backend> stores;
    // It goes before the stores, which then end what is in flight.
    std::unique_ptr<amux::redlock<scripted_node>> lock;

private:
    using tested = amux::redlock<scripted_node>;

    static amux::task<amux::unfenced_result> acquire_task(tested& l, std::string token,
                                                          milliseconds ttl)
    {
        auto result = co_await l.acquire(key, token, ttl);
        co_return result;
    }
    static amux::task<bool> extend_task(tested& l, std::string token, milliseconds ttl)
    {
        const bool yes = co_await l.extend(key, token, ttl);
        co_return yes;
    }
    static amux::task<bool> release_task(tested& l, std::string token)
    {
        const bool yes = co_await l.release(key, token);
        co_return yes;
    }
    static amux::task<std::optional<std::string>> get_task(tested& l)
    {
        auto holder = co_await l.get(key);
        co_return holder;
    }
};

} // namespace support

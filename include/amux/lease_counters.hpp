// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/lock_hooks.hpp>
#include <amux/metric.hpp>
#include <amux/scheduler.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace amux {

/// What became of the leases of one or more `distributed_lock`s.
struct lease_counts {
    /// Leases that were handed out.
    std::uint64_t acquired = 0;
    /// Leases that their holders gave back.
    std::uint64_t released = 0;
    /// Leases that were lost: their time was up, or the store said no.
    std::uint64_t expired = 0;
    /// Leases that a stop token ended.
    std::uint64_t aborted = 0;
    /// Extensions that the store has confirmed, by renewal or by `extend()`.
    std::uint64_t renewals = 0;
    /// Those of them that came when less than a quarter of the ttl was left.
    std::uint64_t late_renewals = 0;
    /// Troubles of the store.
    std::uint64_t errors = 0;

    /// Leases that are held now.
    std::uint64_t held() const noexcept
    {
        return detail::left_of(acquired, released + expired + aborted);
    }

    /// All of it for an exporter, always in the same order.
    std::array<metric, 8> metrics() const noexcept;
};

/// Counts the leases of every `distributed_lock` that is made with its hooks.
///
/// A renewal is late when its answer comes with less than a quarter of the ttl left of what was believed before. Left
/// alone, a lease is renewed when two thirds are left, and half with the longest `renew_interval`: so a late one has
/// used up at least half of what it had to spare.
/// Thread-safety: any thread. Lifetime: the scheduler, the loop of the locks, outlives it, and it outlives the locks.
class lease_counters {
public:
    /// `time`: the loop that the locks are made with.
    explicit lease_counters(const scheduler& time) noexcept : time_{time} {}
    lease_counters(const lease_counters&) = delete;
    lease_counters& operator=(const lease_counters&) = delete;

    /// Hooks that count, and then call those of `next`.
    lock_hooks hooks(lock_hooks next = {});

    /// The figures of one moment.
    lease_counts counts() const
    {
        const std::lock_guard lock{mutex_};
        return counts_;
    }

private:
    struct belief {
        clock::time_point until;
        clock::duration ttl;
    };
    using hook = std::function<void(const lock_event&)>;

    hook counted(void (lease_counters::*count)(const lock_event&), hook next)
    {
        return [this, count, next = std::move(next)](const lock_event& e) {
            try {
                const std::lock_guard lock{mutex_};
                (this->*count)(e);
            } catch (...) { // NOLINT(bugprone-empty-catch): without memory its renewals are in time
            }
            if (next)
                next(e);
        };
    }

    void acquired(const lock_event& e)
    {
        ++counts_.acquired;
        held_.insert_or_assign(e.token, belief_in(e));
    }
    void released(const lock_event& e)
    {
        ++counts_.released;
        held_.erase(e.token);
    }
    void renewed(const lock_event& e)
    {
        ++counts_.renewals;
        const auto known = held_.find(e.token);
        if (known == held_.end())
            return;
        if (known->second.until - time_.now() < known->second.ttl / 4)
            ++counts_.late_renewals;
        known->second = belief_in(e);
    }
    void lost(const lock_event& e)
    {
        ++(e.reason == end_reason::aborted ? counts_.aborted : counts_.expired);
        held_.erase(e.token);
    }
    void failed(const lock_event&) { ++counts_.errors; }

    /// An event says the end by the wall clock as it is now: what is left is the same by ours.
    belief belief_in(const lock_event& e) const
    {
        const auto left = e.expires_at - std::chrono::system_clock::now();
        return {time_.now() + std::chrono::duration_cast<clock::duration>(left), e.ttl};
    }

    const scheduler& time_;
    mutable std::mutex mutex_;
    lease_counts counts_;
    std::unordered_map<std::string, belief> held_; // by token
};

inline lock_hooks lease_counters::hooks(lock_hooks next)
{
    lock_hooks h;
    h.on_acquire = counted(&lease_counters::acquired, std::move(next.on_acquire));
    h.on_release = counted(&lease_counters::released, std::move(next.on_release));
    h.on_renew = counted(&lease_counters::renewed, std::move(next.on_renew));
    h.on_lost = counted(&lease_counters::lost, std::move(next.on_lost));
    h.on_error = counted(&lease_counters::failed, std::move(next.on_error));
    return h;
}

inline std::array<metric, 8> lease_counts::metrics() const noexcept
{
    using enum metric_type;
    return {{
        {"amux_leases_acquired_total", "Leases that were handed out.", counter,
         static_cast<double>(acquired)},
        {"amux_leases_released_total", "Leases that their holders gave back.", counter,
         static_cast<double>(released)},
        {"amux_leases_expired_total", "Leases that were lost.", counter,
         static_cast<double>(expired)},
        {"amux_leases_aborted_total", "Leases that a stop token ended.", counter,
         static_cast<double>(aborted)},
        {"amux_lease_renewals_total", "Extensions that the store has confirmed.", counter,
         static_cast<double>(renewals)},
        {"amux_lease_late_renewals_total",
         "Extensions confirmed when less than a quarter of the ttl was left.", counter,
         static_cast<double>(late_renewals)},
        {"amux_lease_errors_total", "Troubles of the store.", counter, static_cast<double>(errors)},
        {"amux_leases_held", "Leases that are held now.", gauge, static_cast<double>(held())},
    }};
}

} // namespace amux

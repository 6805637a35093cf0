// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/redis_operation.hpp>
#include <amux/detail/redis_trouble.hpp>
#include <amux/scheduler.hpp>

#include <optional>
#include <string_view>

namespace amux::detail {

class redis_subscriber;

/// Who waits for the release of a key; in the frame that waits.
///
///     idle --> subscribing --(acknowledged)--> looking --(held)--> sleeping
///     any of the three --(free, message, time, stop, trouble)--> idle, and `woken`
///
/// First the subscription, then the look: so no release falls between the two. When the subscription was lost, and is
/// there again, it looks once more. Guarded by the backend's mutex.
class redis_waiter {
public:
    enum class stage : unsigned char { idle, subscribing, looking, sleeping };

    explicit redis_waiter(std::string_view k) noexcept : key{k}, look{*this}, timer{*this} {}
    redis_waiter(const redis_waiter&) = delete;
    redis_waiter& operator=(const redis_waiter&) = delete;

    /// Called under the mutex, once.
    virtual void woken() noexcept = 0;

    const std::string_view key;
    std::optional<redis_trouble> trouble;

    // The subscriber's.
    struct question final : redis_operation {
        explicit question(redis_waiter& w) noexcept
            : redis_operation{kind::look_at_ttl, w.key}, self{w}
        {}
        void answered() noexcept override;
        redis_waiter& self;
    };
    struct alarm : scheduler::node {
        explicit alarm(redis_waiter& w) noexcept : node{&nothing}, self{w} {}
        static void nothing(scheduler::node&) noexcept {}
        redis_waiter& self;
        bool armed = false;
    };

    stage at = stage::idle;
    redis_subscriber* where = nullptr;
    question look;
    alarm timer;
    redis_waiter* before = nullptr;
    redis_waiter* behind = nullptr;

protected:
    ~redis_waiter() = default;
};

} // namespace amux::detail

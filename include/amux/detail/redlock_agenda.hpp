// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/core_event.hpp>

#include <map>
#include <memory>
#include <optional>
#include <utility>

namespace amux::detail {

/// What has a time at which it is looked at, and is kept alive until then. Under the mutex of who owns it.
///
/// A `T` has a `place` by the name of `due`, which is this class's alone.
template <class T>
class redlock_agenda {
    using entries = std::multimap<clock::time_point, std::shared_ptr<T>>;

public:
    /// Where it stands; none: it has no time.
    using place = std::optional<typename entries::iterator>;

    /// In place of an earlier time. Throws: without memory, and then it has none.
    void put(const std::shared_ptr<T>& item, clock::time_point when)
    {
        drop(*item);
        item->due = entries_.emplace(when, item);
    }
    void drop(T& item) noexcept
    {
        if (item.due)
            entries_.erase(*std::exchange(item.due, std::nullopt));
    }
    /// The next one that is due, which has no time any more; null when there is none.
    std::shared_ptr<T> take(clock::time_point now) noexcept
    {
        if (first() > now || entries_.empty())
            return nullptr;
        auto item = entries_.begin()->second;
        drop(*item);
        return item;
    }
    clock::time_point first() const noexcept
    {
        return entries_.empty() ? (clock::time_point::max)() : entries_.begin()->first;
    }

private:
    entries entries_;
};

/// Has `Owner::tick()` called on the loop when its time has come. Under the mutex of its owner, which it keeps alive.
///
/// Only on the loop can a timer be set. So who brings the time forward, on any thread, posts a second event there, whose
/// tick sets it.
template <class Owner>
class redlock_alarm {
    struct event : core_event {
        explicit event(const std::shared_ptr<Owner>& o) : core_event{o}, owner{*o} {}
        using core_event::arm;
        using core_event::post;
        void happens() noexcept override { owner.tick(); }
        Owner& owner;
    };

public:
    /// None: nothing has a time any more.
    redlock_alarm() = default;
    explicit redlock_alarm(const std::shared_ptr<Owner>& owner)
        : timer_{std::make_shared<event>(owner)}, poke_{std::make_shared<event>(owner)}
    {}

    /// It rings then, or sooner.
    void ring_by(clock::time_point when) noexcept
    {
        if (when >= at_)
            return;
        at_ = when;
        poke_->post(poke_);
    }
    /// On the loop: it rings then, in place of any other time.
    void set(clock::time_point when) noexcept
    {
        at_ = when;
        if (when != (clock::time_point::max)())
            timer_->arm(timer_, when);
    }

private:
    clock::time_point at_ = (clock::time_point::max)(); // when the loop looks
    std::shared_ptr<event> timer_;
    std::shared_ptr<event> poke_;
};

} // namespace amux::detail

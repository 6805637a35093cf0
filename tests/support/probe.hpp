// SPDX-License-Identifier: BSL-1.0
// Without this file no test sees what a coroutine would tell a lock of itself.
#pragma once

#include <amux/context.hpp>
#include <amux/detail/promise_hooks.hpp>
#include <amux/scheduler.hpp>

#include <coroutine>
#include <cstdint>
#include <utility>

namespace support {

struct place {
    amux::scheduler* where = nullptr;
    std::uint64_t context = 0; // its number; 0 for none
    std::uint64_t parent = 0; // the number of its parent context; 0 for none
};

/// `place p = co_await support::my_place{};`
struct my_place {
    place found;

    bool await_ready() const noexcept { return false; }
    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> self) noexcept
    {
        found.where = amux::detail::scheduler_of(self.promise());
        if (const amux::context* const c = amux::detail::context_of(self.promise())) {
            found.context = c->id();
            found.parent = c->parent() ? c->parent()->id() : 0;
        }
        return false;
    }
    place await_resume() const noexcept { return found; }
};

/// `co_await gate;` suspends until `open()`, which resumes inside the call. One coroutine at a time.
class gate {
public:
    bool is_awaited() const noexcept { return waiter_ != nullptr; }
    void open() { std::exchange(waiter_, nullptr).resume(); }

    // Not an awaiter itself: g++ 12 would copy an awaiter that is a captured variable.
    auto operator co_await() noexcept { return awaiter{*this}; }

private:
    struct awaiter {
        gate& self;
        bool await_ready() const noexcept { return false; }
        void await_suspend(std::coroutine_handle<> h) noexcept { self.waiter_ = h; }
        void await_resume() const noexcept {}
    };

    std::coroutine_handle<> waiter_;
};

/// Says when it is destroyed, for parameters and locals of coroutines.
class flag_on_destruction {
public:
    explicit flag_on_destruction(bool& gone) noexcept : gone_{&gone} {}
    flag_on_destruction(flag_on_destruction&& other) noexcept : gone_{other.gone_}
    {
        other.gone_ = nullptr;
    }
    flag_on_destruction& operator=(flag_on_destruction&&) = delete;
    ~flag_on_destruction()
    {
        if (gone_)
            *gone_ = true;
    }

private:
    bool* gone_;
};

} // namespace support

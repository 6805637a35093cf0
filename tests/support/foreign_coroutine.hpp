// SPDX-License-Identifier: BSL-1.0
// Without this file amux is tested only with its own coroutine type, which no user of another one has.
#pragma once

#include <amux/context.hpp>
#include <amux/scheduler.hpp>

#include <coroutine>
#include <exception>
#include <utility>

namespace support {

/// Begins in the call, belongs to nobody, and says nothing of where it runs: the simplest type that users have.
struct fire_and_forget {
    struct promise_type {
        fire_and_forget get_return_object() const noexcept { return {}; }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }
    };
};

/// Begins when it is told to, belongs to its object, and tells amux its scheduler and its context, as an adaptor for
/// somebody else's type would. It may be destroyed while it waits.
class hooked_coroutine {
public:
    struct promise_type {
        hooked_coroutine get_return_object() noexcept { return hooked_coroutine{*this}; }
        std::suspend_always initial_suspend() const noexcept { return {}; }
        std::suspend_always final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }

        amux::scheduler* where = nullptr;
        const amux::context* who = nullptr;
    };

    hooked_coroutine(hooked_coroutine&& other) noexcept
        : handle_{std::exchange(other.handle_, nullptr)}
    {}
    hooked_coroutine& operator=(hooked_coroutine&&) = delete;
    ~hooked_coroutine() { destroy(); }

    /// Runs it, on this thread, until it waits or ends. Either pointer may be null.
    void start(amux::scheduler* where, const amux::context* who = nullptr)
    {
        handle_.promise().where = where;
        handle_.promise().who = who;
        handle_.resume();
    }

    bool done() const noexcept { return handle_.done(); }

    void destroy() noexcept
    {
        if (handle_)
            std::exchange(handle_, nullptr).destroy();
    }

private:
    explicit hooked_coroutine(promise_type& p) noexcept
        : handle_{std::coroutine_handle<promise_type>::from_promise(p)}
    {}

    std::coroutine_handle<promise_type> handle_;
};

// Found by argument-dependent lookup.
inline amux::scheduler* amux_scheduler(hooked_coroutine::promise_type& p) noexcept
{
    return p.where;
}
inline const amux::context* amux_context(hooked_coroutine::promise_type& p) noexcept
{
    return p.who;
}

} // namespace support

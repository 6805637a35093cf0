// SPDX-License-Identifier: BSL-1.0
// Without this file the contenders would run in coroutines of different weight.
#pragma once

#include <amux/context.hpp>
#include <amux/scheduler.hpp>

#include <coroutine>
#include <cstddef>
#include <exception>
#include <utility>
#include <vector>

namespace bench {

/// Begins in the call and belongs to nobody.
struct detached {
    struct promise_type {
        detached get_return_object() const noexcept { return {}; }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }
    };
};

/// Begins when it is started, and belongs to its object: so that frames are made and freed outside of what is timed.
class prepared {
public:
    struct promise_type {
        prepared get_return_object() noexcept { return prepared{*this}; }
        std::suspend_always initial_suspend() const noexcept { return {}; }
        std::suspend_always final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }
    };

    prepared(prepared&& other) noexcept : handle_{std::exchange(other.handle_, nullptr)} {}
    prepared& operator=(prepared&&) = delete;
    ~prepared()
    {
        if (handle_)
            handle_.destroy();
    }
    void start() const { handle_.resume(); }

private:
    explicit prepared(promise_type& p) noexcept
        : handle_{std::coroutine_handle<promise_type>::from_promise(p)}
    {}

    std::coroutine_handle<> handle_;
};

/// As `detached`, and tells amux a scheduler and a context of its own.
struct hooked {
    struct promise_type : detached::promise_type {
        template <class... Args>
        explicit promise_type(amux::scheduler* s, const Args&...) noexcept : where{s}
        {}
        hooked get_return_object() const noexcept { return {}; }

        amux::scheduler* where;
        amux::context who{};
    };
};
inline amux::scheduler* amux_scheduler(hooked::promise_type& p) noexcept
{
    return p.where;
}
inline const amux::context* amux_context(hooked::promise_type& p) noexcept
{
    return &p.who;
}

/// A loop of one thread, whose time stands still.
class plain_loop final : public amux::scheduler {
public:
    void post(node& n) noexcept override
    {
        n.next = nullptr;
        (first_ ? last_->next : first_) = &n;
        last_ = &n;
    }
    void schedule_at(time_point, node&) noexcept override {}
    bool cancel(node&) noexcept override { std::terminate(); } // nobody gives up here
    time_point now() const noexcept override { return {}; }

    void run_ready()
    {
        while (node* const n = first_) {
            first_ = n->next;
            n->run();
        }
    }

private:
    node* first_ = nullptr;
    node* last_ = nullptr;
};

/// `n` of them, not started.
template <class Make>
std::vector<prepared> prepare(std::size_t n, Make make)
{
    std::vector<prepared> all;
    all.reserve(n);
    for (std::size_t i = 0; i != n; ++i)
        all.push_back(make(i));
    return all;
}

} // namespace bench

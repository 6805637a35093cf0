// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/detail/lock_core.hpp>
#include <amux/detail/wake_point.hpp>
#include <amux/detail/promise_hooks.hpp>
#include <amux/scheduler.hpp>
#include <amux/spawn.hpp>
#include <amux/task.hpp>

#include <coroutine>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace amux::detail {

/// Counts a call that runs: the lock outlives it. Throws: `lock_closed_error` when no new calls are taken.
class live_call {
public:
    live_call(std::shared_ptr<lock_core> core, const std::string& key) : live_call{std::move(core)}
    {
        if (core_->closed())
            throw lock_closed_error{lock_message("the lock takes no new calls", {}, key)};
    }
    explicit live_call(std::shared_ptr<lock_core> core) noexcept : core_{std::move(core)}
    {
        core_->live_calls.fetch_add(1, std::memory_order_relaxed);
    }
    live_call(live_call&&) noexcept = default;
    live_call& operator=(live_call&&) = delete;
    ~live_call() { end(); }

    void end() noexcept
    {
        if (core_)
            core_->live_calls.fetch_sub(1, std::memory_order_release);
        core_ = nullptr;
    }
    const std::shared_ptr<lock_core>& core() const noexcept { return core_; }

private:
    std::shared_ptr<lock_core> core_;
};

/// A call whose work is done on the lock's loop: two coroutines that meet here, the caller's and the one that works.
///
/// The work is a root of the loop and owns all that it needs, so the caller's frame may be destroyed at any time where
/// it would be resumed, while the loop runs on another thread. `mutex` decides who comes first: the work that is over
/// posts the caller while holding it, the caller that goes takes itself off. Work that nobody waits for any more does not
/// keep the lock: it stops at the gate.
template <class T>
class loop_call {
public:
    /// `abandoned` stops when the caller's frame is gone: the result is dropped, so nobody need hurry for it.
    explicit loop_call(live_call call) : state_{std::make_shared<state>(std::move(call))} {}
    loop_call(const loop_call&) = delete;
    loop_call& operator=(const loop_call&) = delete;
    ~loop_call()
    {
        {
            const std::lock_guard lock{state_->mutex};
            if (state_->over) {
                if (resumption_.queued)
                    state_->home->cancel(resumption_);
                return;
            }
            state_->caller = nullptr;
            state_->call.end();
        }
        state_->abandon.request_stop();
    }

    std::stop_token abandoned() const noexcept { return state_->abandon.get_token(); }

    /// What `co_await call.run(work)` gives is the result of `work`.
    auto run(task<T> work) noexcept { return awaiter{*this, std::move(work)}; }

private:
    struct resumption : scheduler::node {
        resumption() noexcept : node{&resume} {}
        static void resume(scheduler::node& n) noexcept
        {
            auto& self = static_cast<resumption&>(n);
            self.queued = false;
            self.caller.resume();
        }
        std::coroutine_handle<> caller;
        bool queued = false;
    };

    struct state {
        explicit state(live_call c) noexcept : call{std::move(c)} {}

        std::mutex mutex;
        live_call call;
        scheduler* home = nullptr; // of the caller; null: the loop
        resumption* caller = nullptr; // null: gone
        bool over = false;
        std::optional<T> result;
        std::exception_ptr error;
        std::stop_source abandon;
    };

    struct awaiter {
        loop_call& self;
        task<T> work;

        bool await_ready() const noexcept { return false; }
        template <class Promise>
        [[gnu::noinline]] void await_suspend(std::coroutine_handle<Promise> caller)
        {
            state& s = *self.state_;
            s.home = scheduler_of(caller.promise());
            self.resumption_.caller = caller;
            s.caller = &self.resumption_;
            const std::shared_ptr<lock_core> core = s.call.core();
            spawn(core->loop(), drive(core, self.state_, std::move(work)));
        }
        T await_resume()
        {
            state& s = *self.state_;
            if (s.error)
                std::rethrow_exception(std::move(s.error));
            return std::move(*s.result);
        }
    };

    static task<> drive(std::shared_ptr<lock_core> core, std::shared_ptr<state> s, task<T> work)
    {
        co_await hop{*core};
        std::optional<T> result;
        std::exception_ptr error;
        try {
            result.emplace(co_await std::move(work));
        } catch (...) {
            error = std::current_exception();
        }
        finish(s, std::move(result), std::move(error));
    }

    static void finish(const std::shared_ptr<state>& s, std::optional<T> result,
                       std::exception_ptr error)
    {
        std::coroutine_handle<> here;
        {
            const std::lock_guard lock{s->mutex};
            if (!s->caller)
                return; // the result is dropped, after the mutex
            s->result = std::move(result);
            s->error = std::move(error);
            s->over = true;
            s->call.end();
            if (s->home) {
                s->caller->queued = true;
                s->home->post(*s->caller);
            } else {
                here = s->caller->caller;
            }
        }
        if (here)
            here.resume();
    }

    std::shared_ptr<state> state_;
    resumption resumption_;
};

/// Runs `work` on the lock's loop and gives its result where the caller belongs: at its own place, or, without one, on
/// the loop. `work` owns what it needs.
template <class T>
task<T> on_loop(live_call call, task<T> work)
{
    loop_call<T> running{std::move(call)};
    co_return co_await running.run(std::move(work));
}

/// Stops when one of two tokens does.
class either_stop {
public:
    either_stop(std::stop_token a, std::stop_token b)
        : first_{std::move(a), stop{source_}}, second_{std::move(b), stop{source_}}
    {}
    std::stop_token token() const noexcept { return source_.get_token(); }

private:
    struct stop {
        std::stop_source& source;
        void operator()() const noexcept { source.request_stop(); }
    };

    std::stop_source source_;
    std::stop_callback<stop> first_;
    std::stop_callback<stop> second_;
};

} // namespace amux::detail

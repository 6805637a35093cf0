// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/detail/mux_guard.hpp>
#include <amux/detail/mux_operations.hpp>
#include <amux/detail/promise_hooks.hpp>

#include <concepts>
#include <coroutine>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace amux::detail {

/// How long a request waits: without end, for a time from the await on, or until a moment.
struct wait_forever {};
struct wait_for {
    clock::duration limit;
    clock::time_point deadline(clock::time_point now) const noexcept
    {
        return deadline_after(now, limit);
    }
};
struct wait_until {
    clock::time_point limit;
    clock::time_point deadline(clock::time_point) const noexcept { return limit; }
};

/// Everything that a request asks for, before it is awaited.
template <class Body, class Keys, class Limit, bool Placed = false>
struct lock_request {
    Body* body;
    [[no_unique_address]] Keys keys;
    [[no_unique_address]] Limit limit;
    lock_mode mode;
    std::stop_token stop;
    scheduler* where = nullptr; // with `Placed`, what `resume_on` was given
};

/// A request in the frame of the coroutine that awaits it: made by `co_await`, never moved.
///
/// What may happen to it, and who does it, under the locks of its shards:
///
///   idle     -> granted, waiting, or an error    the coroutine itself, in `await_ready` or `await_suspend`
///   waiting  -> granted                           whoever releases, cancels or downgrades
///   waiting  -> stopped, timed_out, closed        the stop callback; the timer, where the scheduler runs; `close`
///   waiting  -> gone                              whoever destroys the frame
///
/// The one hazard: once it waits, another thread may resume, and destroy, the frame. So the stop callback is armed
/// before the request arrives, the timer under the lock, and `suspend` touches nothing after it.
template <class Body, class Keys, class Limit, bool Placed>
class lock_awaiter : Body::waiter {
public:
    using guard = mux_guard<Body>;
    using request = lock_request<Body, Keys, Limit, Placed>;

    explicit lock_awaiter(request&& r) : Body::waiter{&lock_awaiter::run}, request_{std::move(r)}
    {
        // Its key may be gone; with what is left of it another one would be locked.
        // NOLINTNEXTLINE(bugprone-use-after-move): a pointer, which does not move away
        if (!std::exchange(r.body, nullptr)) [[unlikely]]
            fatal("a lock is awaited that was awaited before");
        this->mode = request_.mode;
        this->where = request_.where;
        name_ = request_.body->name;
    }
    lock_awaiter(const lock_awaiter&) = delete;
    lock_awaiter& operator=(const lock_awaiter&) = delete;
    ~lock_awaiter()
    {
        if (suspended_) [[unlikely]] {
            disarm(); // first, without a lock: nobody but the mux knows the request after it
            request_.body->abandon(*this);
        }
    }

    bool await_ready()
    {
        // With a limit, or with reentrancy detection, the promise is needed first.
        if (timed || request_.body->registry)
            return false;
        if (request_.stop.stop_requested())
            return answered(arrival::stopped);
        const arrival a = attempt();
        return a != arrival::refused && answered(a);
    }

    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> handle)
    {
        static_assert(!timed || Placed || has_scheduler_hook<Promise>,
                      "a lock with a time limit needs a scheduler: amux::task on a loop, "
                      "amux_scheduler(promise) for "
                      "your coroutine type, or resume_on(scheduler)");
        const context* asking = nullptr;
        if constexpr (!std::is_void_v<Promise>) {
            if (!this->where)
                this->where = scheduler_of(handle.promise());
            asking = context_of(handle.promise());
        }
        return suspend(handle, asking);
    }

    guard await_resume()
    {
        disarm();
        if (std::exchange(suspended_, false)) {
            answered(arrival_of(this->state));
            if (answer_ == arrival::granted) {
                request_.body->resumed(*this);
                if (!this->places)
                    entry_ = &Body::entry_of(this->own);
            }
        }
        if (answer_ != arrival::granted) [[unlikely]]
            return not_granted();
        if (entry_)
            return guard{*request_.body, *entry_, this->mode};
        if (!this->places)
            return guard{*request_.body, this->mode};
        if (context_id_ != 0)
            request_.body->registry->add(*this->places, context_id_);
        return guard{*request_.body, *this->places};
    }

private:
    using waiter = typename Body::waiter;
    using entry = typename Body::entry;

    static constexpr bool timed = !std::same_as<Limit, wait_forever>;
    static constexpr bool is_one_key = requires { Keys::is_one_key; };

    struct on_stop {
        lock_awaiter* self;
        void operator()() const noexcept
        {
            self->request_.body->give_up(*self, request_state::stopped);
        }
    };

    struct timer : scheduler::node {
        explicit timer(lock_awaiter* a) noexcept : node{&timer::fire}, self{a} {}
        static void fire(scheduler::node& n) noexcept
        {
            lock_awaiter& a = *static_cast<timer&>(n).self;
            a.timer_.armed = false;
            a.request_.body->give_up(a, request_state::timed_out);
        }
        lock_awaiter* self;
        bool armed = false;
    };
    struct no_timer {
        explicit no_timer(lock_awaiter*) noexcept {}
    };

    static void run(scheduler::node& n) noexcept
    {
        static_cast<lock_awaiter&>(static_cast<waiter&>(n)).handle_.resume();
    }

    bool answered(arrival a) noexcept
    {
        answer_ = a;
        return true;
    }
    static arrival arrival_of(request_state s) noexcept
    {
        switch (s) {
            case request_state::granted:
                return arrival::granted;
            case request_state::stopped:
                return arrival::stopped;
            case request_state::closed:
                return arrival::closed;
            default:
                return arrival::refused; // timed out
        }
    }

    /// One attempt, that does not wait.
    arrival attempt()
    {
        Body& body = *request_.body;
        if constexpr (is_one_key) {
            if (!body.registry) {
                const std::uint64_t h = Body::hash_of(request_.keys.kept.look());
                return body.try_one(h, request_.keys.kept, this->mode, entry_);
            }
        }
        return body.try_many(request_.keys, this->mode, this->places);
    }

    /// Out of line: inside a coroutine, clang before 19 may keep values in the frame that is given away here.
    [[gnu::noinline]] bool suspend(std::coroutine_handle<> handle, const context* asking)
    {
        handle_ = handle;
        Body& body = *request_.body;
        if (timed && !this->where)
            throw std::logic_error{
                "amux: a lock with a time limit needs a scheduler, and this coroutine has none"};
        if (!timed && request_.stop.stop_requested())
            return !answered(arrival::stopped);
        if (body.closed())
            return !answered(arrival::closed);
        if (timed && request_.stop.stop_requested())
            return !answered(arrival::stopped);
        if (body.registry && asking) {
            require_not_reentrant(asking);
            context_id_ = asking->id();
        }
        if constexpr (timed) {
            const clock::time_point now = this->where->now();
            timer_.due = request_.limit.deadline(now);
            if (timer_.due <= now)
                return !answered(attempt());
        }
        const arrival a = arrive();
        if (a == arrival::waits)
            return true; // the frame may be gone
        return !answered(a);
    }

    arrival arrive()
    {
        Body& body = *request_.body;
        if constexpr (is_one_key) {
            this->hash = Body::hash_of(request_.keys.kept.look());
            this->over = Body::shards::mask_of(this->hash);
        } else {
            this->over = Body::mask_of(request_.keys);
        }
        if (request_.stop.stop_possible())
            on_stop_.emplace(request_.stop, on_stop{this});
        // Asked under the lock: a stop before it is seen here, one after it finds the request.
        const auto stop_requested = [this] { return request_.stop.stop_requested(); };
        const auto on_wait = [this] {
            suspended_ = true;
            if constexpr (timed) {
                timer_.armed = timer_.due != (clock::time_point::max)();
                if (timer_.armed)
                    this->where->schedule_at(timer_.due, timer_);
            }
        };
        if constexpr (is_one_key) {
            if (!body.registry) {
                const arrival a =
                    body.arrive_one(*this, request_.keys.kept, stop_requested, on_wait);
                if (a == arrival::granted)
                    entry_ = &Body::entry_of(this->own);
                return a;
            }
        }
        return body.arrive_many(*this, request_.keys, stop_requested, on_wait);
    }

    void disarm() noexcept
    {
        on_stop_.reset();
        if constexpr (timed) {
            if (std::exchange(timer_.armed, false))
                this->where->cancel(timer_);
        }
    }

    void require_not_reentrant(const context* asking)
    {
        lock_mode held{};
        std::string same;
        if (request_.body->registry->would_wait_for_itself(asking, request_.keys, held, same))
            [[unlikely]] {
            if (same.empty()) // what is held is the whole mux
                same = key();
            const std::string text =
                lock_message("the lock is asked for by who holds it", name_, same);
            throw reentrant_lock_error{text, std::move(same), held, this->mode};
        }
    }

    /// No lock: an error, or for a request with a limit an empty guard.
    guard not_granted() const
    {
        switch (answer_) {
            case arrival::closed:
                throw lock_closed_error{message("the mux is closed")};
            case arrival::full:
                throw lock_queue_full_error{message("as many requests as allowed are waiting")};
            default:
                if (timed)
                    return guard{};
                throw lock_cancelled_error{message("the request was stopped")};
        }
    }

    std::string key() const
    {
        if constexpr (is_one_key)
            return key_text(request_.keys.kept.look());
        else
            return {};
    }
    std::string message(std::string_view what) const { return lock_message(what, name_, key()); }

    request request_;
    const char* name_; // of the mux, which may be gone when the coroutine is told so
    entry* entry_ = nullptr; // of the one key, when granted at once
    std::coroutine_handle<> handle_;
    std::optional<std::stop_callback<on_stop>> on_stop_;
    std::uint64_t context_id_ = 0;
    [[no_unique_address]] std::conditional_t<timed, timer, no_timer> timer_{this};
    arrival answer_ = arrival::refused;
    bool suspended_ = false; // waits, or waited and was not resumed yet: others know the request
};

} // namespace amux::detail

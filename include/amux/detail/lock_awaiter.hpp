// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/detail/lock_waiter.hpp>
#include <amux/detail/mux_guard.hpp>
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

/// A request in the frame of the coroutine that awaits it: made by `co_await`, never moved. Who gets the lock at once
/// makes no `lock_waiter`.
template <class Body, class Keys, class Limit, bool Placed>
class lock_awaiter {
public:
    using guard = mux_guard<Body>;
    using request = lock_request<Body, Keys, Limit, Placed>;

    explicit lock_awaiter(request&& r) : request_{std::move(r)}
    {
        // Its key may be gone; with what is left of it another one would be locked.
        // NOLINTNEXTLINE(bugprone-use-after-move): a pointer, which does not move away
        if (!std::exchange(r.body, nullptr)) [[unlikely]]
            fatal("a lock is awaited that was awaited before");
    }
    lock_awaiter(const lock_awaiter&) = delete;
    lock_awaiter& operator=(const lock_awaiter&) = delete;

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
            if (!request_.where)
                request_.where = scheduler_of(handle.promise());
            asking = context_of(handle.promise());
        }
        return suspend(handle, asking);
    }

    guard await_resume()
    {
        if (waiter_) [[unlikely]]
            take_answer();
        if (answer_ != arrival::granted) [[unlikely]]
            return not_granted();
        if constexpr (is_one_key) {
            if (entry_) [[likely]]
                return guard{*request_.body, *entry_, request_.mode};
        }
        return guard_of_places();
    }

private:
    static constexpr bool timed = !std::same_as<Limit, wait_forever>;
    static constexpr bool is_one_key = requires { Keys::is_one_key; };
    using entry = typename Body::entry;
    using block = typename Body::block;
    using waiter = lock_waiter<Body, timed>;

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

    /// What has come of the request meanwhile.
    [[gnu::noinline]] void take_answer() noexcept
    {
        if (waiter_->resumed()) {
            answered(arrival_of(waiter_->state));
            if (answer_ == arrival::granted)
                request_.body->resumed(*waiter_);
        }
        if (answer_ != arrival::granted)
            return;
        places_ = waiter_->places;
        if constexpr (is_one_key) {
            if (!places_)
                entry_ = &Body::entry_of(waiter_->own);
        }
    }

    /// The guard of a lock that is not one entry: on several keys, on none, on the whole mux, or one that stands in the
    /// registry.
    [[gnu::noinline]] guard guard_of_places() noexcept
    {
        if (!places_)
            return guard{*request_.body, request_.mode};
        if (context_id_ != 0)
            request_.body->registry->add(*places_, context_id_);
        return guard{*request_.body, *places_};
    }

    /// One attempt, that does not wait.
    arrival attempt()
    {
        Body& body = *request_.body;
        if constexpr (is_one_key) {
            if (!body.registry) {
                const std::uint64_t h = Body::hash_of(request_.keys.kept.look());
                return body.try_one(h, request_.keys.kept, request_.mode, entry_);
            }
        }
        return body.try_many(request_.keys, request_.mode, places_);
    }

    /// Out of line: inside a coroutine, clang before 19 may keep values in the frame that is given away here.
    [[gnu::noinline]] bool suspend(std::coroutine_handle<> handle, const context* asking)
    {
        Body& body = *request_.body;
        if (timed && !request_.where)
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
        clock::time_point due{};
        if constexpr (timed) {
            const clock::time_point now = request_.where->now();
            due = request_.limit.deadline(now);
            if (due <= now)
                return !answered(attempt());
        }
        waiter& w = waiter_.emplace(body, request_.mode, request_.where, handle);
        if constexpr (timed)
            w.end_at(due);
        const arrival a = arrive(w);
        if (a == arrival::waits)
            return true; // the frame may be gone
        return !answered(a);
    }

    arrival arrive(waiter& w)
    {
        Body& body = *request_.body;
        if constexpr (is_one_key) {
            w.hash = Body::hash_of(request_.keys.kept.look());
            w.over = Body::shards::mask_of(w.hash);
        } else {
            w.over = Body::mask_of(request_.keys);
        }
        w.stop_by(request_.stop);
        // Asked under the lock: a stop before it is seen here, one after it finds the request.
        const auto stop_requested = [this] { return request_.stop.stop_requested(); };
        const auto on_wait = [&w] { w.waits(); };
        if constexpr (is_one_key) {
            if (!body.registry)
                return body.arrive_one(w, request_.keys.kept, stop_requested, on_wait);
        }
        return body.arrive_many(w, request_.keys, stop_requested, on_wait);
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
                lock_message("the lock is asked for by who holds it", request_.body->name, same);
            throw reentrant_lock_error{text, std::move(same), held, request_.mode};
        }
    }

    /// No lock: an error, or for a request with a limit an empty guard.
    [[gnu::noinline]] guard not_granted() const
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
    std::string message(std::string_view what) const
    {
        return lock_message(what, waiter_ ? waiter_->name() : request_.body->name, key());
    }

    request request_;
    entry* entry_ = nullptr; // of the one key, when granted
    block* places_ = nullptr; // of several, or of the whole mux
    std::uint64_t context_id_ = 0;
    arrival answer_ = arrival::refused;
    std::optional<waiter> waiter_; // once it has arrived
};

} // namespace amux::detail

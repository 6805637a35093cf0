// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/lock_waiter.hpp>
#include <amux/detail/mux_body.hpp>
#include <amux/detail/mux_guard.hpp>
#include <amux/detail/promise_hooks.hpp>
#include <amux/source_location.hpp>

#include <coroutine>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace amux::detail {

/// No `resume_on`: who awaits has a scheduler, or none.
struct not_placed {};

/// A pointer that is null where it was moved from.
template <class T>
class movable_pointer {
public:
    movable_pointer(T* p) noexcept : to_{p} {}
    movable_pointer(movable_pointer&& other) noexcept : to_{std::exchange(other.to_, nullptr)} {}
    movable_pointer& operator=(movable_pointer&& other) noexcept
    {
        to_ = std::exchange(other.to_, nullptr);
        return *this;
    }
    T& operator*() const noexcept { return *to_; }
    T* operator->() const noexcept { return to_; }
    explicit operator bool() const noexcept { return to_ != nullptr; }

private:
    T* to_;
};

/// Everything that a request asks for, before it is awaited. What was moved from asks for nothing.
///
/// Member by member it is moved through registers. Moved as one piece of memory, which g++ does when it may, it would be
/// read in larger words than it was just written in: processors wait some ten cycles for that.
template <class Body, class Keys, class Wait, bool Placed = false>
struct lock_request {
    movable_pointer<Body> body;
    lock_mode mode;
    [[no_unique_address]] Keys keys;
    [[no_unique_address]] Wait wait;
    [[no_unique_address]] std::conditional_t<Placed, scheduler*, not_placed> where{};
};

/// A request in the frame of the coroutine that awaits it: made by `co_await`, never moved. Who gets the lock at once
/// makes no `lock_waiter`.
template <class Body, class Keys, class Wait, bool Placed>
class lock_awaiter {
public:
    using guard = mux_guard<Body>;
    using request = lock_request<Body, Keys, Wait, Placed>;

    explicit lock_awaiter(request&& r) : request_{std::move(r)}
    {
        // Its key may be gone; with what is left of it another one would be locked.
        if (!request_.body) [[unlikely]]
            fatal("a lock is awaited that was awaited before");
    }
    lock_awaiter(const lock_awaiter&) = delete;
    lock_awaiter& operator=(const lock_awaiter&) = delete;

    bool await_ready()
    {
        // With a limit, or an option that asks who asks, the promise is needed first.
        if (in_one_step || timed || request_.body->extra || request_.wait.stop_requested())
            return false;
        got_ = try_once();
        return got_ != nullptr;
    }

    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> handle,
                       source_location from = source_location::current())
    {
        static_assert(!timed || Placed || has_scheduler_hook<Promise>,
                      "a lock with a time limit needs a scheduler: amux::task on a loop, "
                      "amux_scheduler(promise) for "
                      "your coroutine type, or resume_on(scheduler)");
        scheduler* where = nullptr;
        const context* asking = nullptr;
        if constexpr (Placed)
            where = request_.where;
        if constexpr (!std::is_void_v<Promise>) {
            if (!where)
                where = scheduler_of(handle.promise());
            asking = context_of(handle.promise());
        }
        if constexpr (in_one_step) {
            if (!request_.body->extra) [[likely]] {
                const auto t = take();
                return t.locked ? queue(t, handle, where) : goes_on(*t.key);
            }
        }
        return suspend(handle, where, asking, from);
    }

    guard await_resume()
    {
        if (got_) [[likely]]
            return guard_of(*got_);
        return late_answer();
    }

private:
    static constexpr bool timed = has_limit<Wait>;
    static constexpr bool is_one_key = requires { Keys::is_one_key; };
    // Who has nothing to prepare for a wait arrives once: it takes the lock of the mux a single time, whatever comes.
    static constexpr bool in_one_step = is_one_key && !has_stop<Wait>;
    using entry = typename Body::entry;
    using block = typename Body::block;
    using waiter = lock_waiter<Body, Wait>;

    guard guard_of(entry& e) const noexcept { return guard{*request_.body, e, request_.mode}; }
    guard guard_of(block& b) const noexcept { return guard{*request_.body, b}; }

    /// What has come of a request that was not granted at the first attempt.
    [[gnu::noinline]] guard late_answer()
    {
        if (waiter_ && waiter_->resumed()) {
            answer_ = waiter_->state;
            if (answer_ == request_state::granted)
                request_.body->resumed(*waiter_);
        }
        if (answer_ != request_state::granted)
            return not_granted();
        if (!waiter_) // no keys at all
            return guard{*request_.body, request_.mode};
        block* const places = waiter_->places;
        if constexpr (is_one_key) {
            if (!places)
                return guard_of(*waiter_->key);
        }
        if (waiter_->context_id != 0)
            request_.body->extra->holding.add(*places, waiter_->context_id);
        return guard_of(*places);
    }

    /// Out of line: inside a coroutine, clang before 19 may keep values in the frame that is given away here.
    [[gnu::noinline]] bool suspend(std::coroutine_handle<> handle, scheduler* where,
                                   const context* asking, source_location from)
    {
        Body& body = *request_.body;
        if (timed && !where)
            throw std::logic_error{
                "amux: a lock with a time limit needs a scheduler, and this coroutine has none"};
        const bool stopped = request_.wait.stop_requested();
        if (body.closed() && (timed || !stopped)) // who may get nothing learns that it never will
            return goes_on(request_state::closed);
        if (stopped)
            return goes_on(request_state::stopped);
        const bool checks = body.extra && body.extra->prevents_reentrancy && asking;
        if (checks)
            require_not_reentrant(asking);
        if constexpr (!is_one_key) {
            if (Body::mask_of(request_.keys) == 0) // no keys at all: nothing to be ordered with
                return goes_on(request_state::granted);
        }
        recorded_request record{body.records(), asking, from, false};
        const recorded_request* const by = record.records ? &record : nullptr;
        waiter& w = waiter_.emplace(body, request_.mode, where, handle);
        if (checks)
            w.context_id = asking->id();
        if constexpr (timed) {
            const clock::time_point now = where->now();
            const clock::time_point due = request_.wait.deadline(now);
            if (due <= now)
                return goes_on(attempt(w, by));
            w.end_at(due);
            record.has_limit = due != (clock::time_point::max)();
        }
        w.over = Body::mask_of(request_.keys);
        if constexpr (has_stop<Wait>)
            w.stop_by(request_.wait.stop);
        if constexpr (is_one_key) {
            if (!body.extra) {
                const auto t = take();
                return t.locked ? wait_for_key(t, [&w](std::uint64_t) -> waiter& { return w; })
                                : goes_on(*t.key);
            }
        }
        const request_state s = body.arrive_many(w, request_.keys, stop_requested(), by);
        if (s == request_state::waiting)
            return true; // the frame may be gone
        return goes_on(s);
    }

    /// One key, and nothing else that is to be told: takes the lock, or leaves its shard locked.
    auto take()
    {
        auto& kept = request_.keys.kept;
        return request_.body->take_or_lock(Body::hash_of(kept.look()), kept, request_.mode);
    }
    bool goes_on(entry& e) noexcept
    {
        got_ = &e;
        return false;
    }

    [[gnu::noinline]] bool queue(typename Body::taken t, std::coroutine_handle<> handle,
                                 scheduler* where)
    {
        return wait_for_key(t, [&](std::uint64_t hash) -> waiter& {
            waiter& w = waiter_.emplace(*request_.body, request_.mode, where, handle);
            w.over = Body::shards::mask_of(hash);
            return w;
        });
    }

    template <class GetWaiter>
    bool wait_for_key(typename Body::taken t, GetWaiter get_waiter)
    {
        const request_state s = request_.body->wait_one(*t.locked, t.key, request_.keys.kept,
                                                        stop_requested(), get_waiter);
        return s == request_state::waiting ? true
                                           : goes_on(s); // the frame of who waits may be gone
    }

    /// Asked under the lock: a stop before it is seen there, one after it finds the request.
    auto stop_requested() const noexcept
    {
        return [this] { return request_.wait.stop_requested(); };
    }

    /// The coroutine is not suspended, and is told this.
    bool goes_on(request_state answer) noexcept
    {
        answer_ = answer;
        return false;
    }

    /// One attempt that does not wait, for a request whose time is over.
    request_state attempt(waiter& w, const recorded_request* by)
    {
        Body& body = *request_.body;
        if constexpr (is_one_key) {
            if (!body.extra) {
                w.key = try_once();
                return w.key ? request_state::granted : no_answer();
            }
        }
        w.places = body.try_many(request_.keys, Body::mask_of(request_.keys), request_.mode, by);
        return w.places ? request_state::granted : no_answer();
    }
    request_state no_answer() const noexcept
    {
        return request_.body->closed() ? request_state::closed : request_state::timed_out;
    }

    auto* try_once()
    {
        Body& body = *request_.body;
        if constexpr (is_one_key) {
            auto& kept = request_.keys.kept;
            return body.try_one(Body::hash_of(kept.look()), kept, request_.mode);
        } else {
            const auto over = Body::mask_of(request_.keys);
            return over == 0 ? nullptr : body.try_many(request_.keys, over, request_.mode, nullptr);
        }
    }

    void require_not_reentrant(const context* asking)
    {
        lock_mode held{};
        std::string same;
        if (request_.body->extra->holding.would_wait_for_itself(asking, request_.keys, held, same))
            [[unlikely]] {
            if (same.empty()) // what is held is the whole mux
                same = key_text_of(request_.keys);
            const std::string text =
                lock_message("the lock is asked for by who holds it", request_.body->name, same);
            throw reentrant_lock_error{text, std::move(same), held, request_.mode};
        }
    }

    /// No lock: an error, or for a request with a limit an empty guard.
    [[gnu::noinline]] guard not_granted() const
    {
        switch (answer_) {
            case request_state::closed:
                throw lock_closed_error{message("the mux is closed")};
            case request_state::full:
                throw lock_queue_full_error{message("as many requests as allowed are waiting")};
            default:
                if (timed)
                    return guard{};
                throw lock_cancelled_error{message("the request was stopped")};
        }
    }

    std::string message(std::string_view what) const
    {
        return lock_message(what, waiter_ ? waiter_->name() : request_.body->name,
                            key_text_of(request_.keys));
    }

    request request_;
    std::conditional_t<is_one_key, entry*, block*> got_ = nullptr; // at the first attempt
    request_state answer_ = request_state::idle; // later
    std::optional<waiter> waiter_; // once it has arrived
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/lease.hpp>
#include <amux/detail/wake_point.hpp>
#include <amux/task.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
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
    scheduler& loop() const noexcept { return core_->loop(); }

private:
    std::shared_ptr<lock_core> core_;
};

/// Runs `work` on the lock's loop and gives its result where the caller belongs: at its own place, or, without one, on
/// the loop.
template <class T>
task<T> on_loop(live_call call, task<T> work)
{
    scheduler* const home = co_await own_scheduler{};
    scheduler* const loop = &call.loop();
    co_await hop{loop};
    std::exception_ptr error;
    std::optional<T> result;
    try {
        result.emplace(co_await std::move(work));
    } catch (...) {
        error = std::current_exception();
    }
    call.end();
    if (home != loop)
        co_await hop{home};
    if (error)
        std::rethrow_exception(std::move(error));
    co_return std::move(*result);
}

/// Joins a list of wake points for a time.
template <class List>
class listed {
public:
    listed(List& list, wake_point& w) noexcept : list_{list}, point_{w} { list_.push_back(point_); }
    listed(const listed&) = delete;
    listed& operator=(const listed&) = delete;
    ~listed() { list_.erase(point_); }

private:
    List& list_;
    wake_point& point_;
};

inline constexpr auto never = (clock::time_point::max)();

inline void require_ttl(milliseconds ttl, const std::string& key)
{
    if (ttl < milliseconds{10} || ttl > std::chrono::hours{24 * 366})
        throw std::invalid_argument{lock_message(
            "a ttl is between 10 ms and 366 days, not " + std::to_string(ttl.count()) + " ms", {},
            key)};
}

[[noreturn]] inline void throw_ended(const lease& l)
{
    const end_reason reason = l.reason();
    throw lock_ended_error{
        lock_message(std::string{"the lease is over: "} + to_string(reason), {}, l.key), l.key,
        reason};
}

inline task<lock_end> wait_for_end(std::shared_ptr<lease> l)
{
    wake_point news{l->core().loop()};
    const listed here{l->watchers, news};
    while (!l->end())
        co_await news.wait(never);
    co_return *l->end();
}

inline task<lock_end> ended_call(std::shared_ptr<lease> l)
{
    live_call call{l->core().shared_from_this()};
    co_return co_await on_loop(std::move(call), wait_for_end(std::move(l)));
}

inline task<bool> wait_for_release(std::shared_ptr<lease> l)
{
    const lock_end end = co_await wait_for_end(l);
    if (l->release_trouble())
        std::rethrow_exception(l->release_trouble());
    co_return l->released() && end.reason == end_reason::released;
}

/// `open`: the request of this release, or of one before it, was not answered when it was called.
inline task<bool> release_call(std::shared_ptr<lease> l, bool open)
{
    if (!open)
        co_return false;
    live_call call{l->core().shared_from_this()};
    co_return co_await on_loop(std::move(call), wait_for_release(std::move(l)));
}

/// Waits for the answer of a request that is not sent yet: sends it, and takes itself off when the frame goes first.
class answer_wait {
public:
    explicit answer_wait(lock_core::request_ptr r)
        : request_{std::move(r)}, news{request_->core().loop()}
    {
        request_->on_answer = [this](backend_request&) { news.notify(); };
        request_->core().send(request_);
    }
    answer_wait(const answer_wait&) = delete;
    answer_wait& operator=(const answer_wait&) = delete;
    ~answer_wait()
    {
        if (!request_->answered)
            request_->on_answer = nullptr;
    }

private:
    lock_core::request_ptr request_;

public:
    wake_point news;
};

/// Sends a request, waits for its answer, and throws the trouble that it met.
inline task<lock_core::request_ptr> ask(lock_core::request_ptr r)
{
    answer_wait answer{r};
    while (!r->answered)
        co_await answer.news.wait(never);
    if (r->error)
        std::rethrow_exception(r->error);
    co_return r;
}

inline task<bool> verify_on_loop(std::shared_ptr<lease> l)
{
    l->look();
    if (l->end())
        co_return false;
    const auto r =
        co_await ask(l->core().make_request(lock_core::operation::get, l->key, l->token, {}));
    if (r->holder == l->token)
        co_return l->believes(); // it may have been given back meanwhile
    l->lost();
    co_return false;
}

inline task<bool> verify_call(std::shared_ptr<lease> l)
{
    live_call call{l->core().shared_from_this()};
    co_return co_await on_loop(std::move(call), verify_on_loop(std::move(l)));
}

inline task<clock::time_point> extend_on_loop(std::shared_ptr<lease> l,
                                              std::optional<milliseconds> ttl)
{
    wake_point news{l->core().loop()};
    const listed here{l->watchers, news};
    while (l->extending() && !l->end())
        co_await news.wait(never);
    l->look();
    if (!l->believes())
        throw_ended(*l);
    const auto r = l->extend(ttl.value_or(l->ttl()));
    l->core().send(r);
    while (!r->answered && !l->end())
        co_await news.wait(never);
    if (l->end() || l->given_back())
        throw_ended(*l);
    if (r->error)
        std::rethrow_exception(r->error);
    co_return l->valid_until();
}

inline task<clock::time_point> extend_call(std::shared_ptr<lease> l,
                                           std::optional<milliseconds> ttl)
{
    if (ttl)
        require_ttl(*ttl, l->key);
    live_call call{l->core().shared_from_this()};
    co_return co_await on_loop(std::move(call), extend_on_loop(std::move(l), ttl));
}

} // namespace amux::detail

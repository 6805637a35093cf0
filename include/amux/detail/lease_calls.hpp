// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/lease.hpp>
#include <amux/detail/loop_call.hpp>
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

/// No lease, and no pause between two polls, is longer.
inline constexpr milliseconds longest_time = std::chrono::hours{24 * 366};

inline void require_ttl(milliseconds ttl, const std::string& key)
{
    if (ttl < milliseconds{10} || ttl > longest_time)
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
    wake_point news{l->core()};
    const listed here{l->watchers, news};
    while (!l->end())
        co_await news.wait(never);
    co_return *l->end();
}

inline task<lock_end> ended_call(std::shared_ptr<lease> l)
{
    live_call call{l->core().self()};
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
    live_call call{l->core().self()};
    co_return co_await on_loop(std::move(call), wait_for_release(std::move(l)));
}

/// Waits for the answer of a request that is not sent yet: sends it, and takes itself off when the frame goes first.
class answer_wait {
public:
    explicit answer_wait(lock_core::request_ptr r) : request_{std::move(r)}, news{request_->core()}
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
    live_call call{l->core().self()};
    co_return co_await on_loop(std::move(call), verify_on_loop(std::move(l)));
}

inline task<clock::time_point> extend_on_loop(std::shared_ptr<lease> l,
                                              std::optional<milliseconds> ttl)
{
    wake_point news{l->core()};
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
    if (l->has_left())
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
    live_call call{l->core().self()};
    co_return co_await on_loop(std::move(call), extend_on_loop(std::move(l), ttl));
}

} // namespace amux::detail

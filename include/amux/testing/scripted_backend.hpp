// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/detail/sleep.hpp>
#include <amux/lock_backend.hpp>
#include <amux/memory_backend.hpp>
#include <amux/scheduler.hpp>
#include <amux/task.hpp>
#include <amux/testing/scripted_calls.hpp>

#include <chrono>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace amux::testing {

/// A store in memory whose calls go as a test says: late, lost, doubted, out of order. For tests of what uses a backend.
///
/// A call takes the next `course` of its operation, or else what `decide` says, or else the operation's `always`, which
/// is `at_once` in the beginning. It fences, keeps metadata, notifies and inspects; several `distributed_lock`s, as of
/// several processes, may share it. `wait_for_release` obeys `answers_after` and `error` of its course only.
///
/// Resumes: inside the node of `time` that carries the answer, or inside `answer` and `fail`.
/// Thread-safety: none. The thread that runs `time` makes all calls.
/// Lifetime: `time` outlives it. Its destructor answers what is unanswered as a lost connection; a `wait_for_release`
/// ends before. It does not move: give it to a lock as an lvalue.
class scripted_backend : public scripted_calls {
public:
    template <class T>
    class answer_awaiter;

    /// Empty; `time` carries its answers, and rules when its leases expire.
    explicit scripted_backend(scheduler& time) : scripted_calls{time}, store_{std::as_const(time)}
    {}
    ~scripted_backend() override { end_all(); }

    // The backend.

    /// As `lock_backend` says, when its course says so; so for the others.
    answer_awaiter<acquire_result> acquire(std::string_view key, std::string_view token,
                                           milliseconds ttl, std::string_view metadata = {});
    /// As `lock_backend` says.
    answer_awaiter<bool> extend(std::string_view key, std::string_view token, milliseconds ttl);
    /// As `lock_backend` says.
    answer_awaiter<bool> release(std::string_view key, std::string_view token);
    /// As `lock_backend` says.
    answer_awaiter<std::optional<std::string>> get(std::string_view key);
    /// As `inspecting_backend` says.
    answer_awaiter<std::optional<lease_info>> inspect(std::string_view key);
    /// As `notifying_backend` says.
    task<> wait_for_release(std::string_view key, std::stop_token stop = {});

    // The store, seen from outside.

    /// Who holds a key; none when it is free.
    std::optional<std::string> holder(std::string_view key)
    {
        return store_.get(key).await_resume();
    }
    /// How many leases are alive.
    std::size_t size() const { return store_.size(); }
    /// Frees a key, whoever holds it: what an administrator does, or a store that has lost its data.
    void drop(std::string_view key)
    {
        if (const auto who = holder(key))
            store_.release(key, *who);
    }
    /// Somebody else has the key from now on, whoever held it.
    void usurp(std::string_view key, std::string_view token, milliseconds ttl)
    {
        drop(key);
        store_.acquire(key, token, ttl);
    }

private:
    friend class plain_scripted_backend;

    void carry_out(request& r) override;
    task<> watch(std::string key, course way, std::stop_token stop);

    memory_backend store_;
};

/// The same store, and the same script, for a lock that may use no more than the four operations, and only yes and no.
class plain_scripted_backend {
public:
    /// What times are given in.
    using milliseconds = std::chrono::milliseconds;

    /// Lifetime: `all` outlives it.
    explicit plain_scripted_backend(scripted_backend& all) noexcept : all_{&all} {}

    /// As `scripted_backend` does it; gives yes or no.
    scripted_backend::answer_awaiter<bool> acquire(std::string_view key, std::string_view token,
                                                   milliseconds ttl);
    /// As `scripted_backend` does it.
    scripted_backend::answer_awaiter<bool> extend(std::string_view key, std::string_view token,
                                                  milliseconds ttl);
    /// As `scripted_backend` does it.
    scripted_backend::answer_awaiter<bool> release(std::string_view key, std::string_view token);
    /// As `scripted_backend` does it.
    scripted_backend::answer_awaiter<std::optional<std::string>> get(std::string_view key);

private:
    scripted_backend* all_;
};

/// What an operation gives to `co_await`. It may be destroyed unanswered; the call then goes its way all the same.
template <class T>
class scripted_backend::answer_awaiter {
public:
    /// For `scripted_backend`.
    explicit answer_awaiter(std::shared_ptr<request> r) noexcept : request_{std::move(r)} {}
    answer_awaiter(answer_awaiter&&) noexcept = default;
    answer_awaiter& operator=(answer_awaiter&&) = delete;
    ~answer_awaiter()
    {
        if (request_)
            request_->waiter = nullptr;
    }

    bool await_ready() const noexcept { return request_->call.answered.has_value(); }
    [[gnu::noinline]] void await_suspend(std::coroutine_handle<> h) noexcept
    {
        request_->waiter = h;
    }
    T await_resume()
    {
        request& r = *request_;
        if (r.way.error)
            std::rethrow_exception(r.way.error);
        if constexpr (std::is_same_v<T, acquire_result>)
            return r.grant;
        else if constexpr (std::is_same_v<T, bool>)
            return r.yes;
        else if constexpr (std::is_same_v<T, std::optional<std::string>>)
            return std::move(r.holder);
        else
            return std::move(r.info);
    }

private:
    std::shared_ptr<request> request_;
};

inline void scripted_backend::carry_out(request& r)
{
    const backend_call& c = r.call;
    switch (c.op) {
        case operation::acquire:
            r.grant = store_.acquire(c.key, c.token, c.ttl, c.metadata).await_resume();
            r.yes = r.grant.acquired;
            break;
        case operation::extend:
            r.yes = store_.extend(c.key, c.token, c.ttl).await_resume();
            break;
        case operation::release:
            r.yes = store_.release(c.key, c.token).await_resume();
            break;
        case operation::get:
            r.holder = store_.get(c.key).await_resume();
            break;
        default:
            r.info = store_.inspect(c.key).await_resume();
    }
}

inline auto scripted_backend::acquire(std::string_view key, std::string_view token,
                                      milliseconds ttl, std::string_view metadata)
    -> answer_awaiter<acquire_result>
{
    return answer_awaiter<acquire_result>{send(operation::acquire, key, token, ttl, metadata)};
}

inline auto scripted_backend::extend(std::string_view key, std::string_view token, milliseconds ttl)
    -> answer_awaiter<bool>
{
    return answer_awaiter<bool>{send(operation::extend, key, token, ttl)};
}

inline auto scripted_backend::release(std::string_view key, std::string_view token)
    -> answer_awaiter<bool>
{
    return answer_awaiter<bool>{send(operation::release, key, token)};
}

inline auto scripted_backend::get(std::string_view key)
    -> answer_awaiter<std::optional<std::string>>
{
    return answer_awaiter<std::optional<std::string>>{send(operation::get, key)};
}

inline auto scripted_backend::inspect(std::string_view key)
    -> answer_awaiter<std::optional<lease_info>>
{
    return answer_awaiter<std::optional<lease_info>>{send(operation::inspect, key)};
}

inline task<> scripted_backend::wait_for_release(std::string_view key, std::stop_token stop)
{
    return watch(std::string{key}, begin(operation::wait, key, {}, {}, {}).second, std::move(stop));
}

inline task<> scripted_backend::watch(std::string key, course way, std::stop_token stop)
{
    if (!way.error)
        co_await store_.wait_for_release(key, stop);
    if (way.answers_after != milliseconds{}) {
        const auto due = amux::detail::deadline_after(time().now(), way.answers_after);
        co_await amux::detail::sleep_awaiter{time(), due, std::move(stop)};
    }
    if (way.error)
        std::rethrow_exception(std::move(way.error));
}

inline auto plain_scripted_backend::acquire(std::string_view key, std::string_view token,
                                            milliseconds ttl)
    -> scripted_backend::answer_awaiter<bool>
{
    return scripted_backend::answer_awaiter<bool>{all_->send(operation::acquire, key, token, ttl)};
}

inline auto plain_scripted_backend::extend(std::string_view key, std::string_view token,
                                           milliseconds ttl)
    -> scripted_backend::answer_awaiter<bool>
{
    return all_->extend(key, token, ttl);
}

inline auto plain_scripted_backend::release(std::string_view key, std::string_view token)
    -> scripted_backend::answer_awaiter<bool>
{
    return all_->release(key, token);
}

inline auto plain_scripted_backend::get(std::string_view key)
    -> scripted_backend::answer_awaiter<std::optional<std::string>>
{
    return all_->get(key);
}

} // namespace amux::testing

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/error.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace amux::testing {

/// The calls of a backend, as `lock_backend` and `notifying_backend` name them; `wait` is `wait_for_release`.
enum class operation : unsigned char { acquire, extend, release, get, inspect, wait };

/// "acquire", "extend", "release", "get", "inspect" or "wait".
constexpr const char* to_string(operation o) noexcept
{
    constexpr std::array names{"acquire", "extend", "release", "get", "inspect", "wait"};
    return names[static_cast<std::size_t>(o)];
}

/// How a call goes: when the store carries it out, when its caller hears, and what. Times count from the call.
struct course {
    /// What times are given in.
    using milliseconds = std::chrono::milliseconds;
    /// A time that does not come.
    static constexpr milliseconds never = (milliseconds::max)();

    /// When the store carries it out; `never`: not at all.
    milliseconds acts_after{};
    /// When its caller hears; `never`: when the test says so.
    milliseconds answers_after{};
    /// What the caller gets instead of the answer.
    std::exception_ptr error;

    /// Carried out and answered at once.
    static course at_once() { return {}; }
    /// Carried out at once; the answer takes `d`.
    static course late(milliseconds d) { return {{}, d, nullptr}; }
    /// The request takes `there`, the answer `back`.
    static course slow(milliseconds there, milliseconds back)
    {
        return {there, there + back, nullptr};
    }
    /// Not carried out, and its caller is told so.
    static course fails(backend_error_kind kind, milliseconds after = {})
    {
        return {never, after, trouble(kind, "the store refuses")};
    }
    /// Not carried out; `e` may be anything.
    static course throws(std::exception_ptr e, milliseconds after = {})
    {
        return {never, after, std::move(e)};
    }
    /// Carried out at once, but the answer is lost.
    static course loses_reply(milliseconds after = {})
    {
        return {{}, after, trouble(backend_error_kind::indeterminate, "the answer is lost")};
    }
    /// Not carried out; the caller gives up after the backend's own limit.
    static course is_silent(milliseconds limit = milliseconds{1'000})
    {
        return acts_late(never, limit);
    }
    /// Carried out after `d`, even when the caller has given up by then.
    static course acts_late(milliseconds d, milliseconds limit = milliseconds{1'000})
    {
        return {d, limit, trouble(backend_error_kind::indeterminate, "no answer in time")};
    }
    /// Nothing happens before the test says so: `act`, `answer`, `fail`.
    static course held() { return {never, never, nullptr}; }

    /// A `backend_error`, for `error`.
    static std::exception_ptr trouble(backend_error_kind kind, const std::string& message)
    {
        return std::make_exception_ptr(backend_error{kind, message});
    }
};

/// What the log of a scripted backend tells of a call.
struct backend_call {
    /// From 1, over all operations.
    std::size_t number = 0;
    /// Which call it is.
    operation op{};
    /// As it was called.
    std::string key;
    /// As it was called; empty for `get`, `inspect` and `wait`.
    std::string token;
    /// As it was called; zero where there is none.
    std::chrono::milliseconds ttl{};
    /// As it was called; empty where there is none.
    std::string metadata;
    /// When it was called.
    clock::time_point at;
    /// When the store has carried it out.
    std::optional<clock::time_point> acted;
    /// When its caller has heard.
    std::optional<clock::time_point> answered;
};

} // namespace amux::testing

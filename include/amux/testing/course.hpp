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

enum class operation : unsigned char { acquire, extend, release, get, inspect, wait };

/// "acquire", "extend", "release", "get", "inspect" or "wait".
constexpr const char* to_string(operation o) noexcept
{
    constexpr std::array names{"acquire", "extend", "release", "get", "inspect", "wait"};
    return names[static_cast<std::size_t>(o)];
}

/// How a call goes: when the store carries it out, when its caller hears, and what. Times count from the call.
struct course {
    using milliseconds = std::chrono::milliseconds;
    static constexpr milliseconds never = (milliseconds::max)();

    milliseconds acts_after{}; // `never`: not at all
    milliseconds answers_after{}; // `never`: when the test says so
    std::exception_ptr error; // what the caller gets instead of the answer

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

    static std::exception_ptr trouble(backend_error_kind kind, const std::string& message)
    {
        return std::make_exception_ptr(backend_error{kind, message});
    }
};

/// What the log of a scripted backend tells of a call.
struct backend_call {
    std::size_t number = 0; // from 1, over all operations
    operation op{};
    std::string key;
    std::string token;
    std::chrono::milliseconds ttl{};
    std::string metadata;
    clock::time_point at; // of the call
    std::optional<clock::time_point> acted; // when the store has carried it out
    std::optional<clock::time_point> answered; // when its caller has heard
};

} // namespace amux::testing

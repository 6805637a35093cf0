// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/lock_mode.hpp>

#include <concepts>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace amux {

/// Base of what amux throws when a lock cannot be had or used. Misuse by the programmer that would be unsafe to go on
/// from ends the program instead, with a message on the standard error stream.
class lock_error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// The request's stop token was stopped before the lock was granted: the lock is not held.
class lock_cancelled_error : public lock_error {
public:
    using lock_error::lock_error;
};

/// The mux was closed before the lock was granted: the lock is not held, and never will be.
class lock_closed_error : public lock_error {
public:
    using lock_error::lock_error;
};

/// The request would have waited, and as many as the options allow are waiting already.
class lock_queue_full_error : public lock_error {
public:
    using lock_error::lock_error;
};

/// A guard that owns nothing was asked to release, or to downgrade, what it does not own.
class lock_released_error : public lock_error {
public:
    using lock_error::lock_error;
};

/// The request would wait for a lock that its own context, or one that awaits it, holds: it would wait for ever.
class reentrant_lock_error : public lock_error {
public:
    reentrant_lock_error(const std::string& message, std::string key, lock_mode held,
                         lock_mode asked)
        : lock_error{message}, key_{std::move(key)}, held_{held}, asked_{asked}
    {}

    /// The key that was asked for, as text; empty for the whole mux and for a key that has no text.
    const std::string& key() const noexcept { return key_; }
    lock_mode held_mode() const noexcept { return held_; }
    lock_mode asked_mode() const noexcept { return asked_; }

private:
    std::string key_;
    lock_mode held_;
    lock_mode asked_;
};

namespace detail {

/// A key for a message: itself when it is text or an integer, else nothing.
template <class K>
std::string key_text(const K& key)
{
    if constexpr (std::is_convertible_v<const K&, std::string_view>)
        return std::string{static_cast<std::string_view>(key)};
    else if constexpr (std::same_as<K, bool>)
        return key ? "true" : "false";
    else if constexpr (std::same_as<K, char>)
        return std::string(1, key);
    else if constexpr (std::integral<K> && requires { std::to_string(key); })
        return std::to_string(key);
    else
        return {};
}

/// "amux: <what> (mux 'name', key 'k')"; an empty name or key is left out.
inline std::string lock_message(std::string_view what, std::string_view mux_name,
                                std::string_view key)
{
    std::string text{"amux: "};
    text += what;
    const char* separator = " (";
    if (!mux_name.empty()) {
        text.append(separator).append("mux '").append(mux_name).append("'");
        separator = ", ";
    }
    if (!key.empty()) {
        text.append(separator).append("key '").append(key).append("'");
        separator = ", ";
    }
    if (separator[0] == ',')
        text += ')';
    return text;
}

} // namespace detail
} // namespace amux

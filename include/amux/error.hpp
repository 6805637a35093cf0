// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/in_quotes.hpp>
#include <amux/lock_mode.hpp>

#include <chrono>
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
    /// What an `asyncmux` with `prevent_reentrancy` throws.
    reentrant_lock_error(const std::string& message, std::string key, lock_mode held,
                         lock_mode asked)
        : lock_error{message}, key_{std::move(key)}, held_{held}, asked_{asked}
    {}

    /// The key that was asked for, of several the one that is held, as text; empty for the whole mux, and without a text.
    const std::string& key() const noexcept { return key_; }
    /// How it is held already.
    lock_mode held_mode() const noexcept { return held_; }
    /// How it was asked for.
    lock_mode asked_mode() const noexcept { return asked_; }

private:
    std::string key_;
    lock_mode held_;
    lock_mode asked_;
};

/// Why a lease is over: given back; its time ran out, or the store said that it is somebody else's; or its stop token was
/// stopped.
enum class end_reason : unsigned char { released, expired, aborted };

/// "released", "expired" or "aborted".
constexpr const char* to_string(end_reason reason) noexcept
{
    switch (reason) {
        case end_reason::released:
            return "released";
        case end_reason::expired:
            return "expired";
        default:
            return "aborted";
    }
}

/// A lease was not to be had in the time that its caller was ready to wait.
class lock_wait_timeout_error : public lock_error {
public:
    /// What `acquire` throws.
    lock_wait_timeout_error(const std::string& message, std::string key,
                            std::chrono::milliseconds waited, bool store_in_trouble = false)
        : lock_error{message},
          key_{std::move(key)},
          waited_{waited},
          store_in_trouble_{store_in_trouble}
    {}

    /// The key that was asked for.
    const std::string& key() const noexcept { return key_; }
    /// How long the call has really waited.
    std::chrono::milliseconds waited() const noexcept { return waited_; }
    /// Whether the store was in trouble when it was asked last: nobody may have held the lease.
    ///
    /// Its last answer decides. A question in flight counts as trouble when it has been unanswered for half a second, and
    /// for twice as long as the last answer took; when there was no answer yet, at once.
    bool store_in_trouble() const noexcept { return store_in_trouble_; }

private:
    std::string key_;
    std::chrono::milliseconds waited_;
    bool store_in_trouble_;
};

/// A lease is over: what was asked of it, or was done under it, is not covered by the lock.
class lock_ended_error : public lock_error {
public:
    /// What `extend` and `with_lock` throw.
    lock_ended_error(const std::string& message, std::string key, end_reason reason)
        : lock_error{message}, key_{std::move(key)}, reason_{reason}
    {}

    /// The key of the lease.
    const std::string& key() const noexcept { return key_; }
    /// Why it is over.
    end_reason reason() const noexcept { return reason_; }

private:
    std::string key_;
    end_reason reason_;
};

/// What a store's trouble means for the request that met it.
enum class backend_error_kind : unsigned char {
    not_applied, ///< it has not been carried out, and never will be: ask again
    indeterminate, ///< it may have been carried out, or may be later: assume the worse
    permanent, ///< asking again will not help
};

/// "not applied", "indeterminate" or "permanent".
constexpr const char* to_string(backend_error_kind kind) noexcept
{
    switch (kind) {
        case backend_error_kind::not_applied:
            return "not applied";
        case backend_error_kind::indeterminate:
            return "indeterminate";
        default:
            return "permanent";
    }
}

/// A store could not be asked, or did not answer. Not an answer: who asked knows nothing new about the lease.
class backend_error : public lock_error {
public:
    /// What a backend throws when it is in trouble.
    backend_error(backend_error_kind kind, const std::string& message)
        : lock_error{message}, kind_{kind}
    {}

    /// What the trouble means for the request.
    backend_error_kind kind() const noexcept { return kind_; }

private:
    backend_error_kind kind_;
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
    std::string about = mux_name.empty() ? "" : "mux " + in_quotes(mux_name);
    if (!key.empty())
        about += (about.empty() ? "key " : ", key ") + in_quotes(key);
    return "amux: " + std::string{what} + (about.empty() ? "" : " (" + about + ")");
}

} // namespace detail
} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/detail/awaitable.hpp>
#include <amux/error.hpp>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace amux {

/// A number that rises with every grant of a key, over all holders: a resource that remembers the highest one it has
/// seen, and refuses lower ones, is safe from a holder that has not noticed its loss. (Kleppmann: How to do distributed
/// locking, 2016.)
using fencing_token = std::uint64_t;

/// A backend's answer to `acquire`, when it knows more than yes and no.
struct acquire_result {
    /// Whether it was granted.
    bool acquired = false;
    /// Of a grant, by a store that can count.
    std::optional<fencing_token> fence{};
    /// Of a refusal: how long the holder's lease lasts at most, if the store says so.
    std::optional<std::chrono::milliseconds> holder_ttl{};
};

/// The same of a store that cannot count.
struct unfenced_result {
    /// Whether it was granted.
    bool acquired = false;
    /// Of a refusal: how long the holder's lease lasts at most, if the store says so.
    std::optional<std::chrono::milliseconds> holder_ttl{};
};

/// What a backend knows of a lease.
struct lease_info {
    /// Of its holder.
    std::string token{};
    /// The number of its grant; none when the store does not count.
    std::optional<fencing_token> fence{};
    /// How long it lasts yet; none when the store does not say.
    std::optional<std::chrono::milliseconds> remaining{};
    /// The text that its holder has given with it; empty when the store does not keep it.
    std::string metadata{};
};

namespace detail {

template <class T>
concept acquire_answer =
    std::same_as<T, acquire_result> || std::same_as<T, unfenced_result> || std::same_as<T, bool>;

template <class Awaitable, class Result>
concept awaits_to =
    awaitable<Awaitable> && std::same_as<std::remove_cvref_t<await_result_t<Awaitable>>, Result>;

} // namespace detail

/// A store of leases that several processes share. An author needs these four operations; each gives anything that can
/// be awaited.
///
/// Law. Each operation is atomic across all processes. A lease is a key, the token of its holder, and a time to live;
/// when that is over the key is free, for every operation.
///   `acquire` takes a free key. Asked again with the token that owns the lease it succeeds, and the ttl starts anew: so
///             a request whose reply was lost can be repeated. It gives `bool`,
///             `unfenced_result` or `acquire_result`.
///   `extend`  lets the ttl start anew if the token owns the lease; else gives false. It never creates a lease.
///   `release` frees the key if the token owns the lease; else gives false.
///   `get`     gives the token of the holder, none for a free key.
/// Trouble is a thrown `backend_error`; any other exception counts as `indeterminate`. An operation ends by a limit of
/// the backend's own, on any thread, and reads key and token until then. It may be started on any thread.
template <class B>
concept lock_backend =
    requires(B& b, std::string_view key, std::string_view token, std::chrono::milliseconds ttl) {
        requires detail::acquire_answer<
            std::remove_cvref_t<detail::await_result_t<decltype(b.acquire(key, token, ttl))>>>;
        { b.extend(key, token, ttl) } -> detail::awaits_to<bool>;
        { b.release(key, token) } -> detail::awaits_to<bool>;
        { b.get(key) } -> detail::awaits_to<std::optional<std::string>>;
    };

/// Gives a fence with every grant; the same one when the owner acquires again.
template <class B>
concept fencing_backend =
    lock_backend<B> && requires(B& b, std::string_view s, std::chrono::milliseconds ttl) {
        { b.acquire(s, s, ttl) } -> detail::awaits_to<acquire_result>;
    };

/// Keeps a text with a lease, for people who ask who holds it.
template <class B>
concept metadata_backend =
    lock_backend<B> && requires(B& b, std::string_view s, std::chrono::milliseconds ttl) {
        requires detail::acquire_answer<
            std::remove_cvref_t<detail::await_result_t<decltype(b.acquire(s, s, ttl, s))>>>;
    };

/// Tells when a key may be free: `wait_for_release(key, stop)` is done once it was released, at once when it is free
/// already, when it is stopped, and whenever else it likes. A hint, never a grant; its result is not looked at.
template <class B>
concept notifying_backend =
    lock_backend<B> && requires(B& b, std::string_view key, std::stop_token stop) {
        { b.wait_for_release(key, stop) } -> detail::awaitable;
    };

/// Says who holds a key and for how long.
template <class B>
concept inspecting_backend = lock_backend<B> && requires(B& b, std::string_view key) {
    { b.inspect(key) } -> detail::awaits_to<std::optional<lease_info>>;
};

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

/// \file
/// A lease for as long as a web request takes, for any web server. `web_httplib.hpp` and `web_beast.hpp` fit it to two.

#include <amux/detail/stop_token.hpp>
#include <amux/acquired_lock.hpp>
#include <amux/error.hpp>
#include <amux/lock_options.hpp>
#include <amux/task.hpp>

#include <chrono>
#include <concepts>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace amux {

/// Why the lock, and not the handler, answers a request.
enum class web_refusal : unsigned char {
    bad_key, ///< the key function threw, or gave an empty key: 400
    busy, ///< somebody else holds the key, and the request does not wait: 423
    timed_out, ///< it has waited for `max_wait`: 503
    store_trouble, ///< the store is in trouble: 503
    closing, ///< the locks are drained, since the server shuts down: 503
    disconnected, ///< the client has gone while it waited: 503, which nobody reads
    lost, ///< the lease was lost before the handler has answered: 500
};

/// What a client is told.
struct web_answer {
    /// Of HTTP.
    int status = 503;
    /// Of the body.
    std::string content_type = "application/problem+json";
    /// By default a problem document as in RFC 9457.
    std::string body{};
    /// For `Retry-After`; zero: no such header.
    std::chrono::seconds retry_after{};
};

/// How a request is locked. `hold_for_request` copies it, with its text.
struct web_lock_options {
    /// Of the lease: `ttl`, `renew`, how long to wait, and so on.
    acquire_options lease{};
    /// In line with the others. False: one attempt, and then "busy".
    bool wait = true;
    /// Give the lease back as soon as the client has gone, though the handler may still work. Otherwise the handler is
    /// told by `closed_token()`, and the lease is given back when it has ended: no client can have two handlers at a time.
    bool release_on_close = false;
    /// 409 is what some clients know better. Of an error: 400 to 599.
    int busy_status = 423;
    /// What refused clients are told; rounded up to what the client should do.
    std::chrono::seconds retry_after{1};
    /// Called before an answer is sent, to change it, and to log: `cause` is what was thrown, or null. By several threads
    /// at a time if the server has several. When it throws, the answer is sent as it was.
    void (*on_refusal)(web_answer&, web_refusal, const std::exception_ptr& cause) = nullptr;
};

namespace detail {

struct web_words {
    int status;
    std::string_view detail;
};

inline web_words words_of(web_refusal why, int busy_status) noexcept
{
    switch (why) {
        case web_refusal::bad_key:
            return {400, "The request does not say what it is about."};
        case web_refusal::busy:
            return {busy_status, "Another request for the same thing is being handled."};
        case web_refusal::timed_out:
            return {503, "Other requests for the same thing have taken too long."};
        case web_refusal::store_trouble:
            return {503, "The store of locks does not work."};
        case web_refusal::closing:
            return {503, "The server is shutting down."};
        case web_refusal::disconnected:
            return {503, "The connection was closed."};
        default:
            return {500, "The lock was lost while the request was handled."};
    }
}

inline std::string_view title_of(int status) noexcept
{
    switch (status) {
        case 400:
            return "Bad Request";
        case 409:
            return "Conflict";
        case 422:
            return "Unprocessable Content";
        case 423:
            return "Locked";
        case 429:
            return "Too Many Requests";
        case 500:
            return "Internal Server Error";
        case 503:
            return "Service Unavailable";
        default:
            return "Request not handled";
    }
}

/// Nothing in it comes from outside, so nothing needs to be escaped.
inline std::string problem_document(int status, std::string_view detail)
{
    std::string body;
    body.append("{\"title\":\"").append(title_of(status));
    body.append("\",\"status\":").append(std::to_string(status));
    body.append(",\"detail\":\"").append(detail).append("\"}\n");
    return body;
}

/// A client must not take a refusal for what it has asked for.
inline void require_answers(const web_lock_options& options)
{
    if (options.busy_status < 400 || options.busy_status > 599)
        throw std::invalid_argument{"amux: busy_status is one of an error, 400 to 599, not " +
                                    std::to_string(options.busy_status)};
    if (options.retry_after < std::chrono::seconds{})
        throw std::invalid_argument{"amux: retry_after must not be negative"};
}

/// Whether it makes sense to come again soon.
inline bool may_pass(web_refusal why, const std::exception_ptr& cause) noexcept
{
    if (why == web_refusal::store_trouble)
        return !cause || kind_of(cause) != backend_error_kind::permanent;
    return why != web_refusal::bad_key && why != web_refusal::lost;
}

inline web_answer answer_to(web_refusal why, const web_lock_options& options,
                            const std::exception_ptr& cause)
{
    const web_words words = words_of(why, options.busy_status);
    const std::string body = problem_document(words.status, words.detail);
    web_answer a;
    a.status = words.status;
    a.body = body;
    if (may_pass(why, cause))
        a.retry_after = options.retry_after;
    if (!options.on_refusal)
        return a;
    web_answer plain = a;
    try {
        options.on_refusal(a, why, cause);
    } catch (...) {
        return plain; // the client is answered all the same
    }
    if (a.status != words.status && a.body == body)
        a.body = problem_document(a.status, words.detail); // it says the status too
    return a;
}

} // namespace detail

/// What became of a request's lock: shown to the handler, and kept until the response is finished.
///
///     begin ──> refused    somebody answers with `answer()`, and the handler does not run
///       ├─────> unlocked   the key function wants no lock: the handler runs without
///       └─────> held ────> lost   `lost_token()` stops; `loss()` is the answer, unless the handler has answered
///                 └──────> over   `give_back()`, or the destructor, whichever comes first
///
/// The one who serves the request, and nobody else, moves it on. `lost_token` and `closed_token` may be used anywhere.
/// Moved, it leaves one behind that has no handle, but knows the lease: it tells whether it is held or lost, and its
/// `give_back()` ends it. So a handler that moves its hold away keeps the lease no longer than the response takes.
/// Lifetime: the `distributed_lock` outlives it.
class [[nodiscard("the lease is given back at once when it is dropped")]] web_hold {
public:
    /// Refused, for `request_lock`.
    web_hold(web_refusal why, const web_lock_options& options, const std::exception_ptr& cause)
        : options_{options}, answer_{detail::answer_to(why, options, cause)}
    {}
    /// Held, or, with none, unlocked; for `request_lock`.
    web_hold(std::optional<acquired_lock> lease, const web_lock_options& options,
             std::stop_token closed)
        : options_{options}, closed_{std::move(closed)}, lease_{std::move(lease)}
    {
        if (lease_)
            state_ = detail::lease_access::shared(*lease_);
    }
    web_hold(web_hold&& other) noexcept
        : options_{other.options_},
          answer_{std::move(other.answer_)},
          closed_{other.closed_},
          lease_{std::exchange(other.lease_, std::nullopt)},
          state_{other.state_}
    {}
    web_hold& operator=(web_hold&&) = delete;
    ~web_hold() = default;

    /// Whether the handler may run.
    explicit operator bool() const noexcept { return !answer_; }
    /// What to answer instead. Requires: `!*this`.
    const web_answer& answer() const noexcept { return *answer_; }

    /// The lease; null when there is none: refused, unlocked, given back, or moved away.
    const acquired_lock* lease() const noexcept { return lease_ ? &*lease_ : nullptr; }
    /// Whether the lease is held at this moment, as far as its holder can know.
    bool is_held() const noexcept { return state_ && state_->believes(); }
    /// Stops when the lease is lost; with `release_on_close` also when the client has gone.
    std::stop_token lost_token() const noexcept
    {
        return state_ ? state_->lost_token() : std::stop_token{};
    }
    /// Stops when the client has gone.
    std::stop_token closed_token() const noexcept { return closed_; }

    /// Whether the lease was lost: neither held any more, nor given back.
    bool is_lost() const noexcept { return state_ && !state_->believes() && !state_->given_back(); }
    /// What to answer when the lease is lost, and the handler has come back without an answer, or with an error of amux.
    web_answer loss() const { return detail::answer_to(web_refusal::lost, options_, nullptr); }

    /// The response is finished. Effects: belief ends, and the release is sent, once; nobody waits for its answer.
    void give_back() noexcept
    {
        if (state_)
            state_->begin_release();
        lease_.reset();
        state_.reset();
    }

private:
    web_lock_options options_;
    std::optional<web_answer> answer_;
    std::stop_token closed_;
    std::optional<acquired_lock> lease_; // the handle, unless it was moved away
    std::shared_ptr<detail::lease> state_; // null: none, or given back
};

namespace detail {

template <class Locks>
task<std::optional<acquired_lock>> acquire_for_request(Locks& locks, std::string key,
                                                       std::string metadata,
                                                       const web_lock_options& options,
                                                       std::stop_token stop)
{
    acquire_options lease = options.lease;
    lease.metadata = metadata;
    if (!options.wait)
        co_return co_await locks.try_acquire(key, lease, std::move(stop));
    acquired_lock held = co_await locks.acquire(key, lease, std::move(stop));
    co_return std::optional<acquired_lock>{std::move(held)};
}

template <class Locks>
task<web_hold> begin_request(Locks& locks, std::string key, std::string metadata,
                             web_lock_options options, std::stop_token closed)
{
    std::optional<acquired_lock> lease;
    web_refusal why = web_refusal::busy;
    std::exception_ptr cause;
    try {
        std::stop_source give_up;
        const auto stop_it = [&give_up] { give_up.request_stop(); };
        // It is gone before the handler begins: from then on the client's going ends no lease.
        const std::stop_callback gone{closed, stop_it};
        // Named: g++ 12 destroys twice what `?:` gives inside a co_await expression.
        std::stop_token stop = options.release_on_close ? closed : give_up.get_token();
        lease = co_await acquire_for_request(locks, std::move(key), std::move(metadata), options,
                                             std::move(stop));
    } catch (const lock_cancelled_error&) {
        why = web_refusal::disconnected;
        cause = std::current_exception();
    } catch (const lock_wait_timeout_error& e) {
        why = e.store_in_trouble() ? web_refusal::store_trouble : web_refusal::timed_out;
        cause = std::current_exception();
    } catch (const lock_closed_error&) {
        why = web_refusal::closing;
        cause = std::current_exception();
    } catch (const backend_error&) {
        why = web_refusal::store_trouble;
        cause = std::current_exception();
    }
    if (lease && closed.stop_requested()) {
        lease.reset(); // granted at the moment when the client has gone
        why = web_refusal::disconnected;
    }
    if (lease)
        co_return web_hold{std::move(lease), options, std::move(closed)};
    co_return web_hold{why, options, cause};
}

inline task<web_hold> begun(web_hold h)
{
    co_return std::move(h);
}

template <class T>
concept text = std::convertible_to<T, std::string_view> || std::convertible_to<T, std::string>;

template <class T>
inline constexpr bool is_optional_text = false;
template <text T>
inline constexpr bool is_optional_text<std::optional<T>> = true;

/// What a key function may give. No pointer but that to characters: its null could mean "no key" as well as "no lock".
template <class T>
concept request_key = text<T> || is_optional_text<T>;

template <text T>
std::string text_of(const T& given)
{
    if constexpr (std::is_pointer_v<T>) {
        if (!given)
            return {};
    }
    if constexpr (std::convertible_to<const T&, std::string_view>)
        return std::string{static_cast<std::string_view>(given)};
    else
        return static_cast<std::string>(given);
}

/// None: the request needs no lock.
template <request_key T>
std::optional<std::string> key_from(const T& given)
{
    if constexpr (text<T>)
        return text_of(given);
    else
        return given ? std::optional<std::string>{text_of(*given)} : std::nullopt;
}

/// As `std::invoke`, whose header is a heavy one.
template <class KeyOf, class Request>
decltype(auto) key_of_request(const KeyOf& key_of, const Request& request)
{
    if constexpr (std::is_member_object_pointer_v<KeyOf>)
        return (request.*key_of);
    else if constexpr (std::is_member_function_pointer_v<KeyOf>)
        return (request.*key_of)();
    else
        return key_of(request);
}

/// A key given by itself stands for a function that gives it.
struct fixed_key {
    const std::string& operator()(const auto&) const noexcept { return key; }
    std::string key;
};

} // namespace detail

/// Locks requests of one route, each by its key. Made by `hold_for_request`.
///
/// Its copies are as good as itself. Thread-safety: any thread, as far as the key function allows.
/// Lifetime: `locks` outlive it and what it has begun.
template <class Locks, class KeyOf>
class request_lock {
public:
    /// For `hold_for_request`.
    request_lock(Locks& locks, KeyOf key_of, const web_lock_options& options)
        : locks_{&locks},
          key_of_{std::move(key_of)},
          options_{options},
          metadata_{options.lease.metadata}
    {
        locks.require(options.lease);
        detail::require_answers(options);
        options_.lease.metadata = {}; // of the caller, who may go
    }

    /// Takes the lease for a request, which is looked at in this call only.
    ///
    /// `closed` stops when the client has gone, on any thread: the request leaves the line.
    /// Resumes: as `acquire` does.
    template <class Request>
    task<web_hold> begin(const Request& request, std::stop_token closed = {}) const
    {
        static_assert(
            std::invocable<const KeyOf&, const Request&>,
            "the key function takes the server's request, by value or by const reference");
        static_assert(detail::request_key<
                          std::remove_cvref_t<std::invoke_result_t<const KeyOf&, const Request&>>>,
                      "the key function gives a text, or a std::optional of one");
        std::optional<std::string> key;
        try {
            key = detail::key_from(detail::key_of_request(key_of_, request));
        } catch (...) {
            return refused(std::current_exception());
        }
        if (!key)
            return detail::begun(web_hold{std::nullopt, options_, std::move(closed)});
        if (key->empty())
            return refused(nullptr);
        return detail::begin_request(*locks_, std::move(*key), metadata_, options_,
                                     std::move(closed));
    }

private:
    task<web_hold> refused(const std::exception_ptr& cause) const
    {
        return detail::begun(web_hold{web_refusal::bad_key, options_, cause});
    }

    Locks* locks_;
    KeyOf key_of_;
    web_lock_options options_;
    std::string metadata_;
};

/// A lock for the requests of a route: `hold_for_request(locks, account_of, {.lease = {.ttl = 10s}})`.
///
/// `key_of` is given the server's request, and gives its key as text; or, as `std::optional` of one, none for a request that
/// needs no lock. A pointer to a member will do. Several threads may call it at a time. What it throws, and an empty key,
/// is answered with 400. Throws: `std::invalid_argument` when the options cannot be.
template <class Locks, class KeyOf>
    requires(!std::convertible_to<KeyOf, std::string_view>)
request_lock<Locks, KeyOf> hold_for_request(Locks& locks, KeyOf key_of,
                                            const web_lock_options& options = {})
{
    return {locks, std::move(key_of), options};
}
/// The same key for every request. Throws: `std::invalid_argument` for an empty one, too.
template <class Locks>
request_lock<Locks, detail::fixed_key> hold_for_request(Locks& locks, std::string_view key,
                                                        const web_lock_options& options = {})
{
    if (key.empty())
        throw std::invalid_argument{"amux: the key of a lease must not be empty"};
    return {locks, detail::fixed_key{std::string{key}}, options};
}

} // namespace amux

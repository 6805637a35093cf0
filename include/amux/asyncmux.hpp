// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/asyncmux_options.hpp>
#include <amux/detail/keys.hpp>
#include <amux/detail/lock_operation.hpp>
#include <amux/error.hpp>
#include <amux/snapshot.hpp>
#include <amux/source_location.hpp>
#include <amux/threading.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace amux {

/// A keyed reader/writer mutex for coroutines: `co_await` suspends the coroutine, never the thread.
///
/// Locks on different keys do not conflict; two locks on one key, or a lock on a key and one on the whole mux, conflict
/// unless both are shared. A request is granted at the first moment when it conflicts with no lock that is held and with
/// no earlier request that still waits: conflicting requests are served in order of arrival, and a request arrives when
/// it is awaited. Not recursive: who asks again for what it holds waits for ever (see `prevent_reentrancy`).
///
/// A coroutine that waited is resumed at its own place: the scheduler given to `resume_on`, else its promise's
/// (`amux_scheduler`), else the thread that releases, inside the call that releases.
///
/// Every form that is awaited takes a `std::stop_token` last: a request stopped before it is granted throws
/// `lock_cancelled_error`, or answers with an empty guard if its name begins with `try_`. Once granted, a stop changes
/// nothing. On a closed mux every form throws `lock_closed_error`.
///
/// Complexity: O(1) for a key, O(shards) for the whole mux, and no allocation once as many keys were in use before.
/// Thread-safety: every member from any thread (`single_threaded`: from one). Lifetime: destroying a mux that is held or
/// waited for ends the program with a message. Keys given as lvalues are referred to until
/// the coroutine runs on.
template <lock_key Key = std::string, class Threading = multi_threaded,
          class Hash = typename detail::default_hash_of<Key>::hash,
          class Equal = typename detail::default_hash_of<Key>::equal>
class asyncmux {
    static_assert(detail::may_observe<typename Threading::observer, Key>,
                  "the observer of this threading policy is for a mux with other keys");
    using core = detail::mux_core<Key, Threading, Hash, Equal>;
    using body = detail::mux_body<core>;
    template <class K>
    static constexpr bool like_key = detail::key_like<K, Key, Hash, Equal>;
    static constexpr lock_mode shared = lock_mode::shared;
    static constexpr lock_mode exclusive = lock_mode::exclusive;
    using stop_token = std::stop_token;
    template <class R, class P>
    using duration = std::chrono::duration<R, P>;

public:
    /// What is locked by name.
    using key_type = Key;
    /// Its policy: `multi_threaded`, `single_threaded`, or one of yours.
    using threading = Threading;
    /// Owns a lock, or nothing; releases it in its destructor.
    using guard = detail::mux_guard<body>;

    /// A mux on which nothing is locked. Throws: `std::bad_alloc`, with an option that detects or records something;
    /// otherwise it needs no memory.
    explicit asyncmux(asyncmux_options options = {}) : body_{options} {}
    asyncmux(const asyncmux&) = delete;
    asyncmux& operator=(const asyncmux&) = delete;
    ~asyncmux()
    {
        if (!body_.idle())
            body_.destroyed_in_use();
    }

    /// The lock, awaited: `auto g = co_await mux.lock(key);`. Without a key: the whole mux.
    ///
    /// Three overloads take a key, here and below, and each stands twice here, since a lock that cannot be stopped is
    /// cheaper. A `const Key&` is referred to, and copied only if the key is new. A `Key&&` moves in, so that the
    /// description may outlive the expression. The template takes what only stands for a key, such as a view for a
    /// `std::string`, when hash and equality are transparent: no `Key` is made to look it up. The first two are no
    /// templates, so that braces, and whatever converts to a `Key`, still find them.
    auto lock() { return ask<exclusive>(whole); }
    auto lock(stop_token s) { return ask<exclusive>(whole, until(s)); }
    auto lock(const Key& k) { return ask<exclusive>(one(k)); }
    auto lock(const Key& k, stop_token s) { return ask<exclusive>(one(k), until(s)); }
    auto lock(Key&& k) { return ask<exclusive>(one(std::move(k))); }
    auto lock(Key&& k, stop_token s) { return ask<exclusive>(one(std::move(k)), until(s)); }
    template <class K>
        requires like_key<K>
    auto lock(K&& k)
    {
        return ask<exclusive>(one(std::forward<K>(k)));
    }
    template <class K>
        requires like_key<K>
    auto lock(K&& k, stop_token s)
    {
        return ask<exclusive>(one(std::forward<K>(k)), until(s));
    }
    /// As `lock`, together with other readers.
    auto lock_shared() { return ask<shared>(whole); }
    auto lock_shared(stop_token s) { return ask<shared>(whole, until(s)); }
    auto lock_shared(const Key& k) { return ask<shared>(one(k)); }
    auto lock_shared(const Key& k, stop_token s) { return ask<shared>(one(k), until(s)); }
    auto lock_shared(Key&& k) { return ask<shared>(one(std::move(k))); }
    auto lock_shared(Key&& k, stop_token s) { return ask<shared>(one(std::move(k)), until(s)); }
    template <class K>
        requires like_key<K>
    auto lock_shared(K&& k)
    {
        return ask<shared>(one(std::forward<K>(k)));
    }
    template <class K>
        requires like_key<K>
    auto lock_shared(K&& k, stop_token s)
    {
        return ask<shared>(one(std::forward<K>(k)), until(s));
    }

    /// The lock, now or not at all: no await. An empty guard means "not now"; nothing is left behind then. Not checked
    /// for reentrancy, and not seen by it.
    guard try_lock() { return attempt(whole, exclusive); }
    guard try_lock(const Key& k) { return attempt(one(k), exclusive); }
    guard try_lock(Key&& k) { return attempt(one(std::move(k)), exclusive); }
    template <class K>
        requires like_key<K>
    guard try_lock(K&& k)
    {
        return attempt(one(std::forward<K>(k)), exclusive);
    }
    /// As `try_lock`, together with other readers.
    guard try_lock_shared() { return attempt(whole, shared); }
    guard try_lock_shared(const Key& k) { return attempt(one(k), shared); }
    guard try_lock_shared(Key&& k) { return attempt(one(std::move(k)), shared); }
    template <class K>
        requires like_key<K>
    guard try_lock_shared(K&& k)
    {
        return attempt(one(std::forward<K>(k)), shared);
    }

    /// The lock, awaited for a time that starts with the await. An empty guard: the time is up, or it was stopped. Zero
    /// or less is one attempt. The coroutine needs a scheduler: without one it does not compile, with a null one it
    /// throws `std::logic_error`.
    template <class R, class P>
    auto try_lock_for(duration<R, P> d, stop_token s = {})
    {
        return ask<exclusive>(whole, until(s, d));
    }
    template <class R, class P>
    auto try_lock_for(const Key& k, duration<R, P> d, stop_token s = {})
    {
        return ask<exclusive>(one(k), until(s, d));
    }
    template <class R, class P>
    auto try_lock_for(Key&& k, duration<R, P> d, stop_token s = {})
    {
        return ask<exclusive>(one(std::move(k)), until(s, d));
    }
    template <class K, class R, class P>
        requires like_key<K>
    auto try_lock_for(K&& k, duration<R, P> d, stop_token s = {})
    {
        return ask<exclusive>(one(std::forward<K>(k)), until(s, d));
    }
    /// As `try_lock_for`, together with other readers.
    template <class R, class P>
    auto try_lock_shared_for(duration<R, P> d, stop_token s = {})
    {
        return ask<shared>(whole, until(s, d));
    }
    template <class R, class P>
    auto try_lock_shared_for(const Key& k, duration<R, P> d, stop_token s = {})
    {
        return ask<shared>(one(k), until(s, d));
    }
    template <class R, class P>
    auto try_lock_shared_for(Key&& k, duration<R, P> d, stop_token s = {})
    {
        return ask<shared>(one(std::move(k)), until(s, d));
    }
    template <class K, class R, class P>
        requires like_key<K>
    auto try_lock_shared_for(K&& k, duration<R, P> d, stop_token s = {})
    {
        return ask<shared>(one(std::forward<K>(k)), until(s, d));
    }

    /// As `try_lock_for`, until a moment of the scheduler's clock.
    auto try_lock_until(clock::time_point t, stop_token s = {})
    {
        return ask<exclusive>(whole, until(s, t));
    }
    auto try_lock_until(const Key& k, clock::time_point t, stop_token s = {})
    {
        return ask<exclusive>(one(k), until(s, t));
    }
    auto try_lock_until(Key&& k, clock::time_point t, stop_token s = {})
    {
        return ask<exclusive>(one(std::move(k)), until(s, t));
    }
    template <class K>
        requires like_key<K>
    auto try_lock_until(K&& k, clock::time_point t, stop_token s = {})
    {
        return ask<exclusive>(one(std::forward<K>(k)), until(s, t));
    }
    /// As `try_lock_until`, together with other readers.
    auto try_lock_shared_until(clock::time_point t, stop_token s = {})
    {
        return ask<shared>(whole, until(s, t));
    }
    auto try_lock_shared_until(const Key& k, clock::time_point t, stop_token s = {})
    {
        return ask<shared>(one(k), until(s, t));
    }
    auto try_lock_shared_until(Key&& k, clock::time_point t, stop_token s = {})
    {
        return ask<shared>(one(std::move(k)), until(s, t));
    }
    template <class K>
        requires like_key<K>
    auto try_lock_shared_until(K&& k, clock::time_point t, stop_token s = {})
    {
        return ask<shared>(one(std::forward<K>(k)), until(s, t));
    }

    /// Several keys under one guard, all or nothing: `lock_all(keys)` for a range, `lock_all(k1, k2, ...)` for keys; a
    /// stop token may stand last. A key named twice counts once; an empty range is granted at once. Two such requests
    /// never deadlock, in whatever order they name their keys. An rvalue range moves in; an lvalue is referred to.
    template <class... Args>
    auto lock_all(Args&&... args)
    {
        return ask_all<exclusive>(std::forward<Args>(args)...);
    }
    /// As `lock_all`, together with other readers.
    template <class... Args>
    auto lock_all_shared(Args&&... args)
    {
        return ask_all<shared>(std::forward<Args>(args)...);
    }
    /// As `try_lock`, for what `lock_all` takes. Until all keys are free nothing is taken of any.
    template <class... Args>
    guard try_lock_all(Args&&... args)
    {
        return attempt(several(std::forward<Args>(args)...), exclusive);
    }
    /// As `try_lock_all`, together with other readers.
    template <class... Args>
    guard try_lock_all_shared(Args&&... args)
    {
        return attempt(several(std::forward<Args>(args)...), shared);
    }
    /// As `try_lock_for`, for the keys of a range.
    template <class Range, class R, class P>
    auto try_lock_all_for(Range&& keys, duration<R, P> d, stop_token s = {})
    {
        return ask<exclusive>(several(std::forward<Range>(keys)), until(s, d));
    }
    /// As `try_lock_until`, for the keys of a range.
    template <class Range>
    auto try_lock_all_until(Range&& keys, clock::time_point t, stop_token s = {})
    {
        return ask<exclusive>(several(std::forward<Range>(keys)), until(s, t));
    }
    /// As `try_lock_all_for`, together with other readers.
    template <class Range, class R, class P>
    auto try_lock_all_shared_for(Range&& keys, duration<R, P> d, stop_token s = {})
    {
        return ask<shared>(several(std::forward<Range>(keys)), until(s, d));
    }
    /// As `try_lock_all_until`, together with other readers.
    template <class Range>
    auto try_lock_all_shared_until(Range&& keys, clock::time_point t, stop_token s = {})
    {
        return ask<shared>(several(std::forward<Range>(keys)), until(s, t));
    }

    /// Runs `fn()` under the lock and gives its result; when `fn` is a coroutine, that is awaited under the lock. The
    /// lock is released however `fn` ends. Needs memory for a coroutine frame. `fn` is moved in. `from` is for records.
    template <std::invocable F>
    auto with_lock(F fn, stop_token s = {}, source_location from = source_location::current())
    {
        return detail::run_with_lock(lock(std::move(s)), std::move(fn), from);
    }
    template <class K, std::invocable F>
    auto with_lock(K&& k, F fn, stop_token s = {},
                   source_location from = source_location::current())
    {
        return detail::run_with_lock(lock(std::forward<K>(k), std::move(s)), std::move(fn), from);
    }
    /// As `with_lock`, together with other readers.
    template <std::invocable F>
    auto with_lock_shared(F fn, stop_token s = {},
                          source_location from = source_location::current())
    {
        return detail::run_with_lock(lock_shared(std::move(s)), std::move(fn), from);
    }
    template <class K, std::invocable F>
    auto with_lock_shared(K&& k, F fn, stop_token s = {},
                          source_location from = source_location::current())
    {
        return detail::run_with_lock(lock_shared(std::forward<K>(k), std::move(s)), std::move(fn),
                                     from);
    }

    /// No new lock is granted from now on: every waiting request, in order of arrival, and every new one gets
    /// `lock_closed_error`. Who holds a lock, or was granted it and has not run yet, finishes. Idempotent.
    void close() noexcept { body_.close(); }

    /// How many keys are held or waited for; 0 when idle. Locks on the whole mux are not keys.
    std::size_t tracked_keys() const noexcept { return body_.tracked_keys(); }

    /// Who holds and who waits, at one moment. Complexity: O(keys and waiters), with every internal lock held.
    mux_snapshot<Key> snapshot() const { return body_.snapshot(); }

    /// Whether `snapshot()` has the requests: the option `record_requests`, or a detector.
    bool records_requests() const noexcept { return body_.records() != nullptr; }

    /// The threading policy's observer.
    typename Threading::observer& observer() noexcept { return body_.observer(); }

private:
    static constexpr detail::whole_mux whole{};

    static detail::wait_until_stopped until(stop_token& s) noexcept { return {std::move(s)}; }
    template <class R, class P>
    static detail::wait_for until(stop_token& s, duration<R, P> d) noexcept
    {
        return {{std::move(s)}, detail::deadline_after(clock::time_point{}, d).time_since_epoch()};
    }
    static detail::wait_until until(stop_token& s, clock::time_point t) noexcept
    {
        return {{std::move(s)}, t};
    }

    template <class K>
    static auto one(K&& k)
    {
        auto kept = detail::keep_key<Key, Hash, Equal>(std::forward<K>(k));
        return detail::one_key<decltype(kept)>{std::move(kept)};
    }

    template <class R>
    static auto several(R&& range)
    {
        static_assert(detail::key_range<R>, "of one argument: a range of keys");
        return detail::keep_range<Key, Hash, Equal>(std::forward<R>(range));
    }
    template <class K1, class K2, class... More>
    static auto several(K1&& k1, K2&& k2, More&&... more)
    {
        auto kept = std::tuple{detail::keep_key<Key, Hash, Equal>(std::forward<K1>(k1)),
                               detail::keep_key<Key, Hash, Equal>(std::forward<K2>(k2)),
                               detail::keep_key<Key, Hash, Equal>(std::forward<More>(more))...};
        return detail::to_listed_keys(std::move(kept));
    }

    template <lock_mode Mode, class Keys, class Wait = detail::wait_forever>
    auto ask(Keys keys, Wait wait = {})
    {
        return lock_operation<body, Keys, Wait>{{&body_, Mode, std::move(keys), std::move(wait)}};
    }

    template <lock_mode Mode, class... Args>
    auto ask_all(Args&&... args)
    {
        auto all = std::forward_as_tuple(std::forward<Args>(args)...);
        constexpr std::size_t n = sizeof...(Args);
        using last = std::remove_cvref_t<std::tuple_element_t<n - 1, std::tuple<Args...>>>;
        constexpr bool has_stop = std::same_as<last, stop_token>;
        auto keys = [&]<std::size_t... I>(std::index_sequence<I...>) {
            return several(
                std::forward<std::tuple_element_t<I, decltype(all)>>(std::get<I>(all))...);
        }(std::make_index_sequence<n - (has_stop ? 1 : 0)>{});
        if constexpr (has_stop) {
            stop_token stop = std::get<n - 1>(std::move(all));
            return ask<Mode>(std::move(keys), until(stop));
        } else {
            return ask<Mode>(std::move(keys));
        }
    }

    template <class Keys>
    guard attempt(Keys keys, lock_mode mode)
    {
        if constexpr (requires { Keys::is_one_key; }) {
            if (!body_.records()) [[likely]] { // of reentrancy it is not asked
                if (auto* const e = body_.try_one(core::hash_of(keys.kept.look()), keys.kept, mode))
                    return guard{body_, *e, mode};
                return not_now(keys);
            }
        }
        return attempt_at_all(keys, mode);
    }
    template <class Keys>
    [[gnu::noinline]] guard attempt_at_all(const Keys& keys, lock_mode mode)
    {
        const auto over = core::mask_of(keys);
        if (over == 0 && !body_.closed()) // no keys at all
            return guard{body_, mode};
        if (auto* const b = over == 0 ? nullptr : body_.try_recorded(keys, over, mode))
            return guard{body_, *b};
        return not_now(keys);
    }
    template <class Keys>
    guard not_now(const Keys& keys) const
    {
        if (body_.closed())
            throw lock_closed_error{
                detail::lock_message("the mux is closed", body_.name, detail::key_text_of(keys))};
        return guard{};
    }

    mutable body body_;
};

/// An `asyncmux` for one thread, without atomic operations.
template <lock_key Key = std::string, class Hash = typename detail::default_hash_of<Key>::hash,
          class Equal = typename detail::default_hash_of<Key>::equal>
using unsynchronized_asyncmux = asyncmux<Key, single_threaded, Hash, Equal>;

} // namespace amux

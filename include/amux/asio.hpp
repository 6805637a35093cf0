// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/asio_scheduler.hpp>
#include <amux/asyncmux.hpp>
#include <amux/detail/asio_await.hpp>
#include <amux/detail/asio_config.hpp>
#include <amux/detail/asio_operation.hpp>
#include <amux/detail/stop_token.hpp>
#include <amux/distributed_lock.hpp>
#include <amux/error.hpp>
#include <amux/task.hpp>

#if defined(AMUX_STANDALONE_ASIO)
#include <asio/async_result.hpp>
#else
#include <boost/asio/async_result.hpp>
#endif

#include <chrono>
#include <concepts>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

// Locks, leases and tasks as operations of Asio.
//
// A description, such as `mux.lock(key)`, and a task, such as `locks.acquire(key)`, may be called with a completion token,
// and so be awaited directly in an `asio::awaitable`: `auto guard = co_await mux.lock(key);`. The functions below do the
// same, and keep their own copy of the key, so that they may be started later.
//
// Handlers get `(std::exception_ptr, guard)`: the errors of amux, or the lock. They are called by their associated executor,
// never inside the call that asks nor the one that releases; one without an executor is called by Asio's `system_executor`,
// on threads of its own. The operation is work of that executor, and ends once. Cancelled by its slot while it waits, it ends
// with `lock_cancelled_error`, or, in a timed form, with an empty guard; a lock that it had got already stays its own. When
// the context is destroyed its requests are taken back, and a lock whose handler was not called is released: the mux
// outlives the context.

namespace amux {

namespace detail {

template <class T>
struct asio_signature {
    static_assert(!std::is_reference_v<T>,
                  "an operation of Asio cannot give a reference: let the task give a pointer, or "
                  "await it in a task");
    static_assert(std::is_reference_v<T> || std::default_initializable<T>,
                  "a handler gets a value beside an error, too, and this type has none to begin "
                  "with: let the task give a std::optional, or await it in a task");
    using type = void(std::exception_ptr, T);
};
template <>
struct asio_signature<void> {
    using type = void(std::exception_ptr);
};

struct asio_initiation {
    template <class Handler, class Work>
    void operator()(Handler&& handler, Work&& work) const
    {
        asio_operation<std::decay_t<Work>, std::decay_t<Handler>>::start(
            std::forward<Work>(work), std::forward<Handler>(handler));
    }
};

template <class Work, class Token>
auto asio_initiate(Work work, Token& token)
    -> decltype(asio::async_initiate<Token, typename asio_signature<typename Work::result>::type>(
        asio_initiation{}, token, std::move(work)))
{
    return asio::async_initiate<Token, typename asio_signature<typename Work::result>::type>(
        asio_initiation{}, token, std::move(work));
}

template <class Body, class Keys, class Wait>
struct asio_lock {
    using result = mux_guard<Body>;
    static constexpr bool posts_once = !has_limit<Wait>;

    /// Stops it for its handler's slot, and for the token that it came with.
    class stopper {
    public:
        explicit stopper(asio_lock& w)
        {
            std::stop_token& stop = operation_access::stop(w.operation);
            if (stop.stop_possible())
                other_.emplace(stop, stop_too{source});
            stop = source.get_token();
        }
        void look_again(auto& /*result*/) const noexcept {}

        std::stop_source source;

    private:
        struct stop_too {
            std::stop_source& source;
            void operator()() const noexcept { source.request_stop(); }
        };
        std::optional<std::stop_callback<stop_too>> other_;
    };

    auto operator co_await() && { return std::move(operation).operator co_await(); }

    lock_operation<Body, Keys, Wait> operation;
};

template <class T>
struct asio_task {
    using result = T;
    static constexpr bool posts_once = false;
    using stopper = void;

    auto operator co_await() && { return std::move(work).operator co_await(); }

    task<T> work;
};

/// One that acquires a lease, with a stop of its own. Stopped after the grant, the lease is aborted: then it is given back,
/// and the handler is told that it was cancelled.
template <class T>
struct asio_acquire {
    using result = T;
    static constexpr bool posts_once = false;

    struct stopper {
        explicit stopper(asio_acquire& w) noexcept : source{w.stop} {}
        void look_again(auto& r)
        {
            if (r.error || !source.stop_requested())
                return;
            r.value = T{};
            r.error = std::make_exception_ptr(
                lock_cancelled_error{"amux: the request was stopped when it was just granted"});
        }
        std::stop_source source;
    };

    auto operator co_await() && { return std::move(work).operator co_await(); }

    std::stop_source stop;
    task<T> work;
};

} // namespace detail

/// What makes a description callable with a completion token. One with `resume_on` is not: the handler has an executor.
template <class Body, class Keys, class Wait, class Token>
auto amux_initiate(lock_operation<Body, Keys, Wait> o, Token&& token)
    -> decltype(detail::asio_initiate(
        detail::asio_lock<Body, Keys, detail::stoppable_wait<Wait>>{
            detail::operation_access::stoppable(std::move(o))},
        token))
{
    return detail::asio_initiate(
        detail::asio_lock<Body, Keys, detail::stoppable_wait<Wait>>{
            detail::operation_access::stoppable(std::move(o))},
        token);
}
/// The same for a task without a result, or with one that has a default constructor. Its own waits resume it on the handler's
/// executor, one at a time. It is not cancelled by a slot: where that is wanted, give it a stop token.
template <class T, class Token>
auto amux_initiate(task<T> t, Token&& token)
    -> decltype(detail::asio_initiate(detail::asio_task<T>{std::move(t)}, token))
{
    return detail::asio_initiate(detail::asio_task<T>{std::move(t)}, token);
}

/// As `mux.lock(key)`, with a completion token.
template <class Key, class Threading, class Hash, class Equal, class K, class Token>
auto async_lock(asyncmux<Key, Threading, Hash, Equal>& mux, K&& key, Token&& token)
{
    return mux.lock(Key(std::forward<K>(key)))(std::forward<Token>(token));
}
/// As `mux.lock()`: the whole mux.
template <class Key, class Threading, class Hash, class Equal, class Token>
auto async_lock(asyncmux<Key, Threading, Hash, Equal>& mux, Token&& token)
{
    return mux.lock()(std::forward<Token>(token));
}
/// As `mux.lock_shared(key)`.
template <class Key, class Threading, class Hash, class Equal, class K, class Token>
auto async_lock_shared(asyncmux<Key, Threading, Hash, Equal>& mux, K&& key, Token&& token)
{
    return mux.lock_shared(Key(std::forward<K>(key)))(std::forward<Token>(token));
}
/// As `mux.lock_shared()`: the whole mux.
template <class Key, class Threading, class Hash, class Equal, class Token>
auto async_lock_shared(asyncmux<Key, Threading, Hash, Equal>& mux, Token&& token)
{
    return mux.lock_shared()(std::forward<Token>(token));
}
/// As `mux.lock_all(keys)`, with a vector of keys.
template <class Key, class Threading, class Hash, class Equal, class Token>
auto async_lock_all(asyncmux<Key, Threading, Hash, Equal>& mux, std::vector<Key> keys,
                    Token&& token)
{
    return mux.lock_all(std::move(keys))(std::forward<Token>(token));
}
/// As `mux.lock_all_shared(keys)`.
template <class Key, class Threading, class Hash, class Equal, class Token>
auto async_lock_all_shared(asyncmux<Key, Threading, Hash, Equal>& mux, std::vector<Key> keys,
                           Token&& token)
{
    return mux.lock_all_shared(std::move(keys))(std::forward<Token>(token));
}
/// As `mux.try_lock_for(key, limit)`: an empty guard when the time is up, or when it was cancelled.
template <class Key, class Threading, class Hash, class Equal, class K, class R, class P,
          class Token>
auto async_try_lock_for(asyncmux<Key, Threading, Hash, Equal>& mux, K&& key,
                        std::chrono::duration<R, P> limit, Token&& token)
{
    return mux.try_lock_for(Key(std::forward<K>(key)), limit)(std::forward<Token>(token));
}
/// As `mux.try_lock_shared_for(key, limit)`.
template <class Key, class Threading, class Hash, class Equal, class K, class R, class P,
          class Token>
auto async_try_lock_shared_for(asyncmux<Key, Threading, Hash, Equal>& mux, K&& key,
                               std::chrono::duration<R, P> limit, Token&& token)
{
    return mux.try_lock_shared_for(Key(std::forward<K>(key)), limit)(std::forward<Token>(token));
}

/// As `locks.acquire(key, options)`. Cancelled before its handler is called, it gives back what it may have got.
template <class Backend, class Token>
auto async_acquire(distributed_lock<Backend>& locks, std::string_view key, acquire_options options,
                   Token&& token)
{
    std::stop_source stop;
    auto work = locks.acquire(key, options, stop.get_token());
    return detail::asio_initiate(
        detail::asio_acquire<acquired_lock>{std::move(stop), std::move(work)}, token);
}
template <class Backend, class Token>
auto async_acquire(distributed_lock<Backend>& locks, std::string_view key, Token&& token)
{
    return async_acquire(locks, key, acquire_options{}, std::forward<Token>(token));
}
/// As `locks.try_acquire(key, options)`.
template <class Backend, class Token>
auto async_try_acquire(distributed_lock<Backend>& locks, std::string_view key,
                       acquire_options options, Token&& token)
{
    std::stop_source stop;
    auto work = locks.try_acquire(key, options, stop.get_token());
    return detail::asio_initiate(
        detail::asio_acquire<std::optional<acquired_lock>>{std::move(stop), std::move(work)},
        token);
}
template <class Backend, class Token>
auto async_try_acquire(distributed_lock<Backend>& locks, std::string_view key, Token&& token)
{
    return async_try_acquire(locks, key, acquire_options{}, std::forward<Token>(token));
}

} // namespace amux

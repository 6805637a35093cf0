// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/acquired_lock.hpp>
#include <amux/detail/awaitable.hpp>
#include <amux/detail/backend_driver.hpp>
#include <amux/detail/lease_terms.hpp>
#include <amux/detail/lock_calls.hpp>
#include <amux/lock_backend.hpp>
#include <amux/lock_hooks.hpp>
#include <amux/lock_options.hpp>
#include <amux/scheduler.hpp>
#include <amux/task.hpp>

#include <chrono>
#include <concepts>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace amux {

namespace detail {

template <class Backend>
class backend_core final : public lock_core {
    using plain_backend = std::remove_reference_t<Backend>;

public:
    backend_core(Backend&& backend, scheduler& loop, const distributed_lock_options& options,
                 lock_hooks hooks)
        : lock_core{loop, options, std::move(hooks)}, backend_{std::forward<Backend>(backend)}
    {}

    static std::shared_ptr<backend_core> make(Backend&& backend, scheduler& loop,
                                              const distributed_lock_options& options,
                                              lock_hooks hooks)
    {
        return {new backend_core{std::forward<Backend>(backend), loop, options, std::move(hooks)},
                &destroy};
    }

    bool notifies() const noexcept override { return notifying_backend<plain_backend>; }
    bool inspects() const noexcept override { return inspecting_backend<plain_backend>; }

private:
    void ask(request_ptr r) noexcept override
    {
        try {
            drive(std::static_pointer_cast<backend_core>(shared_from_this()), r);
        } catch (...) { // no memory for the frame
            r->reply.error = std::current_exception();
            r->complete();
        }
    }

    static backend_driver drive(std::shared_ptr<backend_core> core, request_ptr r)
    {
        plain_backend& b = core->backend_;
        try {
            switch (r->op) {
                case operation::acquire:
                    if constexpr (metadata_backend<plain_backend>)
                        take(r->reply, co_await b.acquire(r->key, r->token, r->ttl,
                                                          std::string_view{r->metadata}));
                    else
                        take(r->reply, co_await b.acquire(r->key, r->token, r->ttl));
                    break;
                case operation::extend:
                    r->reply.yes = co_await b.extend(r->key, r->token, r->ttl);
                    break;
                case operation::release:
                    r->reply.yes = co_await b.release(r->key, r->token);
                    break;
                case operation::get:
                    r->reply.holder = co_await b.get(r->key);
                    break;
                case operation::inspect:
                    if constexpr (inspecting_backend<plain_backend>)
                        r->reply.info = co_await b.inspect(r->key);
                    break;
                case operation::wait:
                    if constexpr (notifying_backend<plain_backend>)
                        co_await b.wait_for_release(r->key, r->give_up.get_token());
                    break;
            }
        } catch (const backend_error& e) {
            r->reply.error = named(e, r->key);
        } catch (...) {
            r->reply.error = odd_error("the backend", r->key);
        }
        r->complete();
        backend_burial<backend_core>::bury(std::move(core), std::move(r));
    }

    /// The error itself, or, when it does not name the key in quotes, one that does: a short key stands in many words.
    static std::exception_ptr named(const backend_error& e, const std::string& key) noexcept
    {
        return error_of([&] {
            const std::string_view what = e.what();
            if (what.find(in_quotes(key)) != std::string_view::npos)
                throw;
            return backend_error{e.kind(),
                                 lock_message(what_of(std::current_exception()), {}, key)};
        });
    }

    static void destroy(backend_core* core) noexcept
    {
        if constexpr (std::is_reference_v<Backend>) // it ends no backend
            delete core;
        else
            backend_burial<backend_core>::destroy(core);
    }

    static void take(backend_answer& r, bool yes) noexcept { r.yes = yes; }
    static void take(backend_answer& r, const acquire_result& result)
    {
        r.yes = result.acquired;
        r.grant = result;
    }
    static void take(backend_answer& r, const unfenced_result& result)
    {
        take(r, acquire_result{result.acquired, std::nullopt, result.holder_ttl});
    }

    Backend backend_;
};

} // namespace detail

/// Leases with a time to live on keys of a store that several processes share.
///
/// Whoever holds a lease may believe in it until `acquired_lock::valid_until()`; after that somebody else may have it,
/// whatever the holder is doing. Waiters of one process stand in line for a key, in order of arrival; only the first
/// talks to the store, and none while the key is held here.
///
/// Everything in it happens on its loop, which somebody must run: `sync_wait(locks.acquire(k))` beside a loop that
/// nobody runs waits for ever (see `loop_thread`). Calls may come from any thread; a caller is resumed at its own place
/// (`amux_scheduler(promise)`), or, without one, on that loop. The hooks run on the loop.
///
/// Errors: `std::invalid_argument` for bad options or an empty key, before anything is sent; `lock_cancelled_error`;
/// `lock_closed_error` after `drain`; `lock_wait_timeout_error`; `backend_error`.
/// Lifetime: backend and loop outlive it, and it outlives its calls and handles; otherwise the program ends with a message.
/// What is only in the background is dropped with it: the ttl frees those keys. Destroy it where the loop runs, while
/// it does not run, or after `drain`; with a loop of amux, anywhere.
template <class Backend>
    requires lock_backend<std::remove_reference_t<Backend>>
class distributed_lock {
    using milliseconds = std::chrono::milliseconds;

public:
    /// An lvalue backend is referred to, an rvalue is moved in.
    distributed_lock(Backend&& backend, scheduler& loop, distributed_lock_options options = {},
                     lock_hooks hooks = {})
        : core_{detail::backend_core<Backend>::make(std::forward<Backend>(backend), loop, options,
                                                    std::move(hooks))}
    {}
    distributed_lock(const distributed_lock&) = delete;
    distributed_lock& operator=(const distributed_lock&) = delete;
    ~distributed_lock()
    {
        if (core_->live_handles.load(std::memory_order_acquire) != 0)
            detail::fatal("a distributed_lock is destroyed before a lease that it has granted");
        if (core_->live_calls.load(std::memory_order_acquire) != 0)
            detail::fatal("a distributed_lock is destroyed while a call of it is awaited");
        core_->shut_down();
    }

    /// Waits for a lease, in line with the others of this process: `auto l = co_await locks.acquire("sku:1");`.
    ///
    /// `stop` ends the wait with `lock_cancelled_error`, and a lease that was granted with `end_reason::aborted`. Key and
    /// metadata are copied by the call. Throws `backend_error` when the trouble is permanent; other trouble of the store is
    /// told to `on_error`, and the call tries again until its time is up.
    task<acquired_lock> acquire(std::string_view key, acquire_options options = {},
                                std::stop_token stop = {})
    {
        return detail::acquire_call(core_, std::string{key}, terms(options), std::move(stop));
    }
    template <std::same_as<std::stop_token> Stop>
    task<acquired_lock> acquire(std::string_view key, Stop stop)
    {
        return acquire(key, acquire_options{}, std::move(stop));
    }

    /// One attempt, outside the line: none when somebody else has it. Throws `backend_error` for any trouble, also when
    /// the backend has not answered within `max_wait`.
    task<std::optional<acquired_lock>> try_acquire(std::string_view key,
                                                   acquire_options options = {},
                                                   std::stop_token stop = {})
    {
        return detail::try_acquire_call(core_, std::string{key}, terms(options), std::move(stop));
    }
    template <std::same_as<std::stop_token> Stop>
    task<std::optional<acquired_lock>> try_acquire(std::string_view key, Stop stop)
    {
        return try_acquire(key, acquire_options{}, std::move(stop));
    }

    /// Acquires, runs `fn(acquired_lock&)`, plain or a coroutine, and releases, however `fn` ends. Gives its result.
    ///
    /// Throws: what `acquire` throws; what `fn` throws; `lock_ended_error` when `fn` came back and the lease was lost by
    /// then. A release that fails is told to `on_error` only: what `fn` did is done.
    template <class F>
        requires std::invocable<F&, acquired_lock&>
    auto with_lock(std::string_view key, F fn, acquire_options options = {},
                   std::stop_token stop = {})
    {
        return detail::with_lock_call(core_, std::string{key}, terms(options), std::move(stop),
                                      std::move(fn));
    }

    /// Again and again: waits for the lease, without limit, and runs `fn(acquired_lock&)` under it, renewed.
    ///
    /// When the lease is lost, `fn`'s `lost_token` stops, its end is awaited, and it all begins anew. When `fn` returns, or
    /// throws, with the lease held, it is released and the call ends so. Troubles of the store do not end it, they are told
    /// to `on_error`. `stop` ends it: a normal return, once `fn` has ended. A `lock_error` with which `fn` ends after a
    /// loss counts as its end.
    template <class F>
        requires std::invocable<F&, acquired_lock&>
    task<> run_as_leader(std::string_view key, F fn, acquire_options options = {},
                         std::stop_token stop = {})
    {
        options.renew = true;
        options.max_wait = forever;
        return detail::leader_call(core_, std::string{key}, terms(options), std::move(stop),
                                   std::move(fn));
    }

    /// Releases the lease of this token. One that a live handle of this object holds ends that handle first.
    ///
    /// It is no doing of its holder, who is told as of a loss: `lost_token` stops, and `with_lock` fails. But the end's
    /// reason is `released`, and `on_release` is called, since the store has freed it.
    /// Returns: whether the token owned it. Throws: `backend_error`.
    task<bool> release(std::string_view key, std::string_view token)
    {
        return detail::release_by_token_call(core_, std::string{key}, std::string{token});
    }

    /// What the store knows of a key's lease: token, fence, remaining time, metadata, as far as the backend can tell.
    task<std::optional<lease_info>> inspect(std::string_view key)
    {
        return detail::inspect_call(core_, std::string{key});
    }

    /// Takes no new calls from now on, ends those that wait (`lock_closed_error`), and waits for the requests that are
    /// outstanding; a lease that is held is none, nor is what a `redlock` still undoes at single nodes.
    ///
    /// Returns: false when they were not all answered within `timeout`; each is then given up, and named to `on_error`.
    /// Afterwards the lock may be destroyed, once its handles are.
    task<bool> drain(milliseconds timeout) { return detail::drain_call(core_, timeout); }

    /// Throws: `std::invalid_argument` when `acquire` would, for any key: for those who keep options for later.
    void require(const acquire_options& options) const { detail::require_options(terms(options)); }

private:
    detail::lease_terms terms(const acquire_options& o) const
    {
        const distributed_lock_options& d = core_->options();
        return {o.ttl.value_or(d.default_ttl),
                o.max_wait.value_or(d.max_wait),
                o.poll_interval.value_or(d.poll_interval),
                o.renew,
                o.renew_interval,
                o.max_hold,
                o.stop_margin.value_or(milliseconds{}),
                std::string{o.metadata}};
    }

    std::shared_ptr<detail::lock_core> core_;
};

/// `distributed_lock<B&>` for an lvalue, `distributed_lock<B>` for an rvalue.
template <class Backend>
distributed_lock(Backend&&, scheduler&, distributed_lock_options = {}, lock_hooks = {})
    -> distributed_lock<Backend>;

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/detail/acquire.hpp>
#include <amux/detail/awaitable.hpp>

#include <concepts>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace amux::detail {

inline void require_key(const std::string& key)
{
    if (key.empty())
        throw std::invalid_argument{"amux: the key of a lease must not be empty"};
}

/// Requires what is right for any key; one that is known is named.
inline void require_options(const lease_terms& t, const std::string& key = {})
{
    require_ttl(t.ttl, key);
    const auto require = [&key](bool good, const char* what) {
        if (!good)
            throw std::invalid_argument{lock_message(what, {}, key)};
    };
    constexpr milliseconds zero{};
    require(t.max_wait >= zero, "max_wait must not be negative");
    require(t.poll_interval > zero && t.poll_interval <= longest_time,
            "poll_interval must be above zero, and at most 366 days");
    require(!t.renew_interval || *t.renew_interval > zero, "renew_interval must be above zero");
    require(!t.max_hold || *t.max_hold > zero, "max_hold must be above zero");
    require(t.stop_margin >= zero, "stop_margin must not be negative");
}

inline void require_terms(const lease_terms& t, const std::string& key)
{
    require_key(key);
    require_options(t, key);
}

inline task<std::optional<acquired_lock>> acquire_on_loop(std::shared_ptr<lock_core> core,
                                                          std::string key, lease_terms t,
                                                          std::stop_token stop,
                                                          std::stop_token abandoned, bool insists)
{
    const either_stop stop_wait{stop, std::move(abandoned)};
    acquisition call{*core, key, t, stop, stop_wait.token()};
    co_return co_await call.wait_in_line(insists);
}

inline task<std::optional<acquired_lock>> try_on_loop(std::shared_ptr<lock_core> core,
                                                      std::string key, lease_terms t,
                                                      std::stop_token stop,
                                                      std::stop_token abandoned)
{
    const either_stop stop_wait{stop, std::move(abandoned)};
    acquisition call{*core, key, t, stop, stop_wait.token()};
    co_return co_await call.try_once();
}

inline task<acquired_lock> acquire_call(std::shared_ptr<lock_core> core, std::string key,
                                        lease_terms t, std::stop_token stop, bool insists = false)
{
    require_terms(t, key);
    loop_call<std::optional<acquired_lock>> call{live_call{core, key}};
    auto work = acquire_on_loop(std::move(core), std::move(key), std::move(t), std::move(stop),
                                call.abandoned(), insists);
    auto held = co_await call.run(std::move(work));
    co_return std::move(*held);
}

inline task<std::optional<acquired_lock>> try_acquire_call(std::shared_ptr<lock_core> core,
                                                           std::string key, lease_terms t,
                                                           std::stop_token stop)
{
    require_terms(t, key);
    loop_call<std::optional<acquired_lock>> call{live_call{core, key}};
    auto work = try_on_loop(std::move(core), std::move(key), std::move(t), std::move(stop),
                            call.abandoned());
    co_return co_await call.run(std::move(work));
}

/// `fn(lease)`, and, when that can be awaited, what it gives then.
template <class F>
struct result_under_lease {
    using type = std::invoke_result_t<F&, acquired_lock&>;
};
template <class F>
    requires awaitable<std::invoke_result_t<F&, acquired_lock&>>
struct result_under_lease<F> {
    using type = await_result_t<std::invoke_result_t<F&, acquired_lock&>>;
};
template <class F>
using result_under_lease_t = typename result_under_lease<F>::type;

template <class F>
task<result_under_lease_t<F>> run_under_lease(F& fn, acquired_lock& lease)
{
    if constexpr (awaitable<std::invoke_result_t<F&, acquired_lock&>>)
        co_return co_await fn(lease);
    else
        co_return fn(lease);
}

/// Releases, and leaves trouble to the background and to `on_error`.
inline task<> release_quietly(acquired_lock& lease)
{
    try {
        co_await lease.release();
    } catch (...) { // NOLINT(bugprone-empty-catch)
    }
}

/// Lost, and not given back by `fn` itself.
inline void require_not_lost(const lease& l)
{
    if (!l.believes() && !l.given_back())
        throw lock_ended_error{
            lock_message(std::string{"the lease was lost while work was done under it: "} +
                             to_string(l.reason()),
                         {}, l.key),
            l.key, l.reason()};
}

template <class F>
task<result_under_lease_t<F>> with_lock_call(std::shared_ptr<lock_core> core, std::string key,
                                             lease_terms t, std::stop_token stop, F fn)
{
    using result = result_under_lease_t<F>;
    auto acquire = acquire_call(std::move(core), std::move(key), std::move(t), std::move(stop));
    acquired_lock lease = co_await std::move(acquire);
    std::exception_ptr error;
    std::optional<std::conditional_t<
        std::is_void_v<result>, bool,
        std::conditional_t<std::is_reference_v<result>, std::remove_reference_t<result>*, result>>>
        value;
    try {
        if constexpr (std::is_void_v<result>)
            co_await run_under_lease(fn, lease);
        else if constexpr (std::is_reference_v<result>)
            value.emplace(&co_await run_under_lease(fn, lease));
        else
            value.emplace(co_await run_under_lease(fn, lease));
        require_not_lost(lease_access::of(lease));
    } catch (...) {
        error = std::current_exception();
    }
    co_await release_quietly(lease);
    if (error)
        std::rethrow_exception(std::move(error));
    if constexpr (std::is_reference_v<result>)
        co_return static_cast<result>(**value);
    else if constexpr (!std::is_void_v<result>)
        co_return std::move(*value);
}

/// Whether an exception is one of amux: with a lost lease, `fn` may well end with one.
inline bool is_lock_error(const std::exception_ptr& error) noexcept
{
    try {
        std::rethrow_exception(error);
    } catch (const lock_error&) {
        return true;
    } catch (...) {
        return false;
    }
}

template <class F>
task<> leader_call(std::shared_ptr<lock_core> core, std::string key, lease_terms t,
                   std::stop_token stop, F fn)
{
    for (;;) {
        std::optional<acquired_lock> held;
        try {
            auto acquire = acquire_call(core, key, t, stop, true);
            held.emplace(co_await std::move(acquire));
        } catch (const lock_cancelled_error&) {
            co_return;
        }
        std::exception_ptr error;
        try {
            co_await run_under_lease(fn, *held);
        } catch (...) {
            error = std::current_exception();
        }
        const lease& state = lease_access::of(*held);
        const bool lost = !state.believes() && !state.given_back();
        co_await release_quietly(*held);
        const bool stopped = stop.stop_requested();
        if (error && !((lost || stopped) && is_lock_error(error)))
            std::rethrow_exception(std::move(error));
        if (!lost || stopped)
            co_return;
    }
}

inline task<bool> release_by_token_on_loop(std::shared_ptr<lock_core> core, std::string key,
                                           std::string token)
{
    if (auto held = core->find_lease(key, token)) {
        const bool open = held->take_away();
        co_return open&& co_await wait_for_release(std::move(held));
    }
    const auto r = co_await ask(core->make_request(lock_core::operation::release, key, token, {}));
    co_return r->yes;
}

inline task<bool> release_by_token_call(std::shared_ptr<lock_core> core, std::string key,
                                        std::string token)
{
    require_key(key);
    live_call call{core, key};
    auto work = release_by_token_on_loop(std::move(core), std::move(key), std::move(token));
    co_return co_await on_loop(std::move(call), std::move(work));
}

inline task<std::optional<lease_info>> inspect_on_loop(std::shared_ptr<lock_core> core,
                                                       std::string key)
{
    if (core->inspects()) {
        auto r = co_await ask(core->make_request(lock_core::operation::inspect, key, {}, {}));
        co_return std::move(r->info);
    }
    auto r = co_await ask(core->make_request(lock_core::operation::get, key, {}, {}));
    std::optional<lease_info> info;
    if (r->holder)
        info.emplace().token = std::move(*r->holder);
    co_return info;
}

inline task<std::optional<lease_info>> inspect_call(std::shared_ptr<lock_core> core,
                                                    std::string key)
{
    require_key(key);
    live_call call{core, key};
    auto work = inspect_on_loop(std::move(core), std::move(key));
    co_return co_await on_loop(std::move(call), std::move(work));
}

inline task<bool> drain_on_loop(std::shared_ptr<lock_core> core, milliseconds timeout)
{
    const clock::time_point deadline = deadline_after(core->now(), timeout);
    core->close();
    wake_point news{*core};
    const listed told_of_answers{core->drainers, news};
    const auto idle = [&core] { return core->acquisitions == 0 && core->nothing_outstanding(); };
    const int given_up = core->given_up();
    bool all = true;
    do {
        while (all && !idle()) {
            all = co_await news.wait(deadline) != wake_point::reason::deadline || idle();
            if (!all)
                core->give_up_outstanding();
        }
        // Calls that were told stand on the loop before this; those that have just begun may ask once more.
        co_await hop{*core};
    } while (all && !idle());
    co_return core->given_up() == given_up;
}

inline task<bool> drain_call(std::shared_ptr<lock_core> core, milliseconds timeout)
{
    live_call call{core};
    auto work = drain_on_loop(std::move(core), timeout);
    co_return co_await on_loop(std::move(call), std::move(work));
}

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/detail/redis_call.hpp>
#include <amux/detail/redis_io.hpp>
#include <amux/detail/redis_settings.hpp>
#include <amux/detail/redis_url.hpp>
#include <amux/distributed_lock.hpp>
#include <amux/lock_backend.hpp>
#include <amux/lock_hooks.hpp>
#include <amux/lock_options.hpp>
#include <amux/redis_options.hpp>
#include <amux/scheduler.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace amux {

/// Leases in a Redis server, version 5 or newer: for the processes of many machines.
///
/// Fences, keeps metadata, wakes waiters, and tells who holds a key. It connects with the first operation, and again
/// whenever a connection breaks; operations wait for that within their `command_timeout`. One thread does the work. An
/// operation resumes at the awaiting promise's scheduler, or, without one, on that thread, which it must not block.
///
/// Errors: `backend_error`, whose message names key, server and cause. Thread-safety: any thread.
/// Lifetime: movable, and one that was moved from is only assigned to or destroyed; what is awaited when it is destroyed
/// ends with `backend_error`. A coroutine that waits may be destroyed where it would be resumed. After a `fork` one that
/// was used before is its parent's: in the child its operations fail, and destroying it does nothing.
class redis_backend {
public:
    /// Throws: `std::invalid_argument` for options that cannot be. Effects: copies them; does not connect.
    explicit redis_backend(const redis_options& options = {})
        : redis_backend{detail::redis_settings{options}}
    {}
    /// `redis://user:password@host:6379/0?prefix=app&command_timeout=500`, `rediss://` for TLS, or
    /// `unix:///path/to/socket?database=1`. Texts are percent-encoded, time-outs are in milliseconds.
    ///
    /// Throws: `std::invalid_argument` that names the part that is wrong.
    explicit redis_backend(std::string_view url) : redis_backend{detail::redis_url::read(url)} {}
    redis_backend(redis_backend&&) noexcept = default;
    redis_backend& operator=(redis_backend&& other) noexcept
    {
        redis_backend old{std::move(other)};
        io_.swap(old.io_);
        return *this;
    }
    ~redis_backend();

    /// Takes a free key; again, when the token owns it. A refusal tells how long the holder has at most.
    detail::redis_call<acquire_result> acquire(std::string_view key, std::string_view token,
                                               std::chrono::milliseconds ttl,
                                               std::string_view metadata = {})
    {
        return {io_, operation::acquire, key, token, ttl, metadata};
    }
    /// Lets the ttl start anew, if the token owns the lease.
    detail::redis_call<bool> extend(std::string_view key, std::string_view token,
                                    std::chrono::milliseconds ttl)
    {
        return {io_, operation::extend, key, token, ttl};
    }
    /// Frees the key, and tells who waits for it, if the token owns the lease.
    detail::redis_call<bool> release(std::string_view key, std::string_view token)
    {
        return {io_, operation::release, key, token};
    }
    /// The holder's token; the whole value, when it was set by something else than amux.
    detail::redis_call<std::optional<std::string>> get(std::string_view key) const
    {
        return {io_, operation::look, key};
    }
    /// All that is known of a lease.
    detail::redis_call<std::optional<lease_info>> inspect(std::string_view key) const
    {
        return {io_, operation::look, key};
    }

    /// Done when the key is free, as far as Redis tells: a message, the end of the holder's ttl, a few seconds at most.
    detail::redis_wait wait_for_release(std::string_view key, std::stop_token stop = {})
    {
        return {io_, key, std::move(stop)};
    }

private:
    using operation = detail::redis_operation::kind;

    explicit redis_backend(detail::redis_settings s)
        : io_{std::make_shared<detail::redis_io>(std::move(s))}
    {}

    std::shared_ptr<detail::redis_io> io_;
};

inline redis_backend::~redis_backend()
{
    if (!io_)
        return;
    // The child's copy is left as it is: its thread is not there, and its connections are the parent's.
    if (io_->forked())
        io_->abandon();
    else
        io_->close();
}

/// A lock over a Redis server: `auto locks = make_redis_lock("redis://127.0.0.1", loop, {.default_ttl = 10s});`
inline distributed_lock<redis_backend> make_redis_lock(const redis_options& server, scheduler& loop,
                                                       const distributed_lock_options& options = {},
                                                       lock_hooks hooks = {})
{
    return {redis_backend{server}, loop, options, std::move(hooks)};
}
inline distributed_lock<redis_backend> make_redis_lock(std::string_view url, scheduler& loop,
                                                       const distributed_lock_options& options = {},
                                                       lock_hooks hooks = {})
{
    return {redis_backend{url}, loop, options, std::move(hooks)};
}

} // namespace amux

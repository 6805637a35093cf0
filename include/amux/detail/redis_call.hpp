// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/clock.hpp>
#include <amux/detail/home_of.hpp>
#include <amux/detail/redis_io.hpp>
#include <amux/error.hpp>
#include <amux/scheduler.hpp>

#include <coroutine>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace amux::detail {

/// What a coroutine awaits of a Redis backend: the part that does not depend on what is asked.
///
/// It keeps the backend's state alive, so it may outlive the backend. Without a place of its own the coroutine goes on on the
/// I/O thread.
class redis_awaiter : protected suspension {
public:
    bool await_ready() const noexcept { return false; }

protected:
    explicit redis_awaiter(std::shared_ptr<redis_io> io) noexcept : io_{std::move(io)} {}
    ~redis_awaiter() = default;

    /// Has `begin(io)` called under the mutex, which takes over: then the coroutine is suspended, and nothing of this may be
    /// touched any more. Or sets `trouble`.
    template <class Begin>
    bool start(std::coroutine_handle<> h, scheduler* where, std::optional<redis_trouble>& trouble,
               Begin begin)
    {
        if (io_->forked()) {
            trouble = redis_trouble{backend_error_kind::permanent,
                                    "a Redis backend that was used before a fork is its parent's: "
                                    "make another one in the child"};
            return false;
        }
        const std::lock_guard lock{io_->shared().mutex};
        trouble = io_->start();
        if (trouble)
            return false;
        suspended(h, where);
        waits_ = begin(*io_);
        return waits_;
    }

    void resumed() noexcept { waits_ = false; }

    /// For the destructor: `take_out(io)` is called under the mutex when the coroutine is destroyed while it waits.
    template <class TakeOut>
    void leave(TakeOut take_out) noexcept
    {
        if (!waits_ || io_->forked())
            return;
        const std::lock_guard lock{io_->shared().mutex};
        take_out(*io_);
        withdraw(io_->shared().finished);
    }

    [[noreturn]] static void fail(const redis_trouble& why, std::string_view key)
    {
        constexpr std::string_view prefix = "amux: ";
        throw backend_error{
            why.kind, why.text.starts_with(prefix) ? why.text : lock_message(why.text, {}, key)};
    }

    redis_shared& shared() noexcept { return io_->shared(); }
    bool forked() const noexcept { return io_->forked(); }

private:
    const std::shared_ptr<redis_io> io_;
    bool waits_ = false; // on the thread that awaits; the mutex orders it with the one that resumes
};

/// An operation that is awaited: `T` is what it gives.
template <class T>
class redis_call final : redis_operation, redis_awaiter {
public:
    redis_call(std::shared_ptr<redis_io> io, kind asked, std::string_view of_key,
               std::string_view for_token = {}, std::chrono::milliseconds time = {},
               std::string_view text = {}) noexcept
        : redis_operation{asked, of_key, for_token, time, text}, redis_awaiter{std::move(io)}
    {}
    ~redis_call()
    {
        leave([this](redis_io& io) { io.for_operation(what).forget(*this); });
    }

    using redis_awaiter::await_ready;

    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> handle)
    {
        return suspend(handle, home_of(handle));
    }

    T await_resume()
    {
        resumed();
        if (trouble)
            fail(*trouble, key);
        return result();
    }

private:
    // Out of line: inside a coroutine, clang before 19 may keep values in the frame that is given away here.
    [[gnu::noinline]] bool suspend(std::coroutine_handle<> handle, scheduler* home)
    {
        if (const char* why = refused()) {
            trouble = redis_trouble{backend_error_kind::permanent, why};
            return false;
        }
        return start(handle, home, trouble, [this](redis_io& io) {
            io.for_operation(what).submit(*this, clock::now());
            return true;
        });
    }

    /// What no server need be asked for.
    const char* refused() const noexcept
    {
        const bool gives_time = what == kind::acquire || what == kind::extend;
        if (gives_time && ttl <= std::chrono::milliseconds::zero())
            return "a lease needs a time to live above zero";
        if (gives_time && ttl > longest_ttl)
            return "a lease's time to live is longer than a hundred years";
        if (key.size() > longest_key)
            return "the key is longer than half a megabyte";
        if (token.size() + metadata.size() > redis_reply_reader::longest / 2)
            return "token and metadata are longer than half a megabyte";
        return nullptr;
    }

    void answered() noexcept override { finish(shared().finished); }

    T result()
    {
        if constexpr (std::is_same_v<T, bool>)
            return yes;
        else if constexpr (std::is_same_v<T, acquire_result>)
            return {yes, fence, remaining};
        else if constexpr (std::is_same_v<T, std::optional<std::string>>)
            return yes ? T{std::string{redis_value::read(value).token}} : T{};
        else
            return info();
    }

    std::optional<lease_info> info() const
    {
        if (!yes)
            return std::nullopt;
        const redis_value v = redis_value::read(value);
        return lease_info{std::string{v.token}, v.fence, remaining, std::string{v.metadata}};
    }
};

/// A wait for the release of a key. It gives nothing: that the key may be free.
class redis_wait final : redis_waiter, redis_awaiter {
public:
    redis_wait(std::shared_ptr<redis_io> io, std::string_view of_key, std::stop_token stop) noexcept
        : redis_waiter{of_key}, redis_awaiter{std::move(io)}, stop_{std::move(stop)}
    {}
    ~redis_wait()
    {
        on_stop_.reset();
        leave([this](redis_io& io) { io.subscriber().forget(*this); });
    }

    using redis_awaiter::await_ready;

    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> handle)
    {
        return suspend(handle, home_of(handle));
    }

    void await_resume()
    {
        on_stop_.reset();
        resumed();
        if (trouble)
            fail(*trouble, key);
    }

private:
    struct on_stop {
        redis_wait* self;
        void operator()() const noexcept { self->stopped(); }
    };

    [[gnu::noinline]] bool suspend(std::coroutine_handle<> handle, scheduler* home)
    {
        if (key.size() > redis_operation::longest_key) {
            trouble = redis_trouble{backend_error_kind::permanent,
                                    "the key is longer than half a megabyte"};
            return false;
        }
        if (stop_.stop_possible())
            on_stop_.emplace(stop_, on_stop{this});
        return start(handle, home, trouble, [this](redis_io& io) {
            // A stop that came before has found nothing listed; it is seen here.
            if (stop_.stop_requested())
                return false;
            io.subscriber().enlist(*this, clock::now());
            return true;
        });
    }

    void stopped() noexcept
    {
        if (forked())
            return;
        const std::lock_guard lock{shared().mutex};
        if (at == stage::idle)
            return;
        where->wake(*this);
        shared().waker->wake();
    }

    void woken() noexcept override { finish(shared().finished); }

    const std::stop_token stop_;
    std::optional<std::stop_callback<on_stop>> on_stop_;
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/awaitable.hpp>
#include <amux/detail/lock_awaiter.hpp>
#include <amux/source_location.hpp>
#include <amux/task.hpp>

#include <coroutine>
#include <type_traits>
#include <utility>

namespace amux {

namespace detail {
struct operation_access;
} // namespace detail

/// A lock that is asked for, described and not awaited yet: what `lock`, `lock_all`, `try_lock_for`, ... return.
///
/// It asks for nothing until it is awaited, once, as an rvalue; dropping it is harmless. Movable, so that it can be
/// handed to adaptors. Lifetime: the mux, and keys that were given as lvalues, outlive it; rvalues moved into it.
template <class Body, class Keys, class Wait, bool Placed = false>
class [[nodiscard("nothing is locked until it is awaited")]] lock_operation {
    using request = detail::lock_request<Body, Keys, Wait, Placed>;

public:
    using guard = detail::mux_guard<Body>;

    explicit lock_operation(request r) : request_{std::move(r)} {}
    /// What was moved from asks for nothing any more; awaiting it ends the program, as awaiting twice does.
    lock_operation(lock_operation&&) = default;
    lock_operation& operator=(lock_operation&& other) noexcept(
        std::is_nothrow_move_assignable_v<request>)
    {
        if (this != &other)
            request_ = std::move(other.request_);
        return *this;
    }

    /// The same lock, its coroutine resumed by `s` if it has to wait. Null: as if this had not been said.
    ///
    /// A lock that is granted at once does not hop.
    auto resume_on(scheduler* s) &&
    {
        return lock_operation<Body, Keys, Wait, true>{{std::move(request_.body), request_.mode,
                                                       std::move(request_.keys),
                                                       std::move(request_.wait), s}};
    }
    auto resume_on(scheduler& s) && { return std::move(*this).resume_on(&s); }

    auto operator co_await() &&
    {
        return detail::lock_awaiter<Body, Keys, Wait, Placed>{std::move(request_)};
    }

    /// Asks for it as an operation of a library whose adaptor was included, such as <amux/asio.hpp>. `token` is what that
    /// library calls a completion token.
    template <class Token>
    auto operator()(Token&& token) && -> decltype(amux_initiate(std::declval<lock_operation>(),
                                                                std::forward<Token>(token)))
    {
        return amux_initiate(std::move(*this), std::forward<Token>(token));
    }

private:
    friend detail::operation_access;

    request request_;
};

namespace detail {

/// The inside of a description, for adaptors.
struct operation_access {
    /// The same request, with a token to stop it by: its own, or one that is still to be set.
    template <class Body, class Keys, class Wait>
    static auto stoppable(lock_operation<Body, Keys, Wait> o)
        -> lock_operation<Body, Keys, stoppable_wait<Wait>>
    {
        if constexpr (has_stop<Wait>)
            return o;
        else
            return lock_operation<Body, Keys, stoppable_wait<Wait>>{
                {std::move(o.request_.body), o.request_.mode, std::move(o.request_.keys), {}}};
    }
    template <class Body, class Keys, class Wait>
    static std::stop_token& stop(lock_operation<Body, Keys, Wait>& o) noexcept
    {
        return o.request_.wait.stop;
    }
};

/// `fn()` and, when that can be awaited, what it gives then.
template <class F>
struct result_of_call {
    using type = std::invoke_result_t<F&>;
};
template <class F>
    requires awaitable<std::invoke_result_t<F&>>
struct result_of_call<F> {
    using type = await_result_t<std::invoke_result_t<F&>>;
};

/// Awaits a lock on behalf of other code than that in which the `co_await` stands.
template <class Operation>
class awaited_from {
public:
    awaited_from(Operation&& o, source_location from)
        : awaiter_{std::move(o).operator co_await()}, from_{from}
    {}

    bool await_ready() { return awaiter_.await_ready(); }
    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> h)
    {
        return awaiter_.await_suspend(h, from_);
    }
    auto await_resume() { return awaiter_.await_resume(); }

private:
    decltype(std::declval<Operation>().operator co_await()) awaiter_;
    source_location from_;
};

/// Runs `fn`, plain or a coroutine, under the lock. The guard releases it however `fn` ends.
template <class Operation, class F>
task<typename result_of_call<F>::type> run_with_lock(Operation operation, F fn,
                                                     source_location from)
{
    const auto guard = co_await awaited_from{std::move(operation), from};
    if constexpr (awaitable<std::invoke_result_t<F&>>)
        co_return co_await fn();
    else
        co_return fn();
}

} // namespace detail
} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/context.hpp>
#include <amux/detail/fatal.hpp>
#include <amux/detail/promise_hooks.hpp>
#include <amux/scheduler.hpp>

#include <atomic>
#include <coroutine>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace amux {

template <class T>
class task;

namespace detail {

/// What a task calls when it has ended, on the thread on which it ends. The task's frame may be destroyed inside.
struct continuation {
    void (*ended)(continuation&) noexcept;
};

/// The part of a task's promise that does not depend on the type of its result.
class task_promise_base {
public:
    task_promise_base() = default;
    task_promise_base(const task_promise_base&) = delete;
    task_promise_base& operator=(const task_promise_base&) = delete;

    struct final_awaiter {
        bool await_ready() const noexcept { return false; }
        template <class Promise>
        [[gnu::noinline]] void await_suspend(std::coroutine_handle<Promise> self) const noexcept
        {
            self.promise().meet_starter();
        }
        void await_resume() const noexcept {}
    };

    std::suspend_always initial_suspend() const noexcept { return {}; }
    final_awaiter final_suspend() const noexcept { return {}; }
    void unhandled_exception() noexcept { error_ = std::current_exception(); }

    /// Runs the task, whose frame is `self`, until it suspends or ends.
    ///
    /// Returns: false when it has ended already. True when it has not: then `next` is called once it has, which another
    /// thread may be doing before this returns. So the caller touches nothing after true that `next` can destroy.
    bool start(std::coroutine_handle<> self, continuation& next, scheduler* where,
               const context* who) noexcept
    {
        set(next, where, who);
        self.resume();
        return !met_.exchange(true, std::memory_order_acq_rel);
    }

    /// The same, but `next` is called in any case, also inside this call.
    void start_apart(std::coroutine_handle<> self, continuation& next, scheduler* where,
                     const context* who) noexcept
    {
        set(next, where, who);
        met_.store(true, std::memory_order_relaxed);
        self.resume();
    }

    /// The exception that the task has ended with; null when there is none.
    const std::exception_ptr& error() const noexcept { return error_; }

    friend scheduler* amux_scheduler(const task_promise_base& p) noexcept { return p.scheduler_; }
    friend const context* amux_context(const task_promise_base& p) noexcept { return p.context_; }

protected:
    void rethrow_error()
    {
        if (error_)
            std::rethrow_exception(std::move(error_));
    }

private:
    void set(continuation& next, scheduler* where, const context* who) noexcept
    {
        next_ = &next;
        scheduler_ = where;
        context_ = who;
    }

    // The task's end and the return of `start` meet here; the second of them lets the awaiting side go on. After the
    // exchange of the first, the second may destroy both frames.
    void meet_starter() noexcept
    {
        continuation& next = *next_;
        if (met_.exchange(true, std::memory_order_acq_rel))
            next.ended(next);
    }

    continuation* next_ = nullptr;
    scheduler* scheduler_ = nullptr;
    const context* context_ = nullptr;
    std::exception_ptr error_;
    std::atomic<bool> met_{false};
};

template <class T>
class task_promise final : public task_promise_base {
public:
    task<T> get_return_object() noexcept;

    template <class U = T>
        requires std::is_convertible_v<U&&, T>
    void return_value(U&& value) noexcept(std::is_nothrow_constructible_v<T, U&&>)
    {
        value_.emplace(std::forward<U>(value));
    }

    /// The result, once; throws what the task has ended with.
    T take()
    {
        rethrow_error();
        return std::move(*value_);
    }

private:
    std::optional<T> value_;
};

template <class T>
class task_promise<T&> final : public task_promise_base {
public:
    task<T&> get_return_object() noexcept;
    void return_value(T& value) noexcept { value_ = &value; }

    T& take()
    {
        rethrow_error();
        return *value_;
    }

private:
    T* value_ = nullptr;
};

template <>
class task_promise<void> final : public task_promise_base {
public:
    task<void> get_return_object() noexcept;
    void return_void() const noexcept {}
    void take() { rethrow_error(); }
};

/// Owns the frame of a task that is being awaited; lives in the frame of the coroutine that awaits it.
template <class T>
class task_awaiter : continuation {
public:
    using child_handle = std::coroutine_handle<task_promise<T>>;

    explicit task_awaiter(child_handle child) noexcept : continuation{&resume_parent}, child_{child}
    {}
    task_awaiter(const task_awaiter&) = delete;
    task_awaiter& operator=(const task_awaiter&) = delete;
    ~task_awaiter() { child_.destroy(); }

    bool await_ready() const noexcept { return false; }

    template <class Promise>
    [[gnu::noinline]] bool await_suspend(std::coroutine_handle<Promise> parent) noexcept
    {
        parent_ = parent;
        if constexpr (std::is_void_v<Promise>)
            return child_.promise().start(child_, *this, nullptr, nullptr);
        else
            return child_.promise().start(child_, *this, scheduler_of(parent.promise()),
                                          context_of(parent.promise()));
    }

    T await_resume() { return child_.promise().take(); }

private:
    static void resume_parent(continuation& self) noexcept
    {
        static_cast<task_awaiter&>(self).parent_.resume();
    }

    child_handle child_;
    std::coroutine_handle<> parent_;
};

/// The inside of a task, for what starts one other than by awaiting it.
struct task_access {
    template <class T>
    static std::coroutine_handle<task_promise<T>> handle(const task<T>& t) noexcept
    {
        if (!t.handle_)
            fatal("a task is started that is empty: moved from, or awaited already");
        return t.handle_;
    }

    template <class T>
    static void release(task<T>& t) noexcept
    {
        t.handle_ = nullptr;
    }
};

} // namespace detail

/// A coroutine that starts when it is awaited, and gives its result to the one coroutine that awaits it.
///
/// It carries two things to the tasks that it awaits: the scheduler on which its coroutines are resumed, and the
/// context by which locks tell who asks. It takes both from the coroutine that awaits it, at that moment; `spawn`,
/// `block_on`, `when_all` and `task_group` give their own. An exception that leaves it is rethrown where it is awaited.
///
/// Resumes: it begins inside `co_await`; when it ends, the awaiting coroutine goes on, on that thread and inside the
/// call that resumed the task. A loop over tasks that end at once runs in constant stack.
/// Lifetime: destroying a task destroys its coroutine, which must be suspended. Its parameters live until the end of
/// the expression that awaits it. Awaiting an empty task, such as one that was awaited before, ends the program.
template <class T = void>
class [[nodiscard("a task does nothing until it is awaited")]] task {
    static_assert(!std::is_rvalue_reference_v<T>, "a task gives a value, an lvalue or void");

public:
    /// What makes a function that returns it a coroutine.
    using promise_type = detail::task_promise<T>;
    /// What `co_await` gives.
    using value_type = T;

    /// Empty: only to be assigned to, or destroyed.
    task() noexcept = default;
    task(task&& other) noexcept : handle_{std::exchange(other.handle_, nullptr)} {}
    task& operator=(task&& other) noexcept
    {
        task old{std::move(other)};
        std::swap(handle_, old.handle_);
        return *this;
    }
    ~task()
    {
        if (handle_)
            handle_.destroy();
    }

    /// Awaits it: `co_await std::move(t)`, or the call itself, `co_await f()`. It is empty afterwards.
    detail::task_awaiter<T> operator co_await() && noexcept
    {
        const auto frame = detail::task_access::handle(*this);
        handle_ = nullptr;
        return detail::task_awaiter<T>{frame};
    }
    void operator co_await() & = delete; // write std::move: the task is empty afterwards

    /// Starts it as an operation of a library whose adaptor was included, such as <amux/asio.hpp>. `token` is what that
    /// library calls a completion token.
    template <class Token>
    auto operator()(Token&& token) && -> decltype(amux_initiate(std::declval<task>(),
                                                                std::forward<Token>(token)))
    {
        return amux_initiate(std::move(*this), std::forward<Token>(token));
    }

    /// Whether there is a coroutine to await.
    bool valid() const noexcept { return handle_ != nullptr; }
    /// As `valid`.
    explicit operator bool() const noexcept { return valid(); }

private:
    friend promise_type;
    friend detail::task_access;

    explicit task(std::coroutine_handle<promise_type> handle) noexcept : handle_{handle} {}

    std::coroutine_handle<promise_type> handle_;
};

namespace detail {

template <class T>
task<T> task_promise<T>::get_return_object() noexcept
{
    return task<T>{std::coroutine_handle<task_promise>::from_promise(*this)};
}

template <class T>
task<T&> task_promise<T&>::get_return_object() noexcept
{
    return task<T&>{std::coroutine_handle<task_promise>::from_promise(*this)};
}

inline task<void> task_promise<void>::get_return_object() noexcept
{
    return task<void>{std::coroutine_handle<task_promise>::from_promise(*this)};
}

} // namespace detail
} // namespace amux

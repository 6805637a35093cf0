// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/context.hpp>
#include <amux/detail/promise_hooks.hpp>
#include <amux/detail/task_root.hpp>
#include <amux/scheduler.hpp>
#include <amux/task.hpp>

#include <atomic>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace amux {

namespace detail {

/// What the children of one `when_all` share.
class when_all_gate {
public:
    explicit when_all_gate(std::size_t children) noexcept : left_{children + 1} {}

    void fail(const std::exception_ptr& error) noexcept
    {
        if (!failed_.exchange(true, std::memory_order_relaxed))
            error_ = error;
    }

    /// For each child that has ended, and for their start: true for the last call, after which all is to be seen.
    bool arrive() noexcept { return left_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

    void child_ended() noexcept
    {
        if (arrive())
            parent_.resume();
    }

    void rethrow_error()
    {
        if (error_)
            std::rethrow_exception(std::move(error_));
    }

    void set_parent(std::coroutine_handle<> parent) noexcept { parent_ = parent; }

private:
    std::atomic<std::size_t> left_;
    std::atomic<bool> failed_{false};
    std::exception_ptr error_;
    std::coroutine_handle<> parent_;
};

/// What the children take over from the coroutine that awaits them.
struct when_all_place {
    when_all_gate& gate;
    scheduler* where = nullptr;
    const context* who = nullptr;
};

template <class T>
class when_all_child : task_root {
public:
    struct seed {
        task<T>& work;
        const when_all_place& place;
    };

    explicit when_all_child(seed s) noexcept
        : task_root{s.work, s.place.where, s.place.who, &end},
          work_{std::move(s.work)},
          gate_{s.place.gate}
    {}

    using task_root::begin;

    /// The result, for a tuple.
    decltype(auto) take()
    {
        if constexpr (std::is_void_v<T>)
            return std::monostate{};
        else
            return task_access::handle(work_).promise().take();
    }

private:
    static void end(task_root& r) noexcept
    {
        auto& self = static_cast<when_all_child&>(r);
        if (self.error())
            self.gate_.fail(self.error());
        self.gate_.child_ended();
    }

    task<T> work_; // its frame goes before the context that it refers to
    when_all_gate& gate_;
};

/// Tells a coroutine its own scheduler and context.
struct find_place {
    when_all_place& place;

    bool await_ready() const noexcept { return false; }
    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> self) noexcept
    {
        place.where = scheduler_of(self.promise());
        place.who = context_of(self.promise());
        return false;
    }
    void await_resume() const noexcept {}
};

/// Begins all children and waits for them.
template <class Children>
struct when_all_start {
    Children& children;
    when_all_gate& gate;

    bool await_ready() const noexcept { return false; }
    [[gnu::noinline]] bool await_suspend(std::coroutine_handle<> parent) noexcept
    {
        gate.set_parent(parent);
        begin(children);
        return !gate.arrive();
    }
    void await_resume() const { gate.rethrow_error(); }

private:
    template <class... Child>
    static void begin(std::tuple<Child...>& all) noexcept
    {
        std::apply([](Child&... child) { (child.begin(), ...); }, all);
    }
    template <class Child>
    static void begin(std::vector<std::optional<Child>>& all) noexcept
    {
        for (auto& child : all)
            child->begin();
    }
};

template <class Children>
when_all_start(Children&, when_all_gate&) -> when_all_start<Children>;

template <class T>
using when_all_value_t = std::conditional_t<std::is_void_v<T>, std::monostate, T>;
template <class T>
using when_all_vector_t = std::conditional_t<std::is_void_v<T>, std::type_identity<void>,
                                             std::type_identity<std::vector<T>>>;

} // namespace detail

/// Runs tasks side by side and gives all their results, `std::monostate` for those of type void.
///
/// The tasks begin in order, each as far as it goes, on the awaiting coroutine's scheduler; each has a context of its
/// own, a child of the awaiting coroutine's.
/// Resumes: where the last of them ends, inside that.
/// Throws: once all have ended, the first exception in time that has left one of them.
template <class... Ts>
task<std::tuple<detail::when_all_value_t<Ts>...>> when_all(task<Ts>... tasks)
{
    detail::when_all_gate gate{sizeof...(Ts)};
    detail::when_all_place place{gate};
    co_await detail::find_place{place};
    std::tuple<detail::when_all_child<Ts>...> children{
        typename detail::when_all_child<Ts>::seed{tasks, place}...};
    co_await detail::when_all_start{children, gate};
    co_return std::apply(
        [](auto&... child) { return std::tuple<detail::when_all_value_t<Ts>...>{child.take()...}; },
        children);
}

/// The same for any number of tasks of one type: gives their results in the order of the tasks; void for void.
template <class T>
    requires(!std::is_reference_v<T>)
task<typename detail::when_all_vector_t<T>::type> when_all(std::vector<task<T>> tasks)
{
    using child = detail::when_all_child<T>;
    detail::when_all_gate gate{tasks.size()};
    detail::when_all_place place{gate};
    co_await detail::find_place{place};
    std::vector<std::optional<child>> children(tasks.size()); // a child does not move
    for (std::size_t i = 0; i != tasks.size(); ++i)
        children[i].emplace(typename child::seed{tasks[i], place});
    co_await detail::when_all_start{children, gate};
    if constexpr (!std::is_void_v<T>) {
        std::vector<T> results;
        results.reserve(children.size());
        for (auto& c : children)
            results.push_back(c->take());
        co_return results;
    }
}

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/awaitable.hpp>
#include <amux/detail/task_root.hpp>
#include <amux/event_loop.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/scheduler.hpp>
#include <amux/task.hpp>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

namespace amux::testing {

/// Where a backend is tested: who runs its operations, and how its time passes.
struct environment {
    /// What times are given in.
    using milliseconds = std::chrono::milliseconds;

    /// Runs a task, which throws nothing, to its end on this thread. Throws when it will not end.
    std::function<void(task<>)> run;
    /// Lets time pass, for the backend's store.
    std::function<void(milliseconds)> pass;
    /// How much sooner or later than it should a lease may be seen to end; zero where time is exact.
    milliseconds slack{};
    /// Put before every key: a store that keeps its data wants another one for every run.
    std::string prefix;
};

namespace detail {

struct awaited_root : amux::detail::task_root {
    awaited_root(const task<>& work, scheduler& where) noexcept
        : task_root{work, &where, nullptr, &end}
    {}
    static void end(task_root& r) noexcept { static_cast<awaited_root&>(r).ended = true; }

    bool ended = false;
};

} // namespace detail

/// For a backend whose time is that of a manual loop: exact, and it takes no time. An operation that does not end in a
/// minute of that time counts as one that never will, and who waits for it is destroyed. Lifetime: `loop` outlives it.
inline environment in_virtual_time(manual_event_loop& loop)
{
    environment e;
    e.pass = [&loop](std::chrono::milliseconds d) { loop.advance(d); };
    e.run = [&loop](task<> work) {
        detail::awaited_root root{work, loop};
        const task<> owned = std::move(work); // its frame goes before the root
        root.post_begin();
        for (int spent = 0; !root.ended; ++spent) {
            if (spent == 60'000)
                throw std::runtime_error{"the operation does not end"};
            if (spent != 0)
                loop.advance(std::chrono::milliseconds{1});
            for (int turns = 0; turns < 1'000 && loop.run_ready() != 0; ++turns) {
            }
        }
    };
    return e;
}

/// For a backend in real time, such as one with a server: each operation runs on an `event_loop` of its own.
inline environment in_real_time(std::string prefix,
                                std::chrono::milliseconds slack = std::chrono::milliseconds{50})
{
    environment e;
    e.pass = [](std::chrono::milliseconds d) { std::this_thread::sleep_for(d); };
    e.run = [](task<> work) {
        event_loop loop;
        loop.block_on(std::move(work));
    };
    e.slack = slack;
    e.prefix = std::move(prefix);
    return e;
}

namespace detail {

template <class T>
struct outcome {
    std::conditional_t<std::is_void_v<T>, bool,
                       std::optional<std::conditional_t<std::is_void_v<T>, bool, T>>>
        value{};
    std::exception_ptr error;
};

// `make` makes the awaitable inside: nothing of it is on the stack of who waits.
template <class T, class F>
task<> record(F make, std::shared_ptr<outcome<T>> out)
{
    try {
        if constexpr (std::is_void_v<T>)
            co_await make();
        else
            out->value.emplace(co_await make());
    } catch (...) {
        out->error = std::current_exception();
    }
}

} // namespace detail

/// Awaits what `make()` gives, in an environment, and gives its result; throws what it throws.
template <class F>
auto run_in(const environment& where, F make)
{
    using result = std::remove_cvref_t<amux::detail::await_result_t<std::invoke_result_t<F&>>>;
    const auto out = std::make_shared<detail::outcome<result>>();
    where.run(detail::record<result>(std::move(make), out));
    if (out->error)
        std::rethrow_exception(out->error);
    if constexpr (!std::is_void_v<result>)
        return std::move(*out->value);
}

} // namespace amux::testing

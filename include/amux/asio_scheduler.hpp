// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/asio_config.hpp>
#include <amux/detail/asio_loop.hpp>
#include <amux/detail/root_list.hpp>
#include <amux/scheduler.hpp>

#if defined(AMUX_STANDALONE_ASIO)
#include <asio/any_io_executor.hpp>
#else
#include <boost/asio/any_io_executor.hpp>
#endif

#include <memory>

namespace amux {

/// Runs tasks, and a `distributed_lock`, on an executor of Asio: `amux::asio_scheduler loop{io.get_executor()};`.
///
/// It needs no thread of its own. Its nodes run one at a time, also over a `thread_pool`: it is a strand of its own. What
/// is queued or armed here is work that keeps `run()` from returning; a coroutine that waits for something else, such
/// as a lock, is none: keep an `executor_work_guard`. After 64 nodes the executor's other handlers get their turn. With
/// the executor of an `io_context` or a `thread_pool`, posting and timers allocate nothing; one that is wrapped, as in
/// an `any_io_executor`, may allocate, and without memory the program ends.
///
/// Thread-safety: `post`, `schedule_at` and `spawn` from any thread.
/// Lifetime: the executor's context outlives it. It is destroyed where it runs, or while it does not run; that destroys
/// the tasks that were spawned on it and have not ended, and nothing is resumed any more.
template <class Executor = detail::asio::any_io_executor>
class asio_scheduler final : public scheduler {
public:
    /// Where its nodes run.
    using executor_type = Executor;

    /// Of `ex`, such as that of an `io_context`, a strand, or a `thread_pool`.
    explicit asio_scheduler(const Executor& ex)
        : loop_{std::make_shared<detail::asio_loop<Executor>>(ex)}
    {}
    ~asio_scheduler() override
    {
        roots_.destroy_all();
        loop_->close();
    }

    /// What it was made of.
    executor_type get_executor() const noexcept { return loop_->executor(); }

    void post(node& n) noexcept override { loop_->post(n); }
    void schedule_at(time_point due, node& n) noexcept override { loop_->schedule_at(due, n); }
    bool cancel(node& n) noexcept override { return loop_->cancel(n); }
    time_point now() const noexcept override { return clock::now(); }
    detail::root_list* roots() noexcept override { return &roots_; }

private:
    const std::shared_ptr<detail::asio_loop<Executor>> loop_;
    detail::root_list roots_;
};

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>

#include <cstdint>

namespace amux {

namespace detail {
class root_list;
} // namespace detail

/// The port to an event loop: where suspended coroutines are resumed. Derive from it to run amux on a loop of your own.
///
/// A scheduler runs its nodes one at a time (over a pool of threads: a strand). It never owns a node: whoever posts one
/// keeps it alive until it has run or `cancel` has taken it out. Nothing here allocates.
class scheduler {
public:
    /// Of `amux::clock`, whatever clock the port reads.
    using time_point = clock::time_point;

    /// One thing to run, once. It belongs to whoever posts it; a port uses its fields while it is queued.
    class node {
    public:
        /// What `run` calls, with the node itself.
        using function = void (*)(node&) noexcept;

        /// Queued nowhere.
        explicit node(function f) noexcept : function_{f} {}
        node(const node&) = delete;
        node& operator=(const node&) = delete;

        /// Runs it. The node may be gone when this returns: take it out of the queue first, and do not touch it after.
        void run() noexcept { function_(*this); }

        // For the port's own use, from `post` or `schedule_at` until the node runs or is cancelled.

        /// A link.
        node* next = nullptr;
        /// A link.
        node* prev = nullptr;
        /// A link, for a heap.
        node* child = nullptr;
        /// When it is due.
        time_point due{};
        /// A number, to keep equal ones in order.
        std::uint64_t order = 0;
        /// Where it is queued; a port sets it to null when it takes the node out.
        void* queue = nullptr;

    private:
        function function_;
    };

    scheduler() = default;
    scheduler(const scheduler&) = delete;
    scheduler& operator=(const scheduler&) = delete;
    virtual ~scheduler() = default;

    /// Lets `n` run soon, after everything that was posted before.
    ///
    /// Effects: only queues. It is called with an internal lock of amux held: it must not run a node, nor call amux.
    /// Thread-safety: any thread.
    virtual void post(node& n) noexcept = 0;

    /// Lets `n` run when `now()` has reached `due`, in order of `due`. A time that has passed is as good as now.
    ///
    /// Effects and thread-safety: as `post`.
    virtual void schedule_at(time_point due, node& n) noexcept = 0;

    /// Takes `n` out again, whether posted or scheduled.
    ///
    /// Returns: true when it will not run; false when it is not queued here.
    /// Thread-safety: only where this scheduler runs its nodes, or while it does not run.
    virtual bool cancel(node& n) noexcept = 0;

    /// The time that `schedule_at` compares with. Thread-safety: any thread.
    virtual time_point now() const noexcept = 0;

    /// The spawned coroutines that are destroyed with this scheduler; null for a port that does not track them.
    virtual detail::root_list* roots() noexcept { return nullptr; }
};

} // namespace amux

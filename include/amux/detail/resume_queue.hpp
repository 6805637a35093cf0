// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/intrusive_list.hpp>
#include <amux/scheduler.hpp>

namespace amux::detail {

/// What this thread has still to resume: coroutines that have no scheduler and whose wait this thread has ended.
///
/// A coroutine that is resumed here may release a lock and so queue more; those wait for the loop that is running
/// already. So the stack does not grow with the length of a queue. The functions are kept out of line: inside a
/// coroutine a compiler may keep the address of a thread-local across a suspension, and so use another thread's.
class resume_queue {
public:
    using node = scheduler::node;

    [[gnu::noinline]] static void push(node& n) noexcept { this_thread_.nodes.push_back(n); }

    /// Takes out a node that this thread has queued.
    [[gnu::noinline]] static void remove(node& n) noexcept { this_thread_.nodes.erase(n); }

    /// Runs what is queued, unless a call further up this thread's stack is doing so.
    [[gnu::noinline]] static void drain() noexcept
    {
        if (!this_thread_.draining)
            run_all();
    }

    /// Runs what is queued, also inside a call that is doing so: for loops that would otherwise sleep over it.
    [[gnu::noinline]] static bool drain_nested() noexcept { return run_all(); }

private:
    struct state {
        intrusive_list<node, &node::prev, &node::next> nodes;
        bool draining;
    };

    static bool run_all() noexcept
    {
        state& s = this_thread_;
        if (s.nodes.empty())
            return false;
        const bool outer = s.draining;
        s.draining = true;
        while (node* n = s.nodes.pop_front())
            n->run();
        s.draining = outer;
        return true;
    }

    static inline constinit thread_local state this_thread_{};
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
// Without this file nobody sees that a coroutine is touched after it has ended.
#pragma once

#include "schedules/explorer.hpp"
#include "schedules/memory.hpp"

#include <amux/scheduler.hpp>

#include <coroutine>
#include <cstddef>

namespace schedules {

/// Begins when it is told to, ends by itself, and lives in watched memory: the `frame` of its first parameter.
struct coroutine {
    struct promise_type {
        template <class Self, class... Rest>
        static void* operator new(std::size_t size, Self& self, Rest&...)
        {
            return self.frame.take(size);
        }
        static void operator delete(void* p) { watched_memory::give_back(p); }

        coroutine get_return_object() noexcept { return {handle::from_promise(*this)}; }
        std::suspend_always initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { fail("an exception left a coroutine"); }

        amux::scheduler* where = nullptr;
    };
    using handle = std::coroutine_handle<promise_type>;

    handle started_on(amux::scheduler* where) const noexcept
    {
        frame.promise().where = where;
        return frame;
    }

    handle frame;
};

// Found by argument-dependent lookup.
inline amux::scheduler* amux_scheduler(coroutine::promise_type& p) noexcept
{
    return p.where;
}

} // namespace schedules

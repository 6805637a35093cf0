// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/root_list.hpp>
#include <amux/detail/task_root.hpp>
#include <amux/scheduler.hpp>
#include <amux/task.hpp>

#include <exception>
#include <utility>

namespace amux {

namespace detail {

inline void end_spawned(task_root& r) noexcept
{
    auto& self = static_cast<owned_root&>(r);
    // It leaves a noexcept function: the program ends, and says what was thrown.
    if (self.error())
        std::rethrow_exception(self.error());
    if (auto* const list = static_cast<root_list*>(self.owner()))
        list->remove(self);
    delete &self;
}

} // namespace detail

/// Starts a task that nobody awaits. Its result is dropped; an exception that leaves it ends the program.
///
/// Resumes: the task begins where `where` runs its nodes, after this call has posted it. It is a context of its own.
/// Throws: `std::bad_alloc`; then nothing has happened.
/// Thread-safety: any thread.
/// Lifetime: the task owns itself. A loop of amux that is destroyed destroys the tasks that were spawned on it and have
/// not ended; a port whose `roots()` is null leaks those whose nodes it drops.
template <class T>
void spawn(scheduler& where, task<T> work)
{
    detail::root_list* const list = where.roots();
    auto* const root = new detail::owned_root{std::move(work), where, &detail::end_spawned, list};
    if (list)
        list->add(*root);
    root->post_begin();
}

} // namespace amux

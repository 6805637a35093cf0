// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/task_root.hpp>

#include <mutex>

namespace amux::detail {

/// The spawned tasks that are to be destroyed with their scheduler.
///
/// Thread-safety: `add` and `remove` from any thread; `destroy_all` while no root runs.
class root_list {
public:
    void add(owned_root& r) noexcept
    {
        const std::lock_guard lock{mutex_};
        roots_.push_back(r);
    }

    void remove(owned_root& r) noexcept
    {
        const std::lock_guard lock{mutex_};
        roots_.erase(r);
    }

    /// Destroys them one after another, also those that are added by what a dying frame does.
    void destroy_all() noexcept
    {
        destroying_ = true;
        while (owned_root* r = pop())
            delete r;
    }

    /// Whether `destroy_all` has begun: nobody will be resumed any more.
    bool destroying() const noexcept { return destroying_; }

private:
    owned_root* pop() noexcept
    {
        const std::lock_guard lock{mutex_};
        return roots_.pop_front();
    }

    std::mutex mutex_;
    intrusive_list<owned_root, &owned_root::prev_root, &owned_root::next_root> roots_;
    bool destroying_ = false;
};

} // namespace amux::detail

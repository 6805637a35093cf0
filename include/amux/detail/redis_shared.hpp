// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/redis_settings.hpp>
#include <amux/detail/redis_tls.hpp>
#include <amux/detail/redis_waker.hpp>
#include <amux/detail/token.hpp>
#include <amux/scheduler.hpp>

#include <coroutine>
#include <memory>
#include <mutex>
#include <utility>

namespace amux::detail {

using resumption_list =
    intrusive_list<scheduler::node, &scheduler::node::prev, &scheduler::node::next>;

/// What the parts of a Redis backend share.
///
/// One mutex guards everything in all of them; what is the I/O thread's alone says so. Under it nothing blocks, and no
/// code of the user's runs: a coroutine that is done is posted to its scheduler, or put into `finished`.
struct redis_shared {
    explicit redis_shared(redis_settings s) : settings{std::move(s)} {}

    const redis_settings settings;
    const redis_tls_context tls{settings};
    std::mutex mutex;
    std::shared_ptr<redis_waker> waker; // from the first operation on
    jitter random;
    resumption_list
        finished; // have no scheduler: the I/O thread resumes them, once it has left the mutex
    bool closed = false; // the backend is gone; the I/O thread ends everything
};

/// A coroutine that waits for the I/O thread.
///
/// It is suspended, then finished by whoever gets to it first under the mutex, once, then resumed. While it waits its frame
/// may be destroyed where it would be resumed: on its scheduler's thread or, without a scheduler, on the I/O thread. A frame
/// without a scheduler that is destroyed elsewhere must not be finished meanwhile.
class redis_suspension : scheduler::node {
public:
    redis_suspension() noexcept : node{&resume} {}
    redis_suspension(const redis_suspension&) = delete;
    redis_suspension& operator=(const redis_suspension&) = delete;

    // With the mutex:

    /// Resumes: at the coroutine's scheduler, or else on the I/O thread.
    void finish(redis_shared& shared) noexcept
    {
        due_ = true;
        if (where_)
            where_->post(*this);
        else
            shared.finished.push_back(*this);
    }

protected:
    ~redis_suspension() = default;

    void suspended(std::coroutine_handle<> h, scheduler* where) noexcept
    {
        handle_ = h;
        where_ = where;
    }
    /// The frame goes: it is not resumed any more. Where it would have been resumed.
    void withdraw(redis_shared& shared) noexcept
    {
        if (!due_)
            return;
        if (where_)
            where_->cancel(*this);
        else
            shared.finished.erase(*this);
    }

private:
    static void resume(scheduler::node& n) noexcept
    {
        auto& self = static_cast<redis_suspension&>(n);
        self.due_ = false;
        self.handle_.resume();
    }

    std::coroutine_handle<> handle_;
    scheduler* where_ = nullptr;
    bool due_ = false; // finished, and not resumed yet
};

} // namespace amux::detail

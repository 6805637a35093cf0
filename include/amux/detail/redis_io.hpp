// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/no_signals.hpp>
#include <amux/detail/redis_commands.hpp>
#include <amux/detail/redis_link.hpp>
#include <amux/detail/redis_shared.hpp>
#include <amux/detail/redis_subscriber.hpp>
#include <amux/detail/redis_waker.hpp>
#include <amux/detail/token.hpp>
#include <amux/error.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <poll.h>

namespace amux::detail {

/// The state of a Redis backend: its connections, and the thread that serves them.
///
/// The thread begins with the first operation, so a backend may be made before a `fork` and used after it, in one of the
/// processes. Renewals and releases have a connection of their own, so that they never queue behind those who want locks.
class redis_io : public std::enable_shared_from_this<redis_io> {
public:
    explicit redis_io(redis_settings s)
        : shared_{std::move(s)},
          acquires_{shared_},
          renewals_{shared_},
          subscriber_{shared_, acquires_}
    {}

    /// Whether this process is a child that was forked since. Then nothing here may be touched: a thread that is not
    /// there may hold the mutex, and the connections are the parent's.
    bool forked() const noexcept
    {
        const long p = process_.load(std::memory_order_relaxed);
        return p != 0 && p != process_id();
    }

    /// With the mutex: gets the thread running. Returns: why that cannot be.
    std::optional<redis_trouble> start();

    redis_shared& shared() noexcept { return shared_; }
    redis_commands& for_operation(redis_operation::kind k) noexcept
    {
        const bool keeps =
            k == redis_operation::kind::extend || k == redis_operation::kind::release;
        return keeps ? renewals_ : acquires_;
    }
    redis_subscriber& subscriber() noexcept { return subscriber_; }

    /// Ends the thread; every operation that is out is answered with trouble.
    void close() noexcept;
    /// In a forked child: keeps all as it is until the process ends.
    void abandon() noexcept { self_ = shared_from_this(); }

private:
    void run() noexcept;
    void resume_finished() noexcept;
    static int milliseconds_until(clock::time_point due) noexcept;

    redis_shared shared_;
    redis_commands acquires_;
    redis_commands renewals_;
    redis_subscriber subscriber_;
    // Renewals come first, also after a reconnect.
    const std::array<redis_link*, 3> links_{&renewals_, &acquires_, &subscriber_};
    std::thread thread_;
    std::shared_ptr<redis_io> self_; // once abandoned
    std::atomic<long> process_{0}; // whose the thread is; 0: there is none yet
};

inline std::optional<redis_trouble> redis_io::start()
{
    if (shared_.closed)
        return redis_trouble{backend_error_kind::not_applied, "the backend was destroyed"};
    if (process_.load(std::memory_order_relaxed) != 0)
        return std::nullopt;
    try {
        shared_.waker = std::make_shared<redis_waker>();
        const no_signals none;
        thread_ = std::thread{[self = shared_from_this()] { self->run(); }};
    } catch (const std::system_error& e) {
        return redis_trouble{backend_error_kind::not_applied, e.what()};
    }
    process_.store(process_id(), std::memory_order_relaxed);
    return std::nullopt;
}

inline void redis_io::close() noexcept
{
    {
        const std::lock_guard lock{shared_.mutex};
        shared_.closed = true;
        if (!thread_.joinable())
            return;
        shared_.waker->wake();
    }
    // What the I/O thread resumes may destroy the backend.
    if (thread_.get_id() == std::this_thread::get_id())
        thread_.detach();
    else
        thread_.join();
}

inline void redis_io::run() noexcept
{
    // While there is something to do it wakes in time for what is asked meanwhile, without being told.
    bool busy = true;
    for (;;) {
        std::array<pollfd, 4> watched{};
        shared_.waker->before_sleep();
        clock::time_point now = clock::now();
        clock::time_point due =
            busy ? now + shared_.settings.command_timeout : (clock::time_point::max)();
        bool some = false;
        {
            const std::lock_guard lock{shared_.mutex};
            if (shared_.closed)
                break;
            for (std::size_t n = 0; n != links_.size(); ++n) {
                links_[n]->step(now);
                due = (std::min)(due, links_[n]->due(now));
                watched[n] = links_[n]->watched();
            }
            some = !shared_.finished.empty();
        }
        if (some) {
            shared_.waker->after_sleep();
            resume_finished();
            continue;
        }
        watched[3] = {shared_.waker->fd(), POLLIN, 0};
        shared_.waker->sleep_until(due);
        busy = ::poll(watched.data(), watched.size(), milliseconds_until(due)) > 0;
        shared_.waker->after_sleep();
        if (!busy)
            continue;
        if (watched[3].revents != 0)
            shared_.waker->drain();
        for (std::size_t n = 0; n != links_.size(); ++n)
            links_[n]->receive(watched[n].revents);
        now = clock::now();
        {
            const std::lock_guard lock{shared_.mutex};
            for (redis_link* l : links_)
                l->digest(now);
        }
        resume_finished();
        for (redis_link* l : links_)
            l->forget_replies();
    }
    {
        const std::lock_guard lock{shared_.mutex};
        subscriber_.close();
        acquires_.close();
        renewals_.close();
    }
    resume_finished();
}

inline int redis_io::milliseconds_until(clock::time_point due) noexcept
{
    if (due == (clock::time_point::max)())
        return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - clock::now()).count();
    return static_cast<int>((std::clamp)(left, decltype(left){0}, decltype(left){60'000}));
}

inline void redis_io::resume_finished() noexcept
{
    // One by one: who is resumed may destroy those behind him, which take themselves out.
    const auto next = [this] {
        const std::lock_guard lock{shared_.mutex};
        return shared_.finished.pop_front();
    };
    while (scheduler::node* const n = next())
        n->run();
}

} // namespace amux::detail

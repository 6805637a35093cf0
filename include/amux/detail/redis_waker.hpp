// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>

#include <atomic>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace amux::detail {

/// Wakes the I/O thread out of `poll`, when there is need.
///
/// `until_` is when it wakes by itself: for whoever has something that is due later it need not be woken. The order
/// matters: `before_sleep`, then it looks through everything that it has to do, then `sleep_until`. What was added
/// before its look it has seen; whoever adds later sees one of the two values.
class redis_waker {
public:
    using time_point = clock::time_point;

    /// Throws: `std::system_error` when there are no file descriptors left.
    redis_waker()
    {
#ifdef __linux__
        // At once: another thread may start a program at any moment.
        const int failed = ::pipe2(ends_, O_NONBLOCK | O_CLOEXEC);
#else
        const int failed = ::pipe(ends_);
#endif
        if (failed != 0)
            throw std::system_error{errno, std::generic_category(), "amux: no pipe"};
#ifndef __linux__
        for (const int fd : ends_) {
            ::fcntl(fd, F_SETFL, O_NONBLOCK);
            ::fcntl(fd, F_SETFD, FD_CLOEXEC);
        }
#endif
    }
    redis_waker(const redis_waker&) = delete;
    redis_waker& operator=(const redis_waker&) = delete;
    ~redis_waker()
    {
        ::close(ends_[0]);
        ::close(ends_[1]);
    }

    /// Any thread: something is to be looked at by `when`.
    void wake_by(time_point when) noexcept
    {
        time_point asleep = until_.load();
        while (when < asleep) {
            if (!until_.compare_exchange_weak(asleep, awake))
                continue;
            const char byte = 0;
            // A full pipe wakes it as well.
            [[maybe_unused]] const auto written = ::write(ends_[1], &byte, 1);
            return;
        }
    }
    void wake() noexcept { wake_by((time_point::min)() + clock::duration{1}); }

    // The I/O thread:

    void before_sleep() noexcept { until_.store((time_point::max)()); }
    void sleep_until(time_point due) noexcept { until_.store(due); }
    void after_sleep() noexcept { until_.store(awake); }
    /// Readable after it was woken.
    int fd() const noexcept { return ends_[0]; }
    void drain() noexcept
    {
        char bytes[64];
        while (::read(ends_[0], bytes, sizeof bytes) == static_cast<ssize_t>(sizeof bytes)) {
        }
    }

private:
    static constexpr time_point awake = (time_point::min)();

    int ends_[2];
    std::atomic<time_point> until_{awake};
};

} // namespace amux::detail

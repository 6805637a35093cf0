// SPDX-License-Identifier: BSL-1.0
// Descriptors for `poll`: one that another thread makes ready, one that the clock does.
#pragma once

#include "ending.hpp"

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

namespace amuxctl {

class descriptor {
public:
    /// Throws: `std::system_error` for a call that gave none.
    explicit descriptor(int fd, const char* what = "no descriptor") : fd_{fd}
    {
        if (fd < 0)
            throw std::system_error{errno, std::generic_category(), what};
    }
    descriptor(descriptor&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
    descriptor& operator=(descriptor&& other) noexcept
    {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~descriptor()
    {
        if (fd_ >= 0)
            ::close(fd_);
    }
    int get() const { return fd_; }

private:
    int fd_;
};

/// Made ready by a call, on any thread.
class wake {
public:
    wake() : fd_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {}

    void operator()() const
    {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto done = write(fd_.get(), &one, sizeof one);
    }
    void clear() const
    {
        std::uint64_t count = 0;
        [[maybe_unused]] const auto done = read(fd_.get(), &count, sizeof count);
    }
    int fd() const { return fd_.get(); }

private:
    descriptor fd_;
};

/// Made ready by the clock that also counts the time in which the machine sleeps: the time-out of `poll` does not.
class alarm_clock {
public:
    alarm_clock() : fd_{timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)} {}

    /// Ready from `when` on.
    void set(time_point when) const
    {
        const auto since = (std::max)(when.time_since_epoch(), duration{1}); // 0 would disarm it
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
        itimerspec t{};
        t.it_value.tv_sec = static_cast<time_t>(seconds.count());
        t.it_value.tv_nsec = static_cast<long>((since - seconds).count());
        timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &t, nullptr);
    }
    int fd() const { return fd_.get(); }

private:
    descriptor fd_;
};

} // namespace amuxctl

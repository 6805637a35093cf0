// SPDX-License-Identifier: BSL-1.0
// Without this file no test sets the wall clock of a server: loaded into it (LD_PRELOAD), it adds to the time that the
// server is told the microseconds that stand in a file.
#include <cstdint>
#include <cstdlib>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

std::int64_t offset()
{
    static const volatile std::int64_t* const shared = [] {
        static const std::int64_t none = 0;
        const char* const name = std::getenv("AMUX_TEST_CLOCK");
        const int fd = name != nullptr ? open(name, O_RDONLY | O_CLOEXEC) : -1;
        if (fd < 0)
            return &none;
        void* const memory = mmap(nullptr, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
        return memory == MAP_FAILED ? &none : static_cast<const std::int64_t*>(memory);
    }();
    return *shared;
}

void shift(timespec& t)
{
    const std::int64_t whole = (t.tv_sec * 1'000'000'000 + t.tv_nsec) + offset() * 1'000;
    t.tv_sec = whole / 1'000'000'000;
    t.tv_nsec = whole % 1'000'000'000;
}

} // namespace

extern "C" {

int clock_gettime(clockid_t id, timespec* t) noexcept
{
    const int result = static_cast<int>(syscall(SYS_clock_gettime, id, t));
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        shift(*t);
    return result;
}

int gettimeofday(timeval* t, void*) noexcept
{
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1'000;
    return 0;
}

time_t time(time_t* t) noexcept
{
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    if (t != nullptr)
        *t = now.tv_sec;
    return now.tv_sec;
}
}

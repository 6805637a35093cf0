// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#if defined(__linux__)
#include <sys/random.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <unistd.h>
#endif

namespace amux::detail {

/// 64 random bits from the kernel: nothing is kept in the process that a forked child could repeat.
inline std::uint64_t random_bits()
{
#if defined(__linux__)
    std::uint64_t bits = 0;
    if (getrandom(&bits, sizeof bits, 0) == static_cast<ssize_t>(sizeof bits))
        return bits;
#endif
    std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
}

/// 128 random bits, in hexadecimal: unique, and not to be guessed.
inline std::string make_token()
{
    std::string token;
    token.reserve(32);
    for (int half = 0; half < 2; ++half) {
        const std::uint64_t bits = random_bits();
        for (int shift = 60; shift >= 0; shift -= 4)
            token += "0123456789abcdef"[(bits >> shift) & 15];
    }
    return token;
}

#if defined(__GLIBC__)
// Several times for each lease it is asked which process this is: that is not worth a system call each time. Other C
// libraries would keep the handler when a library that has it is unloaded.
inline std::atomic<long> known_process_id{0}; // 0: not known
inline const bool told_of_forks =
    ::pthread_atfork(nullptr, nullptr, [] {
        known_process_id.store(static_cast<long>(getpid()), std::memory_order_relaxed);
    }) == 0;
#endif

/// Tells a process from its forked children.
inline long process_id() noexcept
{
#if defined(__GLIBC__)
    long id = known_process_id.load(std::memory_order_relaxed);
    if (id != 0)
        return id;
    id = static_cast<long>(getpid());
    if (told_of_forks)
        known_process_id.store(id, std::memory_order_relaxed);
    return id;
#elif defined(__unix__) || defined(__APPLE__)
    return static_cast<long>(getpid());
#else
    return 0;
#endif
}

/// Spreads what would happen at the same time; not for secrets. (Steele, Lea, Flood: SplitMix, 2014.)
class jitter {
public:
    jitter() : state_{random_bits()} {}

    /// A number from `low` up to, not including, `high`.
    double between(double low, double high) noexcept
    {
        std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        return low + (high - low) * static_cast<double>(z >> 11) * 0x1.0p-53;
    }

private:
    std::uint64_t state_;
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
// Without this file a random test of leases cannot be replayed: locks spread their polls by bits from the kernel.
#include "support/seeded_bits.hpp"

#include <atomic>
#include <cstddef>
#include <cstring>

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

namespace {

std::atomic<bool> seeded{false};
std::uint64_t state = 0;

std::uint64_t next() noexcept // SplitMix
{
    std::uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

} // namespace

// Found before that of the C library.
extern "C" ssize_t getrandom(void* to, std::size_t size, unsigned flags)
{
    if (!seeded.load(std::memory_order_acquire))
        return syscall(SYS_getrandom, to, size, flags);
    auto* out = static_cast<unsigned char*>(to);
    for (std::size_t done = 0; done < size;) {
        const std::uint64_t bits = next();
        const std::size_t some = size - done < sizeof bits ? size - done : sizeof bits;
        std::memcpy(out + done, &bits, some);
        done += some;
    }
    return static_cast<ssize_t>(size);
}

namespace support {

seeded_bits::seeded_bits(std::uint64_t seed) noexcept
{
    state = seed;
    seeded.store(true, std::memory_order_release);
}

seeded_bits::~seeded_bits()
{
    seeded.store(false, std::memory_order_release);
}

} // namespace support

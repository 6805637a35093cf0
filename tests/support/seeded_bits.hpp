// SPDX-License-Identifier: BSL-1.0
// Without this file a random test of leases cannot be replayed: locks spread their polls by bits from the kernel.
#pragma once

#include <cstdint>

namespace support {

/// While it lives, the bits that this process gets from the kernel follow from the seed. One at a time; the main thread
/// alone makes locks meanwhile.
class seeded_bits {
public:
    explicit seeded_bits(std::uint64_t seed) noexcept;
    seeded_bits(const seeded_bits&) = delete;
    seeded_bits& operator=(const seeded_bits&) = delete;
    ~seeded_bits();
};

} // namespace support

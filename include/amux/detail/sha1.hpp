// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace amux::detail {

/// The SHA-1 of a text, in hexadecimal: the name by which Redis calls a script. Not for secrets. (FIPS 180-4.)
class sha1 {
public:
    static constexpr std::array<char, 40> hex(std::string_view text)
    {
        sha1 s;
        const std::size_t size = text.size();
        const std::size_t blocks = (size + 8) / 64 + 1;
        for (std::size_t b = 0; b != blocks; ++b) {
            std::array<std::uint32_t, 80> w{};
            for (std::size_t n = 0; n != 64; ++n)
                w[n / 4] |= std::uint32_t{byte(text, b * 64 + n, blocks * 64)}
                            << (24 - 8 * (n % 4));
            s.add(w);
        }
        std::array<char, 40> out{};
        for (std::size_t n = 0; n != 40; ++n)
            out[n] = "0123456789abcdef"[(s.state_[n / 8] >> (28 - 4 * (n % 8))) & 15];
        return out;
    }

private:
    /// Of the padded text: a one, zeros, and its length in bits.
    static constexpr std::uint8_t byte(std::string_view text, std::size_t at, std::size_t end)
    {
        if (at < text.size())
            return static_cast<std::uint8_t>(text[at]);
        if (at == text.size())
            return 0x80;
        if (at + 8 < end)
            return 0;
        return static_cast<std::uint8_t>((std::uint64_t{text.size()} * 8) >> (8 * (end - 1 - at)));
    }

    constexpr void add(std::array<std::uint32_t, 80>& w)
    {
        for (std::size_t n = 16; n != 80; ++n)
            w[n] = std::rotl(w[n - 3] ^ w[n - 8] ^ w[n - 14] ^ w[n - 16], 1);
        auto [a, b, c, d, e] = state_;
        for (std::size_t n = 0; n != 80; ++n) {
            std::uint32_t f = 0;
            std::uint32_t k = 0;
            if (n < 20) {
                f = (b & c) | (~b & d);
                k = 0x5A827999;
            } else if (n < 40) {
                f = b ^ c ^ d;
                k = 0x6ED9EBA1;
            } else if (n < 60) {
                f = (b & c) | (b & d) | (c & d);
                k = 0x8F1BBCDC;
            } else {
                f = b ^ c ^ d;
                k = 0xCA62C1D6;
            }
            const std::uint32_t t = std::rotl(a, 5) + f + e + k + w[n];
            e = d;
            d = c;
            c = std::rotl(b, 30);
            b = a;
            a = t;
        }
        state_[0] += a;
        state_[1] += b;
        state_[2] += c;
        state_[3] += d;
        state_[4] += e;
    }

    std::array<std::uint32_t, 5> state_{0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace amux::detail {

/// How many bytes of a printable character of UTF-8 begin here; 0: none. (RFC 3629)
constexpr std::size_t printable_length(std::string_view text) noexcept
{
    const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(0);
    if (first < 0x80)
        return first < 0x20 || first == 0x7F ? 0 : 1;
    const std::size_t length = first < 0xC2   ? 0
                               : first < 0xE0 ? 2
                               : first < 0xF0 ? 3
                               : first < 0xF5 ? 4
                                              : 0;
    if (length == 0 || text.size() < length)
        return 0;
    // Nothing longer than need be, no control character, no half of a UTF-16 pair, nothing beyond U+10FFFF.
    const bool needs_a0 = first == 0xC2 || first == 0xE0;
    const unsigned char least = needs_a0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const unsigned char most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (byte(1) < least || byte(1) > most)
        return 0;
    for (std::size_t i = 2; i != length; ++i) {
        if ((byte(i) & 0xC0) != 0x80)
            return 0;
    }
    // U+2028 to U+202E and U+2066 to U+2069 end lines, and change the order in which they are read.
    const bool separates = first == 0xE2 && byte(1) == 0x80 && byte(2) >= 0xA8 && byte(2) <= 0xAE;
    const bool isolates = first == 0xE2 && byte(1) == 0x81 && byte(2) >= 0xA6 && byte(2) <= 0xA9;
    return separates || isolates ? 0 : length;
}

/// The text with "\xNN" for each byte that prints nothing, and a backslash before backslashes and `quote`.
inline std::string printable(std::string_view text, char quote = '\\')
{
    constexpr std::string_view digits = "0123456789abcdef";
    std::string out;
    while (!text.empty()) {
        const std::size_t length = printable_length(text);
        const auto c = static_cast<unsigned char>(text.front());
        if (length == 0)
            ((out += "\\x") += digits[c >> 4]) += digits[c & 15];
        else if (text.front() == '\\' || text.front() == quote)
            out += '\\';
        out += text.substr(0, length);
        text.remove_prefix(length == 0 ? 1 : length);
    }
    return out;
}

/// How every message names a key: no key begins a line of a log, commands a terminal, or looks as if it ended sooner.
inline std::string in_quotes(std::string_view text, char quote = '\'')
{
    return quote + printable(text, quote) + quote;
}

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#include "json.hpp"

#include <amux/detail/in_quotes.hpp>

#include <cstddef>
#include <cstdio>

namespace amuxctl {

namespace {

/// How many bytes at the beginning of `text` are one character of UTF-8; 0: none are. (RFC 3629: no surrogates, no
/// longer form than needed, nothing above U+10FFFF.)
std::size_t character(std::string_view text)
{
    const auto byte = [&](std::size_t n) { return static_cast<unsigned char>(text[n]); };
    const unsigned char first = byte(0);
    if (first < 0x80)
        return 1;
    const std::size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || text.size() < size)
        return 0;
    for (std::size_t n = 1; n != size; ++n) {
        if ((byte(n) & 0xC0) != 0x80)
            return 0;
    }
    const unsigned char second = byte(1);
    const bool fits = !(first == 0xE0 && second < 0xA0) && !(first == 0xED && second > 0x9F) &&
                      !(first == 0xF0 && second < 0x90) && !(first == 0xF4 && second > 0x8F);
    return fits ? size : 0;
}

void append_number(std::string& out, const char* format, unsigned value)
{
    char digits[8];
    std::snprintf(digits, sizeof digits, format, value);
    out += digits;
}

} // namespace

std::string json_text(std::string_view text)
{
    std::string out = "\"";
    while (!text.empty()) {
        const std::size_t size = character(text);
        const auto c = static_cast<unsigned char>(text.front());
        if (size == 0)
            out += "\\ufffd";
        else if (c == '"' || c == '\\')
            (out += '\\') += text.front();
        else if (c < 0x20 || c == 0x7F)
            append_number(out, "\\u%04x", c);
        else
            out += text.substr(0, size);
        text.remove_prefix(size == 0 ? 1 : size);
    }
    return out + '"';
}

std::string plain_text(std::string_view text)
{
    std::string out;
    while (!text.empty()) {
        const std::size_t size = amux::detail::printable_length(text);
        if (size == 0)
            append_number(out, "\\x%02x", static_cast<unsigned char>(text.front()));
        out += text.substr(0, size);
        text.remove_prefix(size == 0 ? 1 : size);
    }
    return out;
}

} // namespace amuxctl

// SPDX-License-Identifier: BSL-1.0
// Text that others have written, made fit for a terminal and for JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace amuxctl {

/// `text` as a string of JSON, quotes included. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(std::string_view text);

/// `text` for a terminal: what is not printable, or not UTF-8, as `\xNN`. So nobody's key moves the cursor. Backslashes stay
/// alone: what the library says is like that already.
std::string plain_text(std::string_view text);

/// One object of JSON, on one line.
class json_line {
public:
    json_line& add(std::string_view name, std::string_view text)
    {
        return raw(name, json_text(text));
    }
    json_line& add(std::string_view name, std::int64_t number)
    {
        return raw(name, std::to_string(number));
    }
    json_line& null(std::string_view name) { return raw(name, "null"); }

    std::string done() const { return text_ + "}"; }

private:
    json_line& raw(std::string_view name, std::string_view value)
    {
        text_.append(text_.size() > 1 ? "," : "");
        text_.append(json_text(name)).append(":").append(value);
        return *this;
    }

    std::string text_ = "{";
};

} // namespace amuxctl

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

namespace bank {

/// One line of a file of transfers: `time,from,to,amount`.
struct transfer {
    std::int64_t time; // milliseconds since the bank opened
    std::string from;
    std::string to;
    std::int64_t amount; // cents, more than none
    std::size_t line = 0; // of the file; the first is 1
};

/// A line that is not a transfer, and why.
struct bad_line {
    std::size_t number;
    std::string reason;
};

struct transfer_file {
    std::vector<transfer> transfers;
    std::vector<bad_line> bad;
};

inline std::string_view trimmed(std::string_view text)
{
    const auto first = text.find_first_not_of(" \t\r");
    if (first == std::string_view::npos)
        return {};
    return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// A field as a message shows it: short, on one line, whatever is in it.
inline std::string quoted(std::string_view field)
{
    std::string text = "'";
    for (const char c : field.substr(0, 30))
        text += c >= ' ' && c <= '~' ? c : '?';
    return text + (field.size() > 30 ? "...'" : "'");
}

/// Reads a whole number that is not negative. Returns: what is wrong with it; nothing when it is fine.
inline std::string read_number(std::string_view name, std::string_view field, std::int64_t& out)
{
    const char* const begin = field.data();
    const char* const end = begin + field.size();
    const auto [stop, error] = std::from_chars(begin, end, out);
    const bool whole = !field.empty() && stop == end && error != std::errc::invalid_argument;
    const char* const wrong = !whole                                    ? "is not a whole number: "
                              : field.front() == '-'                    ? "is negative: "
                              : error == std::errc::result_out_of_range ? "is too large: "
                                                                        : nullptr;
    return wrong ? std::string{name} + " " + wrong + quoted(field) : std::string{};
}

/// Reads one line without its end. Spaces around a field do not count; there is no quoting.
///
/// Returns: the transfer, or the reason why it is none.
inline std::variant<transfer, std::string> parse_transfer(std::string_view line)
{
    constexpr std::size_t wanted = 4;
    std::string_view fields[wanted];
    std::size_t count = 0;
    for (std::string_view rest = line;; ++count) {
        const auto comma = rest.find(',');
        if (count < wanted)
            fields[count] = trimmed(rest.substr(0, comma));
        if (comma == std::string_view::npos)
            break;
        rest.remove_prefix(comma + 1);
    }
    ++count;
    const auto [time, from, to, amount] = fields;

    transfer t{0, std::string{from}, std::string{to}, 0, 0};
    if (line.find('"') != std::string_view::npos)
        return "quotes are not understood: " + quoted(line);
    if (count != wanted)
        return (count < wanted ? "too few fields: " : "too many fields: ") + std::to_string(count) +
               " instead of 4";
    if (std::string wrong = read_number("the time", time, t.time); !wrong.empty())
        return wrong;
    if (from.empty())
        return std::string{"the account to take from is empty"};
    if (to.empty())
        return std::string{"the account to give to is empty"};
    if (from == to)
        return "from and to are the same account: " + quoted(from);
    if (std::string wrong = read_number("the amount", amount, t.amount); !wrong.empty())
        return wrong;
    if (t.amount == 0)
        return std::string{"the amount is zero"};
    return t;
}

/// Reads all lines. The first one may be a header; empty ones do not count.
///
/// Effects: `in.bad()` afterwards when the file could not be read to its end.
inline transfer_file read_transfers(std::istream& in)
{
    transfer_file file;
    std::string text;
    for (std::size_t number = 1; std::getline(in, text); ++number) {
        std::string_view line = text;
        if (number == 1 && line.starts_with("\xEF\xBB\xBF")) // what some editors put before UTF-8
            line.remove_prefix(3);
        line = trimmed(line);
        if (line.empty() || (number == 1 && line.starts_with("time,")))
            continue;
        auto parsed = parse_transfer(line);
        if (auto* const t = std::get_if<transfer>(&parsed)) {
            t->line = number;
            file.transfers.push_back(std::move(*t));
        } else {
            file.bad.push_back({number, std::move(std::get<std::string>(parsed))});
        }
    }
    return file;
}

} // namespace bank

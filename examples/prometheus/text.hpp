// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/metric.hpp>

#include <array>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace prometheus {

inline std::string with_escapes(std::string_view text, std::string_view escaped)
{
    std::string out;
    for (const char c : text) {
        if (escaped.find(c) != std::string_view::npos)
            out += '\\';
        out += c == '\n' ? 'n' : c;
    }
    return out;
}

inline std::string number(double value)
{
    std::array<char, 32> digits{};
    return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

// [exporter]
/// Whose figures they are, and the figures.
template <class Counts>
using sources = std::vector<std::pair<std::string, Counts>>;

/// Prometheus' text format 0.0.4: each figure, and whose it is, since a name is announced only once.
template <class Counts>
std::string text_of(const std::string& label, const sources<Counts>& from)
{
    std::string out;
    for (std::size_t i = 0; i != Counts{}.metrics().size(); ++i) {
        const amux::metric m = Counts{}.metrics()[i];
        const std::string name = m.name;
        out += "# HELP " + name + ' ' + with_escapes(m.help, "\\\n") + '\n';
        out += "# TYPE " + name + ' ' + to_string(m.type) + '\n';
        for (const auto& [who, counts] : from)
            out += name + '{' + label + "=\"" + with_escapes(who, "\\\"\n") + "\"} " +
                   number(counts.metrics()[i].value) + '\n';
    }
    return out;
}
// [/exporter]

} // namespace prometheus

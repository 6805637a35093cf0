// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/lock_backend.hpp>

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace amux::detail {

/// What a lease's value in the store says: "amux1:SIZE:TOKEN:FENCE:METADATA", where SIZE is that of the token. So the
/// three can be told apart whatever bytes they consist of, and people can read them.
///
/// A value of another form was set by a stranger: the whole of it is the token, and there is no fence.
struct redis_value {
    std::string_view token;
    std::optional<fencing_token> fence;
    std::string_view metadata;

    /// What the value of a token's lease begins with.
    static std::string beginning(std::string_view token)
    {
        std::string text{mark};
        text.append(std::to_string(token.size())).append(":").append(token).append(":");
        return text;
    }

    static redis_value read(std::string_view text)
    {
        return own(text).value_or(redis_value{text, std::nullopt, {}});
    }

    /// None for a stranger's.
    static std::optional<redis_value> own(std::string_view text)
    {
        if (!text.starts_with(mark))
            return std::nullopt;
        text.remove_prefix(mark.size());
        std::size_t size = 0;
        if (!take_number(text, size) || text.size() <= size || text[size] != ':')
            return std::nullopt;
        redis_value v;
        v.token = text.substr(0, size);
        text.remove_prefix(size + 1);
        fencing_token fence = 0;
        if (!take_number(text, fence))
            return std::nullopt;
        v.fence = fence;
        v.metadata = text;
        return v;
    }

private:
    static constexpr std::string_view mark = "amux1:";

    template <class Number>
    static bool take_number(std::string_view& text, Number& n)
    {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
        if (error != std::errc{} || end == text.data() + text.size() || *end != ':')
            return false;
        text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
        return true;
    }
};

} // namespace amux::detail

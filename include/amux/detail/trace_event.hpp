// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/error.hpp>
#include <amux/lock_mode.hpp>

#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace amux::detail {

enum class trace_kind : unsigned char { wait, leave, grant, downgrade, release };

/// What a tracing observer writes down under the internal locks: no pointer in it is followed later.
struct trace_event {
    static constexpr std::size_t room = 32;
    static constexpr std::size_t kept = room - 9; // of a text that is cut: a hash follows
    static constexpr unsigned char cut = 254;
    static constexpr unsigned char unsaid = 255;

    clock::time_point at{};
    const void* request = nullptr; // of a wait, and of its end
    const void* thing = nullptr; // the key, or the set: the same while it is held or waited for
    std::uint32_t keys = 0;
    trace_kind kind{};
    lock_mode mode{};
    bool set = false; // several keys, or a list of one
    unsigned char length = 0; // of the text; or `cut` or `unsaid`
    std::array<char, room> text{};

    /// What the key is called. One that is too long is cut, and told from its like by a hash.
    void say(std::string_view name) noexcept
    {
        length = static_cast<unsigned char>(name.copy(text.data(), room));
        if (name.size() <= room)
            return;
        constexpr std::string_view digits = "0123456789abcdef";
        auto hash = std::hash<std::string_view>{}(name);
        length = cut;
        text[kept] = '~';
        for (std::size_t i = kept + 1; i != room; ++i, hash >>= 4)
            text[i] = digits[hash & 15];
    }

    /// The same by the key itself, if it has a text. Allocates nothing.
    template <class Key>
    void say_key(const Key& key) noexcept
    {
        if constexpr (std::is_convertible_v<const Key&, std::string_view>) {
            say(static_cast<std::string_view>(key));
        } else if constexpr (std::integral<Key> && sizeof(Key) > 4) {
            std::array<char, room> number{};
            const auto end = std::to_chars(number.data(), number.data() + room, key);
            say({number.data(), static_cast<std::size_t>(end.ptr - number.data())});
        } else if constexpr (std::integral<Key>) {
            say(key_text(key)); // so short that it lies in the string
        } else {
            length = unsaid;
        }
    }
};

} // namespace amux::detail

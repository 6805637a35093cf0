// SPDX-License-Identifier: BSL-1.0
#pragma once

/// \file
/// Prints guards, modes, errors and snapshots with fmt, for people. Needs fmt 9 or newer (`amux::format`).

#include <amux/asyncmux.hpp>
#include <amux/clock.hpp>
#include <amux/detail/in_quotes.hpp>
#include <amux/error.hpp>
#include <amux/lock_mode.hpp>
#include <amux/snapshot.hpp>
#include <amux/source_location.hpp>

#include <fmt/format.h>

#include <chrono>
#include <concepts>
#include <iterator>
#include <string>
#include <string_view>

namespace amux::detail {

template <class Key>
void append_key(std::string& out, const Key& key)
{
    if constexpr (fmt::is_formattable<Key>::value)
        out += in_quotes(fmt::format("{}", key));
    else
        out += "(key)";
}

inline void append_counts(std::string& out, const lock_counts& counts)
{
    if (counts.mode)
        fmt::format_to(std::back_inserter(out), "{} by {}", to_string(*counts.mode),
                       counts.holders);
    else
        out += "free";
    if (counts.granted_not_resumed != 0)
        fmt::format_to(std::back_inserter(out), " ({} granted, not resumed)",
                       counts.granted_not_resumed);
    fmt::format_to(std::back_inserter(out), ", {} waiting", counts.waiters);
}

} // namespace amux::detail

/// As text: a width and an alignment may be given, as for a string.
template <>
struct fmt::formatter<amux::lock_mode> : fmt::formatter<std::string_view> {
    template <class Context>
    auto format(amux::lock_mode mode, Context& context) const
    {
        return fmt::formatter<std::string_view>::format(amux::to_string(mode), context);
    }
};

/// What it says.
template <class Error>
    requires std::derived_from<Error, amux::lock_error>
struct fmt::formatter<Error> : fmt::formatter<std::string_view> {
    template <class Context>
    auto format(const Error& error, Context& context) const
    {
        return fmt::formatter<std::string_view>::format(error.what(), context);
    }
};

/// "exclusive lock on 'key'", "shared lock", "no lock".
template <class Body>
struct fmt::formatter<amux::detail::mux_guard<Body>> : fmt::formatter<std::string_view> {
    template <class Context>
    auto format(const amux::detail::mux_guard<Body>& guard, Context& context) const
    {
        std::string text = "no lock";
        if (guard.owns_lock()) {
            text = std::string{amux::to_string(guard.mode())} + " lock";
            if (guard.key()) {
                text += " on ";
                amux::detail::append_key(text, *guard.key());
            }
        }
        return fmt::formatter<std::string_view>::format(text, context);
    }
};

/// "'key': exclusive by 1, 2 waiting".
template <class Key>
struct fmt::formatter<amux::key_snapshot<Key>> : fmt::formatter<std::string_view> {
    template <class Context>
    auto format(const amux::key_snapshot<Key>& key, Context& context) const
    {
        std::string text;
        amux::detail::append_key(text, key.key);
        text += ": ";
        amux::detail::append_counts(text, key);
        return fmt::formatter<std::string_view>::format(text, context);
    }
};

/// "'key': exclusive by context 7 at file.cpp:12, held for 3.500 s" or "..., waiting for 0.020 s".
template <class Key>
struct fmt::formatter<amux::request_snapshot<Key>> : fmt::formatter<std::string_view> {
    template <class Context>
    auto format(const amux::request_snapshot<Key>& request, Context& context) const
    {
        const auto seconds = [](amux::clock::duration d) {
            return std::chrono::duration<double>{d}.count();
        };
        std::string text = request.whole ? "whole" : "";
        for (const Key& key : request.keys) {
            text += text.empty() ? "" : ", ";
            amux::detail::append_key(text, key);
        }
        auto out = fmt::format_to(std::back_inserter(text), ": {} by ", to_string(request.mode));
        if (request.context != 0)
            fmt::format_to(out, "context {}", request.context);
        else
            fmt::format_to(out, "an unknown context");
        text += amux::detail::place_text(request.where);
        if (request.granted)
            fmt::format_to(out, ", held for {:.3f} s", seconds(request.held));
        else
            fmt::format_to(out, ", waiting for {:.3f} s", seconds(request.waited));
        return fmt::formatter<std::string_view>::format(text, context);
    }
};

/// A line for the mux, a line for each key, and one for each request of which there is a record.
template <class Key>
struct fmt::formatter<amux::mux_snapshot<Key>> : fmt::formatter<std::string_view> {
    template <class Context>
    auto format(const amux::mux_snapshot<Key>& mux, Context& context) const
    {
        std::string text = fmt::format("mux {}{}, whole: ", amux::detail::in_quotes(mux.name),
                                       mux.closed ? ", closed" : "");
        amux::detail::append_counts(text, mux.whole);
        for (const auto& key : mux.keys)
            fmt::format_to(std::back_inserter(text), "\n  {}", key);
        for (const auto& request : mux.requests)
            fmt::format_to(std::back_inserter(text), "\n    {}", request);
        return fmt::formatter<std::string_view>::format(text, context);
    }
};

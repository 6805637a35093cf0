// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <version>

#ifdef __cpp_lib_source_location
#include <source_location>
#else
#include <cstdint>
#endif
#include <string>

namespace amux {

#ifdef __cpp_lib_source_location
/// Where something stands in a program: that of the standard library, or, before clang 15, one that answers the same.
using source_location = std::source_location;
#else
/// Where something stands in a program, for compilers before clang 15.
class source_location {
public:
    /// Nowhere: line 0.
    constexpr source_location() noexcept = default;

    /// Where it is called.
    static constexpr source_location current(const char* file = __builtin_FILE(),
                                             std::uint_least32_t line = __builtin_LINE(),
                                             const char* function = __builtin_FUNCTION()) noexcept
    {
        source_location here;
        here.file_ = file;
        here.function_ = function;
        here.line_ = line;
        return here;
    }

    /// From 1.
    constexpr std::uint_least32_t line() const noexcept { return line_; }
    /// Not known: 0.
    constexpr std::uint_least32_t column() const noexcept { return 0; }
    /// As the compiler was given it.
    constexpr const char* file_name() const noexcept { return file_; }
    /// Its name alone.
    constexpr const char* function_name() const noexcept { return function_; }

private:
    const char* file_ = "";
    const char* function_ = "";
    std::uint_least32_t line_ = 0;
};
#endif

namespace detail {

/// " at file:line", or nothing.
inline std::string place_text(const source_location& where)
{
    if (where.line() == 0)
        return {};
    return std::string{" at "} + where.file_name() + ":" + std::to_string(where.line());
}

} // namespace detail
} // namespace amux

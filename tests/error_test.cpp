// SPDX-License-Identifier: BSL-1.0
// Without this file an error may lose its place in the hierarchy, or say less than which lock it is about.
#include <amux/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

using amux::lock_mode;
using amux::detail::in_quotes;
using amux::detail::key_text;
using amux::detail::lock_message;

namespace {

template <class E>
constexpr bool is_lock_error =
    std::is_base_of_v<amux::lock_error, E> && std::is_nothrow_copy_constructible_v<E>;

struct textless {};
struct named {
    operator std::string_view() const noexcept { return "named"; }
};

} // namespace

static_assert(std::is_base_of_v<std::runtime_error, amux::lock_error>);
static_assert(is_lock_error<amux::lock_cancelled_error>);
static_assert(is_lock_error<amux::lock_closed_error>);
static_assert(is_lock_error<amux::lock_queue_full_error>);
static_assert(is_lock_error<amux::lock_released_error>);
static_assert(std::is_base_of_v<amux::lock_error, amux::reentrant_lock_error>);

TEST_CASE("error: each decision of the catcher has a type of its own", "[error]")
{
    const auto caught_as_cancelled = [](const auto& error) {
        try {
            throw error;
        } catch (const amux::lock_cancelled_error&) {
            return true;
        } catch (const amux::lock_error&) {
            return false;
        }
    };
    CHECK(caught_as_cancelled(amux::lock_cancelled_error{""}));
    CHECK_FALSE(caught_as_cancelled(amux::lock_closed_error{""}));
    CHECK_FALSE(caught_as_cancelled(amux::lock_queue_full_error{""}));
    CHECK_FALSE(caught_as_cancelled(amux::lock_released_error{""}));
}

TEST_CASE("error: a reentrant request says what is held, what was asked for, and the key",
          "[error]")
{
    const amux::reentrant_lock_error e{"text", "k", lock_mode::shared, lock_mode::exclusive};
    CHECK(std::string{e.what()} == "text");
    CHECK(e.key() == "k");
    CHECK(e.held_mode() == lock_mode::shared);
    CHECK(e.asked_mode() == lock_mode::exclusive);
}

TEST_CASE("error: a message names the mux and the key where they have names", "[error]")
{
    CHECK(lock_message("no", "", "") == "amux: no");
    CHECK(lock_message("no", "users", "") == "amux: no (mux 'users')");
    CHECK(lock_message("no", "", "42") == "amux: no (key '42')");
    CHECK(lock_message("no", "users", "42") == "amux: no (mux 'users', key '42')");
}

TEST_CASE("error: whatever a key is, a message about it is one line that names one key", "[error]")
{
    CHECK(lock_message("no", "", "a\nb") == "amux: no (key 'a\\x0ab')");
    CHECK(lock_message("no", "x\r", "a') (key 'b") ==
          "amux: no (mux 'x\\x0d', key 'a\\') (key \\'b')");
    CHECK(in_quotes("\x1B[2J\t\x7F\x1F ~") == "'\\x1b[2J\\x09\\x7f\\x1f ~'");
    CHECK(in_quotes("\\n") == "'\\\\n'");
    CHECK(in_quotes(std::string_view{"a\0b", 3}) == "'a\\x00b'");
    CHECK(in_quotes("") == "''");
    CHECK(in_quotes("say \"hi\"") == "'say \"hi\"'");
}

TEST_CASE("error: UTF-8 that can be read stays as it is in a message", "[error]")
{
    const std::string_view fine =
        GENERATE("gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x94\x92", "\xC2\xA0", "\xDF\xBF",
                 "\xE0\xA0\x80", "\xE1\x80\x80", "\xED\x9F\xBF", "\xEF\xBF\xBD", "\xF0\x90\x80\x80",
                 "\xF1\x80\x80\x80", "\xF4\x8F\xBF\xBF", "\xE2\x80\xA7", "\xE2\x80\xAF",
                 "\xE2\x81\xA5", "\xE2\x81\xAA", "\xE3\x80\xA8", "\xE3\x81\xA6", "\xE2\x82\xA8");
    CHECK(in_quotes(fine) == "'" + std::string{fine} + "'");
}

TEST_CASE("error: what is no UTF-8, or cannot be seen, is shown by its bytes in a message",
          "[error]")
{
    const std::string_view odd = GENERATE(
        "\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC2\x80", "\xC2\x9B", "\xC2\x9F", "\xC3",
        "\xC3\xC0", "\xE0\x9F\xBF", "\xE2\x82", "\xE2\x82\xC0", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF0\x90\x80", "\xF0\x90\x80\xC0", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF",
        "\xE2\x80\xA8", "\xE2\x80\xAE", "\xE2\x81\xA6", "\xE2\x81\xA9");
    std::string bytes;
    for (const char c : odd) {
        constexpr std::string_view digits = "0123456789abcdef";
        const auto byte = static_cast<unsigned char>(c);
        ((bytes += "\\x") += digits[byte / 16]) += digits[byte % 16];
    }
    CHECK(in_quotes(odd) == "'" + bytes + "'");
    CHECK(in_quotes(std::string{odd} + ".") == "'" + bytes + ".'");
}

TEST_CASE("error: a key is named when it is text or an integer", "[error]")
{
    CHECK(key_text(std::string{"text"}) == "text");
    CHECK(key_text(std::string_view{"view"}) == "view");
    CHECK(key_text(named{}) == "named");
    CHECK(key_text(-7) == "-7");
    CHECK(key_text(7ULL) == "7");
    CHECK(key_text('c') == "c");
    CHECK(key_text(true) == "true");
    CHECK(key_text(false) == "false");
    CHECK(key_text(textless{}).empty());
    CHECK(key_text(1.5).empty());
}

TEST_CASE("error: modes have names", "[error]")
{
    CHECK(std::string{to_string(lock_mode::shared)} == "shared");
    CHECK(std::string{to_string(lock_mode::exclusive)} == "exclusive");
}

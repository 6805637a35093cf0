// SPDX-License-Identifier: BSL-1.0
// Without this file an error may lose its place in the hierarchy, or say less than which lock it is about.
#include <amux/error.hpp>

#include <catch2/catch_test_macros.hpp>

#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

using amux::lock_mode;
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

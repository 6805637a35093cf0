// SPDX-License-Identifier: BSL-1.0
// Without this file a log line about a lock could say something else than the lock is, or no longer compile.
#include "support/request.hpp"

#include <amux/asyncmux.hpp>
#include <amux/error.hpp>
#include <amux/format.hpp>
#include <amux/lock_mode.hpp>
#include <amux/manual_event_loop.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <compare>
#include <cstddef>
#include <functional>
#include <string>

using amux::asyncmux;
using support::request;

namespace {

/// A key that nobody can print.
struct opaque {
    int id;
    auto operator<=>(const opaque&) const = default;
};
struct opaque_hash {
    std::size_t operator()(const opaque& k) const noexcept { return std::hash<int>{}(k.id); }
};

} // namespace

TEST_CASE("format: a guard says what it holds and how", "[format]")
{
    asyncmux<> mux;
    asyncmux<>::guard g;
    CHECK(fmt::format("{}", g) == "no lock");
    g = mux.try_lock("a");
    CHECK(fmt::format("{}", g) == "exclusive lock on 'a'");
    g.downgrade();
    CHECK(fmt::format("{}", g) == "shared lock on 'a'");
    g = mux.try_lock_all("a", "b");
    CHECK(fmt::format("{}", g) == "no lock"); // "a" is held by the one that it replaces
    g = mux.try_lock_all("a", "b");
    CHECK(fmt::format("{}", g) == "exclusive lock");
    g.unlock();
    g = mux.try_lock_shared();
    CHECK(fmt::format("[{:>12}]", g) == "[ shared lock]");

    asyncmux<opaque, amux::multi_threaded, opaque_hash> others;
    const auto other = others.try_lock(opaque{1});
    CHECK(fmt::format("{}", other) == "exclusive lock on (key)");
}

TEST_CASE("format: modes and errors read as they do elsewhere", "[format]")
{
    CHECK(fmt::format("{}", amux::lock_mode::shared) == "shared");
    CHECK(fmt::format("[{:<10}]", amux::lock_mode::exclusive) == "[exclusive ]");
    const amux::lock_closed_error closed{"amux: the mux is closed (mux 'accounts')"};
    CHECK(fmt::format("{}", closed) == closed.what());
    const amux::backend_error down{amux::backend_error_kind::permanent, "no such database"};
    CHECK(fmt::format("{}", down) == "no such database");
}

TEST_CASE("format: a snapshot is a line for the mux and one for each key", "[format]")
{
    amux::manual_event_loop loop;
    asyncmux<int> mux{{.name = "tiles"}};
    CHECK(fmt::format("{}", mux.snapshot()) == "mux 'tiles', whole: free, 0 waiting");

    request reader{mux.lock_shared(7)};
    request also{mux.lock_shared(7)};
    request writer{mux.lock(7), {.where = &loop}};
    CHECK(fmt::format("{}", mux.snapshot()) ==
          "mux 'tiles', whole: free, 0 waiting\n  '7': shared by 2, 1 waiting");
    reader.unlock();
    also.unlock(); // the writer is granted, and its loop has not run yet
    CHECK(fmt::format("{}", mux.snapshot().keys.at(0)) ==
          "'7': exclusive by 1 (1 granted, not resumed), 0 waiting");
    loop.run_ready();
    writer.unlock();
    const auto whole = mux.try_lock();
    mux.close();
    CHECK(fmt::format("{}", mux.snapshot()) ==
          "mux 'tiles', closed, whole: exclusive by 1, 0 waiting");
}

TEST_CASE("format: no key makes a snapshot say what is not so", "[format]")
{
    asyncmux<> mux;
    const auto held = mux.try_lock("a': free\n  'b\x1B[2J");
    CHECK(fmt::format("{}", mux.snapshot()) ==
          "mux '', whole: free, 0 waiting\n"
          "  'a\\': free\\x0a  \\'b\\x1b[2J': exclusive by 1, 0 waiting");
    CHECK(fmt::format("{}", held) == "exclusive lock on 'a\\': free\\x0a  \\'b\\x1b[2J'");
}

TEST_CASE("format: a snapshot has a line for each request that is recorded", "[format][records]")
{
    amux::manual_event_loop loop;
    asyncmux<> mux{{.record_requests = true, .time = &loop}};
    const amux::context who;
    request held{mux.lock("k"), {&loop, &who}};
    request waits{mux.lock()};
    request several{mux.lock_all("k", "l")};
    loop.advance(std::chrono::milliseconds{1500});
    const std::string text = fmt::format("{}", mux.snapshot());
    CHECK(text.find("\n    'k': exclusive by context " + std::to_string(who.id()) + " at ") !=
          std::string::npos);
    CHECK(text.find(", held for 1.500 s\n    whole: exclusive by an unknown context at ") !=
          std::string::npos);
    CHECK(text.find(", waiting for 1.500 s\n    'k', 'l': exclusive by ") != std::string::npos);
    CHECK(text.ends_with(", waiting for 1.500 s"));
    several.destroy();
    waits.destroy();
}

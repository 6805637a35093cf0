// SPDX-License-Identifier: BSL-1.0
// Without this file a request could wait for ever for a client that has gone, or be taken from one that has not.
#include <amux/connection_watch.hpp>

#include "support/signals.hpp"

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNDER_SANITIZERS
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNDER_SANITIZERS
#endif
#endif

using namespace std::chrono_literals;
using amux::connection_watch;

namespace {

struct connection {
    connection() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0); }
    connection(const connection&) = delete;
    connection& operator=(const connection&) = delete;
    ~connection()
    {
        hang_up();
        ::close(ends[1]);
    }
    void hang_up()
    {
        if (ends[0] >= 0)
            ::close(std::exchange(ends[0], -1));
    }
    void send(char c) { REQUIRE(::write(ends[0], &c, 1) == 1); }
    int here() const { return ends[1]; }

    std::array<int, 2> ends{};
};

bool soon(const std::stop_token& told)
{
    for (int n = 0; n != 10'000 && !told.stop_requested(); ++n)
        std::this_thread::sleep_for(2ms);
    return told.stop_requested();
}

/// Whether `f()` in a forked child, within 30 s.
template <class F>
bool in_child(F f)
{
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(30);
        ::_exit(f() ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

} // namespace

TEST_CASE("connection_watch: whoever hangs up is noticed, whoever does not is left alone", "[web]")
{
    connection_watch watch;
    connection gone;
    connection stays;
    const auto first = watch.watch(gone.here());
    const auto second = watch.watch(stays.here());
    gone.send('x'); // what is not read does not hide it
    stays.send('x');
    gone.hang_up();
    CHECK(soon(first.token()));
    CHECK_FALSE(second.token().stop_requested());
    stays.hang_up();
    CHECK(soon(second.token()));
}

TEST_CASE("connection_watch: one that has only ended its sending counts as gone", "[web]")
{
    connection_watch watch;
    connection c;
    const auto watched = watch.watch(c.here());
    REQUIRE(::shutdown(c.ends[0], SHUT_WR) == 0);
    CHECK(soon(watched.token()));
}

TEST_CASE("connection_watch: a watch ends, and the number of its socket may be used again", "[web]")
{
    connection_watch watch;
    std::stop_token first;
    connection a;
    {
        const auto watched = watch.watch(a.here());
        first = watched.token();
    }
    const auto again = watch.watch(a.here());
    a.hang_up();
    CHECK(soon(again.token()));
    CHECK_FALSE(first.stop_requested());
}

TEST_CASE("connection_watch: one that ends late leaves the next socket of its number alone",
          "[web]")
{
    connection_watch watch;
    connection next;
    std::optional<connection> closed{std::in_place};
    std::optional<connection_watch::watched> late{watch.watch(closed->here())};
    const int number = closed->here();
    REQUIRE(::dup2(next.here(), number) == number); // closes the first
    const auto watched = watch.watch(number);
    CHECK(watched.token().stop_possible());
    late.reset();
    next.hang_up();
    CHECK(soon(watched.token()));
}

TEST_CASE("connection_watch: what cannot be watched never stops", "[web]")
{
    connection_watch watch;
    const auto none = watch.watch(-1);
    const auto no_socket = watch.watch(1'000'000); // no such descriptor
    std::optional<connection> closed{std::in_place};
    const int number = closed->here();
    const auto watched = watch.watch(number);
    closed.reset();
    const auto late = watch.watch(number); // nor is this one now
    CHECK_FALSE(none.token().stop_possible());
    CHECK_FALSE(no_socket.token().stop_possible());
    CHECK_FALSE(late.token().stop_possible());
}

TEST_CASE("connection_watch: several may watch one connection, each for as long as it likes",
          "[web]")
{
    connection_watch watch;
    connection c;
    const auto stays = watch.watch(c.here());
    std::optional<connection_watch::watched> ends{watch.watch(c.here())};
    const auto told = ends->token();
    ends.reset();
    CHECK_FALSE(told.stop_requested());
    const auto later = watch.watch(c.here());
    REQUIRE(later.token() == stays.token()); // all are told at once
    c.hang_up();
    CHECK(soon(stays.token()));
    CHECK(soon(later.token()));
    CHECK(watch.watch(c.here()).token().stop_requested()); // who comes after it is told at once
}

TEST_CASE("connection_watch: its thread takes no signals, the one that made it all as before",
          "[web]")
{
    connection_watch watch;
    connection c;
    const auto watched = watch.watch(c.here());
    std::atomic<int> takes_none = -1;
    const auto ask = [&] { takes_none = support::takes_no_signals(); };
    const std::stop_callback told{watched.token(), ask};
    c.hang_up();
    for (int n = 0; n != 10'000 && takes_none < 0; ++n)
        std::this_thread::sleep_for(2ms);
    CHECK(takes_none == 1);
    CHECK_FALSE(support::takes_no_signals());
}

TEST_CASE("connection_watch: the program has one, as long as somebody uses it", "[web]")
{
    const auto one = connection_watch::shared();
    CHECK(connection_watch::shared() == one);
}

TEST_CASE("connection_watch: a forked child leaves the watch of its parent alone", "[web]")
{
    std::optional<connection_watch> watch{std::in_place};
    connection c;
    std::optional<connection_watch::watched> watched{watch->watch(c.here())};
    CHECK(in_child([&] {
        const connection own;
        const bool watches = watch->watch(own.here()).token().stop_possible();
        watched.reset();
        watch.reset(); // its thread is not here
        return !watches;
    }));
    c.hang_up();
    CHECK(soon(watched->token()));
}

#if !defined(UNDER_SANITIZERS) // TSan takes no thread of a child
TEST_CASE("connection_watch: a forked child has one of its own", "[web]")
{
    const auto parents = connection_watch::shared();
    CHECK(in_child([&] {
        connection c;
        const auto own = connection_watch::shared();
        const auto watched = own->watch(c.here());
        c.hang_up();
        return own != parents && soon(watched.token());
    }));
}
#endif

// UBSan needs descriptors of its own to look at what is thrown.
#if !defined(UNDER_SANITIZERS)
TEST_CASE("connection_watch: without a descriptor to be had it says so", "[web]")
{
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    const int next = ::fcntl(0, F_DUPFD, 0); // the lowest number that is free
    REQUIRE(next > 0);
    ::close(next);
    rlimit none = before;
    none.rlim_cur = static_cast<rlim_t>(next);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    bool threw = false;
    try {
        const connection_watch watch;
    } catch (const std::system_error&) {
        threw = true;
    }
    ::setrlimit(RLIMIT_NOFILE, &before);
    CHECK(threw);
}
#endif

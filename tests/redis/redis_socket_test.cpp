// SPDX-License-Identifier: BSL-1.0
// Without this file a server that goes while it is written to could end the process.
#include "redis/support/loopback.hpp"

#include <amux/detail/redis_address.hpp>
#include <amux/detail/redis_socket.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <thread>

#include <sys/socket.h>

using amux::detail::redis_address;
using amux::detail::redis_socket;

TEST_CASE("redis_socket: writing to a server that has gone is an error, not a signal", "[redis]")
{
    const bool by_reset = GENERATE(false, true);
    support::reserved_port port;
    const support::descriptor listener = support::listen_on_loopback(port);
    const sockaddr_in address = support::loopback_address(port.number());
    redis_socket s;
    REQUIRE(s.connect(redis_address{reinterpret_cast<const sockaddr*>(&address), sizeof address}) ==
            0);
    support::descriptor server;
    while (!server)
        server = support::accept_from(listener);
    if (by_reset)
        support::reset(server);
    else
        server.close();
    int error = 0;
    for (int n = 0; n < 1'000 && error == 0; ++n) {
        error = s.write("PING\r\n").error;
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    CHECK(error != 0);
    CHECK(s.write("PING\r\n").error == EPIPE);
}

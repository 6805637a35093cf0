// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/redis_backend.hpp>
#include <amux/testing/environment.hpp>

#include <redis/support/redis_server.hpp>

#include <chrono>
#include <string_view>
#include <utility>

namespace support {

inline const amux::testing::environment real_time = amux::testing::in_real_time("");

/// Awaits what `make()` gives, on a loop of its own.
template <class F>
auto run(F make)
{
    return amux::testing::run_in(real_time, std::move(make));
}

/// For `server`, with a limit that a busy machine does not reach.
inline amux::redis_options at(const redis_server& server,
                              std::chrono::milliseconds limit = std::chrono::seconds{10})
{
    return {.port = server.port(), .command_timeout = limit};
}

inline bool contains(std::string_view text, std::string_view part)
{
    return text.find(part) != text.npos;
}

} // namespace support

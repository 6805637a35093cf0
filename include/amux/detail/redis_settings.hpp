// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/redis_options.hpp>

#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>

namespace amux::detail {

/// `redis_options` that own their text, and are checked.
struct redis_settings {
    explicit redis_settings(const redis_options& o)
        : host{o.host},
          port{o.port},
          path{o.path},
          username{o.username},
          password{o.password},
          database{o.database},
          tls{o.tls.enabled},
          ca_file{o.tls.ca_file},
          certificate_file{o.tls.certificate_file},
          key_file{o.tls.key_file},
          server_name{o.tls.server_name.empty() ? o.host : o.tls.server_name},
          connect_timeout{o.connect_timeout},
          command_timeout{o.command_timeout},
          client_name{o.client_name},
          lock_prefix{"{" + std::string{o.key_prefix} + "}:lock:"},
          channel_prefix{"{" + std::string{o.key_prefix} + "}:free:"},
          fence_key{"{" + std::string{o.key_prefix} + "}:fence"}
    {
        check(o);
    }

    std::string host;
    int port;
    std::string path;
    std::string username;
    std::string password;
    int database;
    bool tls;
    std::string ca_file;
    std::string certificate_file;
    std::string key_file;
    std::string server_name;
    std::chrono::milliseconds connect_timeout;
    std::chrono::milliseconds command_timeout;
    std::string client_name;

    // The names in the store. What stands in braces decides on the slot of a cluster: all share one.
    std::string lock_prefix; // of a key
    std::string channel_prefix; // of the channel that tells of its release
    std::string fence_key; // the counter

    /// The server, for messages.
    std::string where() const
    {
        if (!path.empty())
            return path;
        const bool v6 = host.find(':') != std::string::npos;
        return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
    }

private:
    static void require(bool holds, const char* otherwise)
    {
        if (!holds)
            throw std::invalid_argument{std::string{"amux: Redis: "} + otherwise};
    }

    static bool has_zero(std::string_view text)
    {
        return text.find('\0') != std::string_view::npos;
    }

    // No message repeats a value: a password that was put in the wrong place would be printed.
    static void check(const redis_options& o)
    {
        using std::chrono::milliseconds;
        constexpr milliseconds longest = std::chrono::hours{24};
        require(!o.path.empty() || (!o.host.empty() && !has_zero(o.host)),
                "the host is not a name");
        require(!o.path.empty() || (o.port >= 1 && o.port <= 65'535),
                "the port is not a number from 1 to 65535");
        require(o.path.size() <= 100 && !has_zero(o.path),
                "the path is not one of a Unix socket (at most 100 characters)");
        require(o.username.empty() || !o.password.empty(),
                "the user name comes without a password");
        require(o.database >= 0, "the database is not a number from 0");
        require(!o.key_prefix.empty() && !has_zero(o.key_prefix) &&
                    o.key_prefix.find_first_of("{}") == std::string_view::npos,
                "the key prefix is empty, or has a brace or a zero in it");
        require(o.connect_timeout > milliseconds{} && o.connect_timeout <= longest,
                "the connect time-out is not from 1 ms to 24 hours");
        require(o.command_timeout > milliseconds{} && o.command_timeout <= longest,
                "the command time-out is not from 1 ms to 24 hours");
        for (const char c : o.client_name)
            require(c > ' ' && c <= '~',
                    "the client name has a character that Redis does not take");
        require(o.tls.enabled || (o.tls.ca_file.empty() && o.tls.certificate_file.empty() &&
                                  o.tls.key_file.empty() && o.tls.server_name.empty()),
                "TLS has settings, but is not enabled");
        require(!o.tls.enabled || o.path.empty(), "TLS goes over TCP only, not over a Unix socket");
        require(o.tls.certificate_file.empty() == o.tls.key_file.empty(),
                "a TLS certificate needs its key, and the key its certificate");
#ifndef AMUX_REDIS_TLS
        require(!o.tls.enabled, "TLS needs the CMake component amux::redis_tls");
#endif
    }
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <chrono>
#include <string_view>

namespace amux {

/// Whether and how a connection to Redis is encrypted. Needs the CMake component `amux::redis_tls`.
///
/// The server's certificate is always checked, and the name in it too.
struct redis_tls_options {
    /// Off by default.
    bool enabled = false;
    /// Whom to trust, a PEM file; empty: whom the system trusts.
    std::string_view ca_file{};
    /// Our own certificate, a PEM file, for a server that wants one.
    std::string_view certificate_file{};
    /// The key of our certificate, a PEM file.
    std::string_view key_file{};
    /// The name in the server's certificate; empty: the host.
    std::string_view server_name{};
};

/// Where a Redis server is, and how to talk to it. Text is referred to until a `redis_backend` has copied it.
struct redis_options {
    /// A name, or an address of IPv4 or IPv6.
    std::string_view host = "127.0.0.1";
    /// From 1 to 65535.
    int port = 6379;
    /// Of a Unix socket; then host and port do not matter.
    std::string_view path{};
    /// Of an ACL user; empty: the default one.
    std::string_view username{};
    /// Empty: none. It stands in no message.
    std::string_view password{};
    /// The number of the database.
    int database = 0;
    /// Whether the connections are encrypted.
    redis_tls_options tls{};
    /// Begins the name of everything that is kept in the server: backends with the same prefix share their leases.
    std::string_view key_prefix = "amux";
    /// For one attempt to connect, to one address, and to be greeted.
    std::chrono::milliseconds connect_timeout{1'000};
    /// For one operation, the wait for a connection included. Well below the ttl of the leases.
    std::chrono::milliseconds command_timeout{2'000};
    /// For CLIENT LIST; empty: none.
    std::string_view client_name = "amux";
};

} // namespace amux

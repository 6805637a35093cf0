// SPDX-License-Identifier: BSL-1.0
// Without this file an encrypted connection could be one to anybody, or none.
#include <amux/redis_backend.hpp>

#include <redis/support/asked_here.hpp>
#include <redis/support/every_operation.hpp>
#include <redis/support/loopback.hpp>
#include <redis/support/redis_server.hpp>

#include <amux/testing/environment.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

using namespace std::chrono_literals;

#ifndef AMUX_REDIS_TLS

TEST_CASE("redis TLS: without the component it is refused, and the component named", "[redis]")
{
    try {
        const amux::redis_backend b{"rediss://127.0.0.1"};
        FAIL("taken");
    } catch (const std::invalid_argument& e) {
        CHECK(std::string_view{e.what()}.find("amux::redis_tls") != std::string_view::npos);
    }
}

#else

using support::contains;

namespace {

/// Certificates of an authority that nobody knows, for "localhost" and 127.0.0.1.
struct certificates {
    support::temporary_folder folder;
    std::string path(const char* name) const { return (folder.path() / name).string(); }

    certificates()
    {
        const std::string command =
            "cd '" + folder.path().string() +
            "' && exec 2>log >&2 </dev/null && "
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
            "-subj /CN=authority -keyout ca.key -out ca.crt && "
            "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=server "
            "-keyout server.key -out server.csr && "
            "printf 'subjectAltName=DNS:localhost,IP:127.0.0.1' >names && "
            "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 "
            "-extfile names -out server.crt";
        if (std::system(command.c_str()) != 0) // NOLINT(cert-env33-c, concurrency-mt-unsafe)
            throw std::runtime_error("openssl makes no certificates");
    }
};

/// A server that speaks TLS on `port`, and wants a certificate from its clients, too.
struct tls_server {
    certificates files;
    support::reserved_port port;
    std::unique_ptr<support::redis_server> server;

    tls_server()
    {
        support::listen_on_loopback(port); // is free, and closed again
        server = std::make_unique<support::redis_server>(std::vector<std::string>{
            "--tls-port", std::to_string(port.number()), "--tls-cert-file",
            files.path("server.crt"), "--tls-key-file", files.path("server.key"),
            "--tls-ca-cert-file", files.path("ca.crt")});
    }

    amux::redis_options options(const std::string& ca, const std::string& certificate,
                                const std::string& key, std::chrono::milliseconds limit = 20s) const
    {
        return {.port = port.number(),
                .tls = {.enabled = true,
                        .ca_file = ca,
                        .certificate_file = certificate,
                        .key_file = key},
                .connect_timeout = 20s,
                .command_timeout = limit};
    }
};

std::string trouble_of(amux::redis_backend& b, amux::backend_error_kind& kind)
{
    try {
        amux::testing::run_in(amux::testing::in_real_time(""), [&b] { return b.get("k"); });
    } catch (const amux::backend_error& e) {
        kind = e.kind();
        return e.what();
    }
    return "none";
}

} // namespace

TEST_CASE("redis TLS: every operation goes over it, and texts of any length", "[redis][tls]")
{
    const tls_server s;
    const std::string ca = s.files.path("ca.crt");
    const std::string certificate = s.files.path("server.crt");
    const std::string key = s.files.path("server.key");
    amux::redis_backend backend{s.options(ca, certificate, key)};
    support::check_every_operation(backend, std::string(100'000, 'x')); // more than a record holds
}

TEST_CASE("redis TLS: a server that nobody known vouches for is refused, for good", "[redis][tls]")
{
    const tls_server s;
    const std::string certificate = s.files.path("server.crt");
    const std::string key = s.files.path("server.key");
    amux::redis_backend backend{s.options("", certificate, key)};
    auto kind = amux::backend_error_kind::not_applied;
    const std::string text = trouble_of(backend, kind);
    CHECK(contains(text, "certificate"));
    CHECK(contains(text, "127.0.0.1:" + std::to_string(s.port.number())));
    CHECK(kind == amux::backend_error_kind::permanent);
}

TEST_CASE("redis TLS: the name in the certificate counts", "[redis][tls]")
{
    const tls_server s;
    const std::string ca = s.files.path("ca.crt");
    const std::string certificate = s.files.path("server.crt");
    const std::string key = s.files.path("server.key");
    auto options = s.options(ca, certificate, key);
    auto kind = amux::backend_error_kind::not_applied;
    for (const char* name : {"another.example", "127.0.0.2"}) {
        options.tls.server_name = name;
        amux::redis_backend stranger{options};
        CHECK(contains(trouble_of(stranger, kind), "mismatch"));
        CHECK(kind == amux::backend_error_kind::permanent);
    }
    options.tls.server_name = "localhost";
    amux::redis_backend right{options};
    CHECK(trouble_of(right, kind) == "none");
}

TEST_CASE("redis TLS: a server that wants a certificate, and one without TLS, are trouble",
          "[redis][tls]")
{
    const tls_server s;
    const std::string ca = s.files.path("ca.crt");
    auto kind = amux::backend_error_kind::not_applied;
    const std::string where = "127.0.0.1:" + std::to_string(s.port.number());
    amux::redis_backend without{s.options(ca, "", "", 500ms)};
    CHECK(contains(trouble_of(without, kind), where));
    auto plain = s.options(ca, "", "", 500ms);
    plain.port = s.server->port();
    amux::redis_backend to_plain{plain};
    CHECK(contains(trouble_of(to_plain, kind), "127.0.0.1:" + std::to_string(plain.port)));
    auto no_tls = s.options(ca, "", "", 500ms);
    no_tls.tls = {};
    amux::redis_backend from_plain{no_tls};
    CHECK(contains(trouble_of(from_plain, kind), where));
}

TEST_CASE("redis TLS: files that cannot be read are refused at once", "[redis][tls]")
{
    const certificates files;
    const std::string ca = files.path("ca.crt");
    const std::string key = files.path("server.key");
    const std::string missing = files.path("none");
    const auto refused = [](const amux::redis_tls_options& tls, const char* part) {
        try {
            const amux::redis_backend b{amux::redis_options{.tls = tls}};
        } catch (const std::invalid_argument& e) {
            return contains(e.what(), part);
        }
        return false;
    };
    CHECK(refused({.enabled = true, .ca_file = missing}, "CA file"));
    CHECK(refused({.enabled = true, .certificate_file = missing, .key_file = key},
                  "certificate file"));
    CHECK(refused({.enabled = true, .certificate_file = ca, .key_file = missing}, "key file"));
    CHECK(refused({.enabled = true, .certificate_file = ca, .key_file = key}, "key file"));
}

#endif

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/redis_settings.hpp>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#ifdef AMUX_REDIS_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#endif

namespace amux::detail {

#ifdef AMUX_REDIS_TLS

inline std::string tls_error_text()
{
    const unsigned long error = ERR_get_error();
    const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
    ERR_clear_error();
    return reason ? reason : "unknown error";
}

/// What the TLS of all connections of a backend has in common: whom they trust, and who we are.
class redis_tls_context {
public:
    /// Reads the files. Throws: `std::invalid_argument` when one cannot be used.
    explicit redis_tls_context(const redis_settings& s)
    {
        if (!s.tls)
            return;
        ERR_clear_error();
        context_.reset(SSL_CTX_new(TLS_client_method()));
        require(context_ != nullptr, "");
        SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION);
        SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
        if (s.ca_file.empty())
            require(SSL_CTX_set_default_verify_paths(context_.get()) == 1, "the system's CA files");
        else
            require(SSL_CTX_load_verify_locations(context_.get(), s.ca_file.c_str(), nullptr) == 1,
                    "the CA file");
        if (s.certificate_file.empty())
            return;
        require(SSL_CTX_use_certificate_chain_file(context_.get(), s.certificate_file.c_str()) == 1,
                "the certificate file");
        require(
            SSL_CTX_use_PrivateKey_file(context_.get(), s.key_file.c_str(), SSL_FILETYPE_PEM) == 1,
            "the key file");
    }
    SSL_CTX* get() const noexcept { return context_.get(); }

private:
    struct free_context {
        void operator()(SSL_CTX* c) const noexcept { SSL_CTX_free(c); }
    };
    static void require(bool holds, const char* what)
    {
        if (!holds)
            throw std::invalid_argument{std::string{"amux: Redis: TLS cannot use "} + what + ": " +
                                        tls_error_text()};
    }

    std::unique_ptr<SSL_CTX, free_context> context_;
};

/// The TLS of one connection: turns what is to be sent into what goes over the wire, and back. It does no I/O.
class redis_tls {
public:
    /// Whether there is any.
    bool active() const noexcept { return session_ != nullptr; }

    /// Returns: trouble; empty: none.
    std::string begin(const redis_tls_context& context, const redis_settings& s)
    {
        session_.reset(SSL_new(context.get()));
        if (!session_)
            return tls_error_text();
        in_ = BIO_new(BIO_s_mem());
        out_ = BIO_new(BIO_s_mem());
        SSL_set_bio(session_.get(), in_, out_); // owns them
        const char* const name = s.server_name.c_str();
        if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session_.get()), name) != 1) {
            ERR_clear_error();
            SSL_set_tlsext_host_name(session_.get(), name);
            SSL_set1_host(session_.get(), name);
        }
        SSL_set_connect_state(session_.get());
        return {};
    }

    /// Moves from `plain` to `wire` what can go: nothing before the two sides have agreed.
    std::string encrypt(std::string& plain, std::string& wire)
    {
        ERR_clear_error(); // what others have left there on this thread would be taken for ours
        if (const int done = SSL_do_handshake(session_.get()); done != 1) {
            if (SSL_get_error(session_.get(), done) != SSL_ERROR_WANT_READ)
                return trouble();
        } else if (!plain.empty()) {
            std::size_t written = 0;
            if (SSL_write_ex(session_.get(), plain.data(), plain.size(), &written) != 1)
                return trouble();
            plain.clear(); // all of it: what SSL writes to has no end
        }
        char bytes[4096];
        for (int n = 0; (n = BIO_read(out_, bytes, sizeof bytes)) > 0;)
            wire.append(bytes, static_cast<std::size_t>(n));
        return {};
    }

    /// Appends to `plain` what has come over the wire. After it there may be something to send, also with nothing to say.
    std::string decrypt(std::string_view wire, std::string& plain)
    {
        ERR_clear_error();
        BIO_write(in_, wire.data(), static_cast<int>(wire.size()));
        char bytes[16 * 1024];
        for (;;) {
            std::size_t count = 0;
            if (SSL_read_ex(session_.get(), bytes, sizeof bytes, &count) != 1)
                break;
            plain.append(bytes, count);
        }
        const int error = SSL_get_error(session_.get(), 0);
        return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_ZERO_RETURN ? "" : trouble();
    }

private:
    struct free_session {
        void operator()(SSL* s) const noexcept { SSL_free(s); }
    };

    std::string trouble() const
    {
        const long verdict = SSL_get_verify_result(session_.get());
        const std::string reason = tls_error_text();
        return "TLS: " + reason +
               (verdict == X509_V_OK
                    ? std::string{}
                    : std::string{" ("} + X509_verify_cert_error_string(verdict) + ")");
    }

    std::unique_ptr<SSL, free_session> session_;
    BIO* in_ = nullptr;
    BIO* out_ = nullptr;
};

#else

// Built without: the settings allow no TLS.

struct redis_tls_context {
    explicit redis_tls_context(const redis_settings&) noexcept {}
};

struct redis_tls {
    bool active() const noexcept { return false; }
    std::string begin(const redis_tls_context&, const redis_settings&) const { return "no TLS"; }
    std::string encrypt(std::string&, std::string&) const { return "no TLS"; }
    std::string decrypt(std::string_view, std::string&) const { return "no TLS"; }
};

#endif

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/redis_settings.hpp>
#include <amux/redis_options.hpp>

#include <charconv>
#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace amux::detail {

/// Reads a URL of a Redis server: `redis://user:password@host:port/database?prefix=app`, `rediss://` with TLS,
/// `unix:///path?database=1`. Its texts may be percent-encoded; an IPv6 address stands in brackets.
///
/// Throws: `std::invalid_argument`, which names the part that is wrong. It repeats none: a password whose slash is not
/// encoded looks like another part.
class redis_url {
public:
    static redis_settings read(std::string_view url)
    {
        redis_url u;
        u.read_all(url);
        return redis_settings{u.options_};
    }

private:
    [[noreturn]] static void fail(const char* what)
    {
        throw std::invalid_argument{std::string{"amux: Redis URL: "} + what};
    }

    /// Cuts off what stands in front of the first `c`, with it; all of `text` when there is none.
    static std::string_view cut(std::string_view& text, char c)
    {
        const auto at = text.find(c);
        const auto head = text.substr(0, at);
        text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
        return head;
    }

    static int digit(char c)
    {
        if (c >= '0' && c <= '9')
            return c - '0';
        const char lower = static_cast<char>(c | 0x20);
        return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
    }

    static std::string decoded(std::string_view text, const char* otherwise)
    {
        std::string out;
        for (std::size_t n = 0; n < text.size(); ++n) {
            if (text[n] != '%') {
                out += text[n];
                continue;
            }
            if (n + 2 >= text.size() || digit(text[n + 1]) < 0 || digit(text[n + 2]) < 0)
                fail(otherwise);
            out += static_cast<char>(digit(text[n + 1]) * 16 + digit(text[n + 2]));
            n += 2;
        }
        return out;
    }

    template <class Number>
    static Number number(std::string_view text, const char* otherwise)
    {
        Number n{};
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
        if (error != std::errc{} || end != text.data() + text.size() || n < 0)
            fail(otherwise);
        return n;
    }

    void read_all(std::string_view url)
    {
        const auto colon = url.find("://");
        const auto scheme = url.substr(0, colon);
        if (colon == std::string_view::npos ||
            (scheme != "redis" && scheme != "rediss" && scheme != "unix"))
            fail("the scheme is not redis, rediss or unix");
        url.remove_prefix(colon + 3);
        if (url.find('#') != std::string_view::npos)
            fail("it has a fragment; a '#' in a text is written %23");
        options_.tls.enabled = scheme == "rediss";
        const auto front = cut(url, '?');
        read_server(front, scheme == "unix");
        while (!url.empty())
            read_parameter(cut(url, '&'));
        options_.host = host_;
        options_.path = path_;
        options_.username = username_;
        options_.password = password_;
        options_.key_prefix = prefix_;
        options_.client_name = client_name_;
        options_.tls.ca_file = ca_file_;
        options_.tls.certificate_file = certificate_file_;
        options_.tls.key_file = key_file_;
    }

    /// What stands between the scheme and the query.
    void read_server(std::string_view text, bool is_unix)
    {
        const auto slash = text.find('/');
        std::string_view authority = text.substr(0, slash);
        std::string_view rest =
            slash == std::string_view::npos ? std::string_view{} : text.substr(slash);
        if (const auto at = authority.rfind('@'); at != std::string_view::npos) {
            std::string_view user = authority.substr(0, at);
            username_ = decoded(cut(user, ':'), "the user name is not percent-encoded");
            password_ = decoded(user, "the password is not percent-encoded");
            authority.remove_prefix(at + 1);
        }
        if (rest.find('@') != std::string_view::npos && !is_unix)
            fail("there is an '@' behind the host; in a user name or password '/' is written %2F");
        if (is_unix) {
            if (!authority.empty() || rest.size() < 2)
                fail("the path of a Unix socket begins with a slash: unix:///path");
            path_ = decoded(rest, "the path is not percent-encoded");
            return;
        }
        read_host(authority);
        if (rest.size() > 1)
            read_database(rest.substr(1));
    }

    void read_host(std::string_view text)
    {
        if (text.starts_with('[')) {
            const auto close = text.find(']');
            if (close == std::string_view::npos)
                fail("the host has no closing bracket");
            host_ = text.substr(1, close - 1);
            text.remove_prefix(close + 1);
            if (!text.empty() && !text.starts_with(':'))
                fail("the host is followed by something that is not a port");
        } else {
            const auto colon = text.find(':');
            host_ = decoded(text.substr(0, colon), "the host is not percent-encoded");
            text.remove_prefix(colon == std::string_view::npos ? text.size() : colon);
        }
        if (host_.empty())
            fail("the host is missing");
        if (text.starts_with(':'))
            options_.port = number<int>(text.substr(1), "the port is not a number from 1 to 65535");
    }

    void read_database(std::string_view text)
    {
        options_.database = number<int>(text, "the database is not a number from 0");
    }

    static std::chrono::milliseconds time_of(std::string_view text)
    {
        return std::chrono::milliseconds{
            number<long>(text, "a time-out is not a number of milliseconds")};
    }

    void read_parameter(std::string_view text)
    {
        const auto name = cut(text, '=');
        const std::string value = decoded(text, "a parameter is not percent-encoded");
        if (name == "prefix")
            prefix_ = value;
        else if (name == "database" || name == "db")
            read_database(value);
        else if (name == "connect_timeout")
            options_.connect_timeout = time_of(value);
        else if (name == "command_timeout")
            options_.command_timeout = time_of(value);
        else if (name == "client_name")
            client_name_ = value;
        else if (name == "ca_file")
            ca_file_ = value;
        else if (name == "certificate_file")
            certificate_file_ = value;
        else if (name == "key_file")
            key_file_ = value;
        else
            fail(
                "a parameter is none of prefix, database, connect_timeout, command_timeout, "
                "client_name, ca_file, certificate_file, key_file");
    }

    redis_options options_;
    std::string host_;
    std::string path_;
    std::string username_;
    std::string password_;
    std::string prefix_{redis_options{}.key_prefix};
    std::string client_name_{redis_options{}.client_name};
    std::string ca_file_;
    std::string certificate_file_;
    std::string key_file_;
};

} // namespace amux::detail

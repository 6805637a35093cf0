// SPDX-License-Identifier: BSL-1.0
// Without this file no test can do to a server what clients do: hang up at a bad moment, or send the next request early.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

namespace support {

struct http_reply {
    int status = 0; // 0: the connection was closed instead
    std::string head;
    std::string body;
};

/// A connection to a server on loopback. Whatever takes longer than 30 s throws.
class http_client {
public:
    /// With a port of its own, of which 0 is any that is free, it may be shared with connections to other addresses.
    explicit http_client(int port, const char* address = "127.0.0.1", int own_port = -1)
        : socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)}
    {
        const timeval limit{30, 0};
        ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        const int shared = own_port >= 0;
        ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &shared, sizeof shared);
        const sockaddr_in here = address_of("127.0.0.1", own_port);
        if (own_port >= 0 &&
            ::bind(socket_, reinterpret_cast<const sockaddr*>(&here), sizeof here) != 0)
            throw std::system_error{errno, std::generic_category(), "bind"};
        const sockaddr_in there = address_of(address, port);
        if (::connect(socket_, reinterpret_cast<const sockaddr*>(&there), sizeof there) != 0)
            throw std::system_error{errno, std::generic_category(), "connect"};
    }
    http_client(http_client&& other) noexcept
        : socket_{std::exchange(other.socket_, -1)}, buffer_{std::move(other.buffer_)}
    {}
    http_client& operator=(http_client&&) = delete;
    ~http_client() { hang_up(); }

    int own_port() const
    {
        sockaddr_in here{};
        socklen_t size = sizeof here;
        ::getsockname(socket_, reinterpret_cast<sockaddr*>(&here), &size);
        return ntohs(here.sin_port);
    }
    void hang_up() noexcept
    {
        if (socket_ >= 0)
            ::close(std::exchange(socket_, -1));
    }
    /// Says that it will send nothing more.
    void end_sending() noexcept { ::shutdown(socket_, SHUT_WR); }

    void send(std::string_view text)
    {
        while (!text.empty()) {
            const auto n = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
            if (n <= 0)
                throw std::system_error{errno, std::generic_category(), "send"};
            text.remove_prefix(static_cast<std::size_t>(n));
        }
    }

    static std::string post_text(std::string_view path, std::string_view account)
    {
        const std::string form = "account=" + std::string{account};
        return "POST " + std::string{path} +
               " HTTP/1.1\r\nHost: here\r\nContent-Type: application/x-www-form-urlencoded\r\n"
               "Content-Length: " +
               std::to_string(form.size()) + "\r\n\r\n" + form;
    }
    void begin_post(std::string_view path, std::string_view account)
    {
        send(post_text(path, account));
    }
    http_reply post(std::string_view path, std::string_view account)
    {
        begin_post(path, account);
        return reply();
    }

    /// `head`: to a request of HEAD, which has no body.
    http_reply reply(bool head = false)
    {
        http_reply r;
        std::size_t end = 0;
        while ((end = buffer_.find("\r\n\r\n")) == std::string::npos)
            if (!receive())
                return r;
        r.head = buffer_.substr(0, end + 2);
        buffer_.erase(0, end + 4);
        const auto length = head ? "" : header(r.head, "Content-Length: ");
        if (r.head.find("chunked") != std::string::npos) {
            for (std::string chunk = next_chunk(); !chunk.empty(); chunk = next_chunk())
                r.body += chunk;
        } else if (!length.empty()) {
            r.body = take(std::stoul(length));
        }
        r.status = std::atoi(r.head.c_str() + r.head.find(' '));
        return r;
    }

    /// Reads until the connection has given so many bytes of the reply, whatever they are.
    std::string take(std::size_t size)
    {
        while (buffer_.size() < size)
            if (!receive())
                throw std::runtime_error{"the reply is cut off"};
        std::string taken = buffer_.substr(0, size);
        buffer_.erase(0, size);
        return taken;
    }

    static std::string header(const std::string& head, std::string_view name)
    {
        const auto at = head.find(name);
        if (at == std::string::npos)
            return {};
        const auto begin = at + name.size();
        return head.substr(begin, head.find("\r\n", begin) - begin);
    }

private:
    static sockaddr_in address_of(const char* text, int port)
    {
        sockaddr_in a{};
        a.sin_family = AF_INET;
        a.sin_port = htons(static_cast<std::uint16_t>(port));
        ::inet_pton(AF_INET, text, &a.sin_addr);
        return a;
    }
    bool receive()
    {
        char part[4096];
        const auto n = ::recv(socket_, part, sizeof part, 0);
        if (n < 0 && errno != ECONNRESET)
            throw std::system_error{errno, std::generic_category(), "recv"};
        buffer_.append(part, n > 0 ? static_cast<std::size_t>(n) : 0);
        return n > 0;
    }
    std::string next_chunk()
    {
        std::size_t end = 0;
        while ((end = buffer_.find("\r\n")) == std::string::npos)
            if (!receive())
                throw std::runtime_error{"the reply is cut off"};
        const auto size = std::stoul(take(end + 2), nullptr, 16);
        std::string chunk = take(size + 2);
        chunk.resize(size);
        return chunk;
    }

    int socket_;
    std::string buffer_;
};

/// Whether `holds()` within 20 s.
template <class F>
bool soon(F holds)
{
    for (int n = 0; n != 10'000; ++n) {
        if (holds())
            return true;
        std::this_thread::sleep_for(std::chrono::milliseconds{2});
    }
    return false;
}

} // namespace support

// SPDX-License-Identifier: BSL-1.0
// Without this file neither the proxy nor the fake server has a socket, nor knows where a message ends.
#pragma once

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace support {

/// A file descriptor with an owner.
class descriptor {
public:
    descriptor() = default;
    explicit descriptor(int fd) : fd_{fd} {}
    descriptor(descriptor&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
    descriptor& operator=(descriptor&& other) noexcept
    {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~descriptor() { close(); }

    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    void close()
    {
        if (fd_ >= 0)
            ::close(std::exchange(fd_, -1));
    }

private:
    int fd_ = -1;
};

inline constexpr int backlog = 512; // of connections that nobody has accepted

inline sockaddr_in loopback_address(int port)
{
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
}

inline bool bind_to_loopback(const descriptor& s, int port)
{
    const sockaddr_in address = loopback_address(port);
    return bind(s.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

/// A port below those that the kernel hands out by itself, which no other test takes while this lives.
///
/// The UDP port of the same number stands for it: so nobody else's server comes in the place of one that is away.
class reserved_port {
public:
    reserved_port()
    {
        std::random_device seed;
        std::uniform_int_distribution<int> any{20'000, 32'000};
        for (int attempt = 0; attempt < 100; ++attempt) {
            number_ = any(seed);
            mark_ = descriptor{socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
            if (bind_to_loopback(mark_, number_))
                return;
        }
        throw std::runtime_error("no free port");
    }
    int number() const { return number_; }

private:
    int number_ = 0;
    descriptor mark_;
};

/// Listens on the port; without one when some other program has it.
inline descriptor listen_at(const reserved_port& port)
{
    descriptor listener{socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    const int on = 1;
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!bind_to_loopback(listener, port.number()) || listen(listener.get(), backlog) != 0)
        listener.close();
    return listener;
}

/// Listens on a free port.
inline descriptor listen_on_loopback(reserved_port& port)
{
    for (int attempt = 0; attempt < 100; ++attempt) {
        if (descriptor listener = listen_at(port))
            return listener;
        port = reserved_port{};
    }
    throw std::runtime_error("no port to listen on");
}

/// Refuses connections, those that nobody has accepted too, and listens on the same port again.
///
/// The socket stays: one that is closed still listens in a child between its fork and its exec, and then the port
/// cannot be had again.
inline void refuse_at(const descriptor& listener, bool refuse)
{
    const int failed = refuse ? shutdown(listener.get(), SHUT_RD) : listen(listener.get(), backlog);
    if (failed != 0)
        throw std::runtime_error(refuse ? "a port does not close" : "a port does not open again");
}

inline descriptor accept_from(const descriptor& listener)
{
    descriptor client{accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    const int on = 1;
    if (client)
        setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return client;
}

inline descriptor connect_to_loopback(int port)
{
    descriptor s{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    const sockaddr_in address = loopback_address(port);
    if (connect(s.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
        return descriptor{};
    const int on = 1;
    setsockopt(s.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(s.get(), F_SETFL, O_NONBLOCK);
    return s;
}

/// Closes with a reset instead of a farewell.
inline void reset(descriptor& s)
{
    const linger at_once{1, 0};
    if (s)
        setsockopt(s.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    s.close();
}

/// Wakes a thread that polls.
class wake_up {
public:
    wake_up() : fd_{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)} {}
    int get() const { return fd_.get(); }
    void operator()() const
    {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = write(fd_.get(), &one, sizeof one);
    }
    void clear() const
    {
        std::uint64_t count = 0;
        [[maybe_unused]] const auto got = read(fd_.get(), &count, sizeof count);
    }

private:
    descriptor fd_;
};

/// One message of Redis' protocol: how many bytes of `bytes` it takes, 0 while it is not complete, none for nonsense.
inline std::optional<std::size_t> message_size(std::string_view bytes)
{
    const auto line_end = bytes.find("\r\n");
    if (bytes.empty() || std::string_view{"+-:$*"}.find(bytes.front()) == std::string_view::npos)
        return bytes.empty() ? std::optional<std::size_t>{0} : std::nullopt;
    if (line_end == std::string_view::npos)
        return 0;
    const std::size_t head = line_end + 2;
    if (bytes.front() != '$' && bytes.front() != '*')
        return head;
    long long count = 0;
    const auto [end, error] = std::from_chars(bytes.data() + 1, bytes.data() + line_end, count);
    if (error != std::errc{} || end != bytes.data() + line_end)
        return std::nullopt;
    if (count < 0)
        return head;
    if (bytes.front() == '$') {
        const std::size_t whole = head + static_cast<std::size_t>(count) + 2;
        return bytes.size() < whole ? 0 : whole;
    }
    std::size_t used = head;
    for (; count > 0; --count) {
        const auto part = message_size(bytes.substr(used));
        if (!part || *part == 0)
            return part;
        used += *part;
    }
    return used;
}

/// The words of a command, which is an array of strings. Requires: it is complete.
inline std::vector<std::string> words_of(std::string_view command)
{
    std::vector<std::string> words;
    while (!command.empty()) {
        const auto line_end = command.find("\r\n");
        if (command.front() != '$') {
            command.remove_prefix(line_end + 2);
            continue;
        }
        std::size_t size = 0;
        std::from_chars(command.data() + 1, command.data() + line_end, size);
        words.emplace_back(command.substr(line_end + 2, size));
        command.remove_prefix(line_end + 2 + size + 2);
    }
    return words;
}

} // namespace support

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/redis_address.hpp>

#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace amux::detail {

/// A stream socket that never blocks. It may be read on one thread while it is written on another.
class redis_socket {
public:
    struct transfer {
        std::size_t bytes = 0;
        bool ended = false; // of a read: the other side has closed
        int error = 0;
    };

    redis_socket() = default;
    redis_socket(redis_socket&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
    redis_socket& operator=(redis_socket&& other) noexcept
    {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~redis_socket()
    {
        if (fd_ >= 0)
            ::close(fd_);
    }

    static std::string text_of(int error)
    {
        return std::error_code{error, std::generic_category()}.message();
    }

    int fd() const noexcept { return fd_; }

    /// Begins to connect; it is done when the socket can be written. Returns: an error, or 0.
    int connect(const redis_address& to) noexcept
    {
#ifdef SOCK_CLOEXEC
        // At once: another thread may start a program at any moment.
        fd_ = ::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd_ < 0)
            return errno;
#else
        fd_ = ::socket(to.family(), SOCK_STREAM, 0);
        if (fd_ < 0)
            return errno;
        ::fcntl(fd_, F_SETFD, FD_CLOEXEC);
        ::fcntl(fd_, F_SETFL, O_NONBLOCK);
#endif
        const int on = 1;
#ifdef SO_NOSIGPIPE
        ::setsockopt(fd_, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
        if (to.family() != AF_UNIX) {
            ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            // So that a server that went away without a word is noticed also while nothing is asked of it.
            ::setsockopt(fd_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef TCP_KEEPIDLE
            const int seconds = 15;
            ::setsockopt(fd_, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
            ::setsockopt(fd_, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
#endif
        }
        if (::connect(fd_, to.get(), to.size()) == 0 || errno == EINPROGRESS)
            return 0;
        return errno;
    }

    /// How connecting has ended: an error, or 0.
    int connected() const noexcept
    {
        int error = 0;
        socklen_t size = sizeof error;
        return ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
    }

    transfer read(char* to, std::size_t size) noexcept
    {
        const auto n = ::recv(fd_, to, size, 0);
        if (n < 0)
            return {0, false, would_block() ? 0 : errno};
        return {static_cast<std::size_t>(n), n == 0, 0};
    }

    transfer write(std::string_view bytes) noexcept
    {
#ifdef MSG_NOSIGNAL
        constexpr int flags = MSG_NOSIGNAL;
#else
        constexpr int flags = 0;
#endif
        const auto n = ::send(fd_, bytes.data(), bytes.size(), flags);
        if (n < 0)
            return {0, false, would_block() ? 0 : errno};
        return {static_cast<std::size_t>(n), false, 0};
    }

private:
    static bool would_block() noexcept
    {
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    }

    int fd_ = -1;
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/no_signals.hpp>
#include <amux/detail/redis_waker.hpp>

#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace amux::detail {

/// Where a socket connects to.
class redis_address {
public:
    redis_address(const sockaddr* a, std::size_t size) noexcept
        : size_{static_cast<socklen_t>(size)}
    {
        std::memcpy(&storage_, a, size);
    }
    /// Of a Unix socket. Requires: the path fits.
    explicit redis_address(const std::string& path) noexcept
    {
        sockaddr_un a{};
        a.sun_family = AF_UNIX;
        std::memcpy(a.sun_path, path.data(), path.size());
        std::memcpy(&storage_, &a, sizeof a);
        size_ = sizeof a;
    }

    int family() const noexcept { return storage_.ss_family; }
    const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
    socklen_t size() const noexcept { return size_; }

private:
    sockaddr_storage storage_{};
    socklen_t size_ = 0;
};

struct redis_addresses {
    std::vector<redis_address> found;
    std::string trouble; // when there are none

    /// `flags`: AI_NUMERICHOST never asks anybody.
    static redis_addresses look_up(const std::string& host, int port, int flags)
    {
        addrinfo hints{};
        hints.ai_family = AF_UNSPEC;
        hints.ai_socktype = SOCK_STREAM;
        hints.ai_flags = flags | AI_NUMERICSERV;
        addrinfo* list = nullptr;
        redis_addresses result;
        const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
        if (error != 0) {
            result.trouble = ::gai_strerror(error);
            return result;
        }
        for (const addrinfo* a = list; a; a = a->ai_next)
            result.found.emplace_back(a->ai_addr, static_cast<std::size_t>(a->ai_addrlen));
        ::freeaddrinfo(list);
        return result;
    }
};

/// Finds the addresses of a name, without blocking: what cannot be told at once is asked on a thread of its own, which
/// may outlive who asked, since the system's resolver cannot be stopped.
class redis_resolver {
public:
    /// `waker` is woken when the answer is there. A question that is out already is not asked again.
    void start(const std::string& host, int port, std::shared_ptr<redis_waker> waker)
    {
        if (question_)
            return;
        question_ = std::make_shared<question>();
        auto known = redis_addresses::look_up(host, port, AI_NUMERICHOST);
        if (!known.found.empty()) {
            question_->answer = std::move(known);
            return;
        }
        try {
            const no_signals none;
            std::thread{[q = question_, host, port, w = std::move(waker)] {
                auto answer = redis_addresses::look_up(host, port, 0);
                {
                    const std::lock_guard lock{q->mutex};
                    q->answer = std::move(answer);
                }
                w->wake();
            }}.detach();
        } catch (const std::system_error& e) {
            question_->answer = redis_addresses{{}, e.what()};
        }
    }
    /// The answer, once.
    std::optional<redis_addresses> take()
    {
        const auto q = question_;
        if (!q)
            return std::nullopt;
        const std::lock_guard lock{q->mutex};
        if (q->answer)
            question_ = nullptr;
        return std::move(q->answer);
    }

private:
    struct question {
        std::mutex mutex;
        std::optional<redis_addresses> answer;
    };

    std::shared_ptr<question> question_;
};

} // namespace amux::detail

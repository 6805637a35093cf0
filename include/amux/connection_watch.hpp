// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace amux {

/// Tells when the other side of a connection has gone, though nobody reads from it: for servers whose requests wait.
///
/// A side that has only ended its sending counts as gone, as it does for most servers. What was sent before and is not
/// read yet does not matter. A thread of its own looks, whatever the number of connections. Linux only.
///
/// Thread-safety: any thread. Lifetime: it outlives what `watch` has given.
class connection_watch {
public:
    class watched;

    /// Throws: `std::system_error` when there is no thread or no descriptor to be had.
    connection_watch();
    connection_watch(const connection_watch&) = delete;
    connection_watch& operator=(const connection_watch&) = delete;
    ~connection_watch();

    /// Watches a connected socket until the result is destroyed, which comes before the socket is closed.
    ///
    /// Returns: what never stops when `socket` is none, or is being watched already.
    watched watch(int socket);

    /// One for the whole program, made for the first who asks, and gone with the last.
    static std::shared_ptr<connection_watch> shared();

private:
    static constexpr std::uint64_t end_of_watch = 0;

    struct descriptor {
        explicit descriptor(int n) : number{n}
        {
            if (n < 0)
                throw std::system_error{errno, std::generic_category(), "amux: connection_watch"};
        }
        descriptor(const descriptor&) = delete;
        descriptor& operator=(const descriptor&) = delete;
        ~descriptor() { ::close(number); }
        const int number;
    };

    bool add(int socket, std::uint32_t events, std::uint64_t id) noexcept
    {
        epoll_event e{};
        e.events = events;
        e.data.u64 = id;
        return ::epoll_ctl(poll_.number, EPOLL_CTL_ADD, socket, &e) == 0;
    }
    void run() noexcept;
    void has_gone(std::uint64_t id) noexcept;
    void forget(int socket, std::uint64_t id) noexcept;

    const descriptor poll_{::epoll_create1(EPOLL_CLOEXEC)};
    const descriptor wake_{::eventfd(0, EFD_CLOEXEC)};
    std::mutex mutex_;
    std::uint64_t last_id_ = end_of_watch;
    std::unordered_map<std::uint64_t, std::stop_source>
        watched_; // by id: numbers of sockets are used again
    std::thread thread_;
};

/// A connection that is being watched.
class [[nodiscard("the watch ends when it is dropped")]] connection_watch::watched {
public:
    watched(watched&& other) noexcept
        : watch_{std::exchange(other.watch_, nullptr)},
          socket_{other.socket_},
          id_{other.id_},
          closed_{std::move(other.closed_)}
    {}
    watched& operator=(watched&&) = delete;
    ~watched()
    {
        if (watch_)
            watch_->forget(socket_, id_);
    }

    /// Stops when the other side has gone. Its callbacks run on the thread that looks, which they must not block.
    const std::stop_token& token() const noexcept { return closed_; }

private:
    friend connection_watch;

    watched() = default;
    watched(connection_watch& w, int socket, std::uint64_t id, std::stop_token closed) noexcept
        : watch_{&w}, socket_{socket}, id_{id}, closed_{std::move(closed)}
    {}

    connection_watch* watch_ = nullptr;
    int socket_ = -1;
    std::uint64_t id_ = 0;
    std::stop_token closed_;
};

inline connection_watch::connection_watch()
{
    if (!add(wake_.number, EPOLLIN, end_of_watch))
        throw std::system_error{errno, std::generic_category(), "amux: connection_watch"};
    thread_ = std::thread{[this] { run(); }};
}

inline connection_watch::~connection_watch()
{
    const std::uint64_t one = 1;
    if (::write(wake_.number, &one, sizeof one) == static_cast<ssize_t>(sizeof one))
        thread_.join();
}

inline connection_watch::watched connection_watch::watch(int socket)
{
    if (socket < 0)
        return {};
    std::stop_source source;
    std::stop_token closed = source.get_token();
    std::uint64_t id = 0;
    {
        const std::lock_guard lock{mutex_};
        id = ++last_id_;
        watched_.emplace(id, std::move(source));
    }
    // Once: who has gone stays gone, and would be told of for ever.
    if (add(socket, EPOLLRDHUP | EPOLLONESHOT, id))
        return {*this, socket, id, std::move(closed)};
    const std::lock_guard lock{mutex_};
    watched_.erase(id);
    return {};
}

inline std::shared_ptr<connection_watch> connection_watch::shared()
{
    static std::mutex mutex;
    static std::weak_ptr<connection_watch> last;
    const std::lock_guard lock{mutex};
    auto watch = last.lock();
    if (!watch)
        last = watch = std::make_shared<connection_watch>();
    return watch;
}

inline void connection_watch::run() noexcept
{
    std::array<epoll_event, 64> events{};
    for (;;) {
        const int count =
            ::epoll_wait(poll_.number, events.data(), static_cast<int>(events.size()), -1);
        for (int n = 0; n < count; ++n) {
            const std::uint64_t id = events[static_cast<std::size_t>(n)].data.u64;
            if (id == end_of_watch)
                return;
            has_gone(id);
        }
    }
}

inline void connection_watch::has_gone(std::uint64_t id) noexcept
{
    std::optional<std::stop_source> source;
    {
        const std::lock_guard lock{mutex_};
        if (const auto found = watched_.find(id); found != watched_.end())
            source = found->second;
    }
    // Outside the lock: whoever is told may end its watch.
    if (source)
        source->request_stop();
}

inline void connection_watch::forget(int socket, std::uint64_t id) noexcept
{
    ::epoll_ctl(poll_.number, EPOLL_CTL_DEL, socket, nullptr);
    const std::lock_guard lock{mutex_};
    watched_.erase(id);
}

} // namespace amux

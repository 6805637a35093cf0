// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/detail/no_signals.hpp>
#include <amux/detail/token.hpp>

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <unordered_map>
#include <utility>

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace amux {

/// Tells when the other side of a connection has gone, though nobody reads from it: for servers whose requests wait.
///
/// A side that has only ended its sending counts as gone, as it does for most servers. What was sent before and is not
/// read yet does not matter. A thread of its own, which takes no signals, looks, whatever the number of connections. Linux only. After a `fork` the
/// child's copy watches nothing, and leaves that of its parent alone: `shared()` gives the child one of its own.
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

    /// Watches a connected socket until the result is destroyed, or the socket is closed.
    ///
    /// Any number may watch it at a time.
    /// Returns: what never stops when `socket` is none, or the system can watch no more.
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

    /// A socket, for all who watch it.
    struct watched_socket {
        std::stop_source gone;
        int watchers = 0;
    };

    /// Sets `errno` when it fails.
    bool add(int socket, std::uint32_t events, std::uint64_t id) noexcept
    {
        epoll_event e{};
        e.events = events;
        e.data.u64 = id;
        return ::epoll_ctl(poll_.number, EPOLL_CTL_ADD, socket, &e) == 0;
    }
    /// Whether this process is a child that was forked since: the thread and the descriptors are its parent's.
    bool forked() const noexcept { return process_ != detail::process_id(); }
    void run() noexcept;
    void has_gone(std::uint64_t id) noexcept;
    void forget(int socket, std::uint64_t id) noexcept;

    const descriptor poll_{::epoll_create1(EPOLL_CLOEXEC)};
    const descriptor wake_{::eventfd(0, EFD_CLOEXEC)};
    std::mutex mutex_;
    std::uint64_t last_id_ = end_of_watch;
    std::unordered_map<std::uint64_t, watched_socket> watched_; // by id
    std::unordered_map<int, std::uint64_t> ids_; // whose a number is: it is used again
    const long process_ = detail::process_id();
    pthread_t thread_{}; // not a `std::thread`, which a child could neither join nor drop
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
    const auto look = [](void* self) -> void* {
        static_cast<connection_watch*>(self)->run();
        return nullptr;
    };
    const detail::no_signals none;
    if (const int error = ::pthread_create(&thread_, nullptr, look, this))
        throw std::system_error{error, std::generic_category(), "amux: connection_watch"};
}

inline connection_watch::~connection_watch()
{
    const std::uint64_t one = 1;
    if (forked())
        return;
    if (::write(wake_.number, &one, sizeof one) == static_cast<ssize_t>(sizeof one))
        ::pthread_join(thread_, nullptr);
}

inline connection_watch::watched connection_watch::watch(int socket)
{
    if (socket < 0 || forked())
        return {};
    const std::lock_guard lock{mutex_};
    const std::uint64_t id = ++last_id_;
    const auto own = watched_.try_emplace(id).first;
    const auto [owner, is_new] = ids_.try_emplace(socket);
    // Once: who has gone stays gone, and would be told of for ever.
    const bool added = add(socket, EPOLLRDHUP | EPOLLONESHOT, id);
    if (!added)
        watched_.erase(own);
    if (!added && (is_new || errno != EEXIST)) {
        if (is_new)
            ids_.erase(owner);
        return {};
    }
    if (added) // also when the number is that of one that was closed: who watched it is on his own
        owner->second = id;
    watched_socket& w = watched_.at(owner->second);
    ++w.watchers;
    return {*this, socket, owner->second, w.gone.get_token()};
}

inline std::shared_ptr<connection_watch> connection_watch::shared()
{
    static std::mutex mutex;
    static std::weak_ptr<connection_watch> last;
    const std::lock_guard lock{mutex};
    auto watch = last.lock();
    if (!watch || watch->forked())
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
            source = found->second.gone;
    }
    // Outside the lock: whoever is told may end its watch.
    if (source)
        source->request_stop();
}

inline void connection_watch::forget(int socket, std::uint64_t id) noexcept
{
    if (forked())
        return;
    const std::lock_guard lock{mutex_};
    const auto own = watched_.find(id);
    if (--own->second.watchers > 0)
        return;
    watched_.erase(own);
    const auto found = ids_.find(socket);
    if (found == ids_.end() || found->second != id)
        return; // closed meanwhile, and the number is that of another connection
    ids_.erase(found);
    ::epoll_ctl(poll_.number, EPOLL_CTL_DEL, socket, nullptr);
}

} // namespace amux

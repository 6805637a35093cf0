// SPDX-License-Identifier: BSL-1.0
#pragma once

/// \file
/// Locks for the handlers of a server of cpp-httplib. The flags of that library are for its user to set.

#include <amux/connection_watch.hpp>
#include <amux/error.hpp>
#include <amux/sync_wait.hpp>
#include <amux/web.hpp>

#include <httplib.h>

#include <concepts>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace amux {

namespace detail {

/// Whether a descriptor is the connection from which a request came. cpp-httplib shows addresses, not sockets.
inline bool carries(int socket, const httplib::Request& request)
{
    sockaddr_storage address{};
    const auto* const plain = reinterpret_cast<const sockaddr*>(&address);
    char host[NI_MAXHOST]{};
    char port[NI_MAXSERV]{};
    socklen_t size = sizeof address;
    const auto port_is = [&](int wanted) {
        return ::getnameinfo(plain, size, host, sizeof host, port, sizeof port,
                             NI_NUMERICHOST | NI_NUMERICSERV) == 0 &&
               std::atoi(port) == wanted;
    };
    if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
        !port_is(request.remote_port) || request.remote_addr != host)
        return false;
    size = sizeof address;
    return ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
           port_is(request.local_port);
}

/// The connection of a request; -1 when it is not found. The requests of one come on one thread, one after another.
inline int socket_of(const httplib::Request& request)
{
    static thread_local int last = -1;
    if (last >= 0 && carries(last, request))
        return last;
    last = -1;
    std::error_code error;
    for (const auto& file : std::filesystem::directory_iterator{"/proc/self/fd", error}) {
        const int number = std::atoi(file.path().filename().c_str());
        if (carries(number, request))
            last = number;
    }
    return last;
}

inline void put(httplib::Response& response, const web_answer& a)
{
    response.status = a.status;
    response.set_content(a.body, a.content_type);
    if (a.retry_after.count() > 0)
        response.set_header("Retry-After", std::to_string(a.retry_after.count()));
}

/// The lease is given back before the watch ends: members go in the opposite order.
struct httplib_request {
    connection_watch::watched connection;
    web_hold hold;
};

/// Keeps `request` until the response is destroyed, which cpp-httplib does when its last byte is written or will not be.
inline void keep_until_sent(httplib::Response& response, std::shared_ptr<httplib_request> request)
{
    auto& at_end = response.content_provider_resource_releaser_;
    at_end = [before = std::move(at_end), kept = std::move(request)](bool success) {
        if (before)
            before(success);
        kept->hold.give_back();
    };
}

inline bool answered(const httplib::Response& response) noexcept
{
    return response.status != -1 || !response.body.empty() || response.content_provider_;
}

} // namespace detail

/// A handler for `httplib::Server` that runs `handler(request, response, hold)` under the lock of its request.
///
/// The thread of the connection waits; somebody else runs the loop of the locks, such as a `loop_thread`. The lease is
/// given back when the last byte of the response, chunks too, was handed to the system, when the connection has failed, or
/// when the handler has thrown and the server has answered for it. A client that goes is noticed, waited for or handled.
///
/// Lifetime: the locks outlive the server. Shutdown: `server.stop()`, then `drain` the locks, then join who listens.
template <class Locks, class KeyOf, class Handler>
    requires std::invocable<const Handler&, const httplib::Request&, httplib::Response&, web_hold&>
httplib::Server::Handler httplib_handler(request_lock<Locks, KeyOf> lock, Handler handler)
{
    return
        [lock = std::move(lock), handler = std::move(handler), watch = connection_watch::shared()](
            const httplib::Request& request, httplib::Response& response) {
            auto connection = watch->watch(detail::socket_of(request));
            web_hold begun = sync_wait(lock.begin(request, connection.token()));
            if (!begun) {
                detail::put(response, begun.answer());
                return;
            }
            const auto kept = std::make_shared<detail::httplib_request>(
                detail::httplib_request{std::move(connection), std::move(begun)});
            std::exception_ptr error;
            bool gave_up = false; // told of the loss by a call of amux
            try {
                handler(request, response, kept->hold);
            } catch (const lock_error&) {
                gave_up = kept->hold.is_lost();
                if (!gave_up)
                    error = std::current_exception();
            } catch (...) {
                error = std::current_exception();
            }
            if (!error && kept->hold.is_lost() && (gave_up || !detail::answered(response)))
                detail::put(response, kept->hold.loss());
            detail::keep_until_sent(response, kept);
            if (error)
                std::rethrow_exception(error); // the server answers for it
        };
}

} // namespace amux

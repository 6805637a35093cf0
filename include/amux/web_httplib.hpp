// SPDX-License-Identifier: BSL-1.0
#pragma once

/// \file
/// Locks for the handlers of a server of cpp-httplib. The flags of that library are for its user to set.

#include <amux/connection_watch.hpp>
#include <amux/error.hpp>
#include <amux/sync_wait.hpp>
#include <amux/web.hpp>

#include <httplib.h>

#include <atomic>
#include <cerrno>
#include <concepts>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace amux {

namespace detail {

/// Whether an address is this one. cpp-httplib shows addresses as text, not sockets.
inline bool is_address(const sockaddr_storage& address, socklen_t size, const std::string& host,
                       int port)
{
    const auto* const any = reinterpret_cast<const sockaddr*>(&address);
    in_port_t number = 0;
    if (address.ss_family == AF_INET)
        number = reinterpret_cast<const sockaddr_in*>(any)->sin_port;
    else if (address.ss_family == AF_INET6)
        number = reinterpret_cast<const sockaddr_in6*>(any)->sin6_port;
    else
        return false;
    char text[NI_MAXHOST]{};
    return ntohs(number) == port &&
           ::getnameinfo(any, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 &&
           host == text;
}

/// Whether a descriptor is the connection from which a request came; `is_open` tells whether it is one at all.
inline bool carries(int socket, const httplib::Request& request, bool& is_open)
{
    sockaddr_storage address{};
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    const bool has_peer = ::getpeername(socket, any, &size) == 0;
    is_open = has_peer || errno != EBADF;
    if (!has_peer || !is_address(address, size, request.remote_addr, request.remote_port))
        return false;
    size = sizeof address;
    return ::getsockname(socket, any, &size) == 0 &&
           is_address(address, size, request.local_addr, request.local_port);
}

/// The connection of a request; -1 when it is not found. A new one is given the lowest number that is free, mostly near the
/// one that was found last, so the search begins there. It ends below at 0, and above where nothing is open any more.
inline int socket_of(const httplib::Request& request)
{
    static std::atomic<int> last{0};
    constexpr int longest_gap = 1'024;
    int above = last.load(std::memory_order_relaxed);
    int below = above - 1;
    for (int closed = 0; closed != longest_gap || below >= 0;) {
        int found = -1;
        bool is_open = false;
        if (closed != longest_gap) {
            found = carries(above, request, is_open) ? above : -1;
            closed = is_open ? 0 : closed + 1;
            ++above;
        }
        if (found < 0 && below >= 0) {
            found = carries(below, request, is_open) ? below : -1;
            --below;
        }
        if (found >= 0) {
            last.store(found, std::memory_order_relaxed);
            return found;
        }
    }
    return -1;
}

inline void put(httplib::Response& response, const web_answer& a)
{
    response.status = a.status;
    response.set_content(a.body, a.content_type);
    if (a.retry_after.count() > 0)
        response.set_header("Retry-After", std::to_string(a.retry_after.count()));
}

/// Takes back what the handler has set: `headers` were there before. Templates may ask what this version has.
template <class Response>
void take_back(Response& response, httplib::Headers headers)
{
    Response fresh;
    fresh.version = std::move(response.version);
    fresh.headers = std::move(headers);
    if constexpr (requires { response.user_data; })
        fresh.user_data = std::move(response.user_data);
    std::swap(response, fresh); // whoever has set a provider is told by the end of it
}

template <class Response>
bool answered(const Response& response) noexcept
{
    if constexpr (requires { response.file_content_path_; }) {
        if (!response.file_content_path_.empty())
            return true;
    }
    return response.status != -1 || !response.body.empty() || response.content_provider_;
}

/// The lease is given back before the watch ends: members go in the opposite order.
struct httplib_request {
    httplib_request(connection_watch::watched c, web_hold h) noexcept
        : connection{std::move(c)}, hold{std::move(h)}
    {}
    httplib_request(const httplib_request&) = delete;
    httplib_request& operator=(const httplib_request&) = delete;
    ~httplib_request() { hold.give_back(); } // also one that the handler has moved away

    connection_watch::watched connection;
    web_hold hold;
};

/// Keeps `kept` until the response is destroyed, which cpp-httplib does when its last byte is written or will not be.
inline void keep_until_sent(const httplib::Request& request, httplib::Response& response,
                            std::shared_ptr<httplib_request> kept)
{
    // A later handler, for all routes, may set a provider and so drop ours. The request lives as long, is no constant of
    // the server, and has room for what only its clients use. Another lock for the same request may be there already.
    auto& in_request = const_cast<httplib::Request&>(request).response_handler;
    in_request = [before = std::move(in_request), kept](const httplib::Response&) { return true; };
    auto& at_end = response.content_provider_resource_releaser_;
    at_end = [before = std::move(at_end), kept = std::move(kept)](bool success) {
        if (before)
            before(success);
        kept->hold.give_back();
    };
}

} // namespace detail

/// A handler for `httplib::Server` that runs `handler(request, response, hold)` under the lock of its request.
///
/// The thread of the connection waits; somebody else runs the loop of the locks, such as a `loop_thread`. The lease is
/// given back when the last byte of the response, chunks too, was handed to the system, when the connection has failed, or
/// when the handler has thrown and the server has answered for it. A client that goes is noticed, waited for or handled.
/// When the lease is lost, 500 takes the place of what the handler has set, unless it has answered: with a status, content
/// that is not empty, a provider or a file.
///
/// Lifetime: the locks outlive the server. Shutdown: `server.stop()`, `drain` the locks, join who listens, `drain` again:
/// what handlers have given back meanwhile reaches the store.
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
            const auto kept =
                std::make_shared<detail::httplib_request>(std::move(connection), std::move(begun));
            const httplib::Headers headers = response.headers;
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
            if (!error && kept->hold.is_lost() && (gave_up || !detail::answered(response))) {
                detail::take_back(response, headers);
                detail::put(response, kept->hold.loss());
            }
            detail::keep_until_sent(request, response, kept);
            if (error)
                std::rethrow_exception(error); // the server answers for it
        };
}

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

/// \file
/// Locks for the requests of a coroutine server of Boost.Beast.

#include <amux/asio.hpp>
#include <amux/connection_watch.hpp>
#include <amux/error.hpp>
#include <amux/task.hpp>
#include <amux/web.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/stream_traits.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace amux {

namespace detail {

/// Kept apart from the frames of both sides, of which either may go first.
inline task<> begin_into(task<web_hold> work, std::shared_ptr<std::optional<web_hold>> out)
{
    out->emplace(co_await std::move(work));
}

inline boost::asio::awaitable<web_hold> await_hold(task<web_hold> work)
{
    const auto out = std::make_shared<std::optional<web_hold>>();
    co_await begin_into(std::move(work), out);
    co_return std::move(**out);
}

template <class Stream>
int socket_of(Stream& stream)
{
    auto& lowest = boost::beast::get_lowest_layer(stream);
    if constexpr (requires { lowest.socket(); })
        return static_cast<int>(lowest.socket().native_handle());
    else
        return static_cast<int>(lowest.native_handle());
}

template <class T>
struct awaited_by_asio;
template <class T, class Executor>
struct awaited_by_asio<boost::asio::awaitable<T, Executor>> {
    using type = T;
};

} // namespace detail

/// The lock of a route, for sessions that are coroutines: `boost::asio::awaitable`.
///
/// Thread-safety: as `request_lock`, so any thread. Lifetime: it outlives what `serve` has begun.
template <class Locks, class KeyOf>
class beast_lock {
public:
    /// What is written when the lock answers.
    using response = boost::beast::http::response<boost::beast::http::string_body>;

    /// `beast_lock pay{hold_for_request(locks, account_of)};`
    explicit beast_lock(request_lock<Locks, KeyOf> lock) : lock_{std::move(lock)} {}

    /// Runs `handler(hold)` under the lock of a request, writes the response that it gives, then gives the lease back.
    ///
    /// `handler` is a coroutine that gives a response of Beast; or nothing, when it has written one itself. A client that
    /// goes is noticed, waited for or handled, whatever the stream has read by then.
    /// Returns: whether the connection may be kept for another request.
    /// Resumes: on the executor of the awaiting coroutine. Throws: what reading and writing throw, and what `handler`
    /// throws, with the lease given back; but an error of amux when the lease is lost: then 500 is written, unless
    /// `handler` writes itself.
    template <class Stream, class Body, class Fields, class Handler>
    boost::asio::awaitable<bool> serve(Stream& stream,
                                       const boost::beast::http::request<Body, Fields>& request,
                                       Handler handler) const
    {
        using result =
            typename detail::awaited_by_asio<std::invoke_result_t<Handler&, web_hold&>>::type;
        const auto connection = watch_->watch(detail::socket_of(stream));
        web_hold hold = co_await detail::await_hold(lock_.begin(request, connection.token()));
        if (!hold && connection.token().stop_requested())
            co_return false;
        if (!hold)
            co_return co_await write(stream, respond(request, hold.answer()));
        if constexpr (std::is_void_v<result>) {
            co_await handler(hold);
            co_return request.keep_alive();
        } else {
            std::optional<result> answer;
            try {
                answer.emplace(co_await handler(hold));
            } catch (const lock_error&) {
                if (!hold.is_lost())
                    throw;
            }
            if (answer)
                co_return co_await write(stream, std::move(*answer));
            co_return co_await write(stream, respond(request, hold.loss()));
        }
    }

private:
    template <class Request>
    static response respond(const Request& request, const web_answer& a)
    {
        response r{static_cast<boost::beast::http::status>(a.status), request.version(), a.body};
        r.set(boost::beast::http::field::content_type, a.content_type);
        if (a.retry_after.count() > 0)
            r.set(boost::beast::http::field::retry_after, std::to_string(a.retry_after.count()));
        r.keep_alive(request.keep_alive());
        r.prepare_payload();
        return r;
    }

    template <class Stream, class Response>
    static boost::asio::awaitable<bool> write(Stream& stream, Response answer)
    {
        co_await boost::beast::http::async_write(stream, answer, boost::asio::use_awaitable);
        co_return !answer.need_eof();
    }

    request_lock<Locks, KeyOf> lock_;
    std::shared_ptr<connection_watch> watch_ = connection_watch::shared();
};

} // namespace amux

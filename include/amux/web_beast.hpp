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
#include <boost/asio/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/buffers_generator.hpp>
#include <boost/beast/core/stream_traits.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/system/system_error.hpp>

#include <chrono>
#include <concepts>
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

/// The wait for a lock, which a cancellation of Asio ends as a client does that goes.
struct asio_begin {
    using result = void;
    static constexpr bool posts_once = false;
    struct stopper {
        explicit stopper(asio_begin& w) noexcept : source{w.left} {}
        void look_again(auto& /*result*/) const noexcept {}
        std::stop_source source;
    };
    auto operator co_await() && { return std::move(work).operator co_await(); }

    std::stop_source left;
    task<> work;
};

inline boost::asio::awaitable<web_hold> await_hold(task<web_hold> work, std::stop_source left)
{
    const auto out = std::make_shared<std::optional<web_hold>>();
    asio_begin begin{std::move(left), begin_into(std::move(work), out)};
    co_await asio_initiate(std::move(begin), boost::asio::use_awaitable);
    co_return std::move(**out);
}

/// For as long as it lives, an operation of the stream takes no longer; else the stream is closed, and it fails.
template <class Lowest>
class time_limit {
public:
    time_limit(Lowest& s, const boost::asio::any_io_executor& ex, std::chrono::milliseconds limit)
        : stream_{s}
    {
        if constexpr (has_its_own) {
            s.expires_after(limit);
        } else {
            timer_ = std::make_shared<boost::asio::steady_timer>(ex, limit);
            const std::weak_ptr<boost::asio::steady_timer> alive{timer_};
            timer_->async_wait([alive, &s](const boost::system::error_code& /*error*/) {
                boost::system::error_code ignored;
                if (alive.lock())
                    s.close(ignored);
            });
        }
    }
    time_limit(const time_limit&) = delete;
    time_limit& operator=(const time_limit&) = delete;
    ~time_limit()
    {
        if constexpr (has_its_own)
            stream_.expires_never();
    }

private:
    static constexpr bool has_its_own = requires(Lowest& s) { s.expires_never(); };

    Lowest& stream_;
    std::shared_ptr<boost::asio::steady_timer> timer_;
};

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
struct awaited_by_asio {
    using type = void;
};
template <class T, class Executor>
struct awaited_by_asio<boost::asio::awaitable<T, Executor>> {
    using type = T;
};

/// Gives the lease back when the response is written, or will not be; also one that the handler has moved away.
struct until_written {
    explicit until_written(web_hold& h) noexcept : hold{h} {}
    until_written(const until_written&) = delete;
    until_written& operator=(const until_written&) = delete;
    ~until_written() { hold.give_back(); }
    web_hold& hold;
};

/// A response of Beast, or one whose type is hidden: `message_generator`.
template <class T>
concept beast_answer = requires(const T& answer) { answer.keep_alive(); } && std::movable<T>;

} // namespace detail

/// How a `beast_lock` serves.
struct beast_lock_options {
    /// How long writing a response may take. A client that does not read would keep its lease for ever.
    std::chrono::milliseconds write_timeout{30'000};
};

/// The lock of a route, for sessions that are coroutines: `boost::asio::awaitable`.
///
/// Thread-safety: as `request_lock`, so any thread. Lifetime: it outlives what `serve` has begun.
template <class Locks, class KeyOf>
class beast_lock {
public:
    /// What is written when the lock answers.
    using response = boost::beast::http::response<boost::beast::http::string_body>;

    /// `beast_lock pay{hold_for_request(locks, account_of)};`
    explicit beast_lock(request_lock<Locks, KeyOf> lock, const beast_lock_options& options = {})
        : lock_{std::move(lock)}, options_{options}
    {}

    /// Runs `handler(hold)` under the lock of a request, writes the response that it gives, then gives the lease back.
    ///
    /// `handler` is a coroutine that gives a response of Beast, or a `message_generator`. One that writes to the stream
    /// itself gives a bool, whether it has: if not, 500 is written. A client that goes is noticed, waited for or handled,
    /// whatever the stream has read by then. A timeout that the stream has is taken away: it was for reading.
    /// Returns: whether the connection may be kept for another request.
    /// Resumes: on the executor of the awaiting coroutine, whose cancellation ends the wait for the lock.
    /// Throws: what writing throws; what `handler` throws, with the lease given back. But an error of amux when the lease is
    /// lost is answered with 500, unless `handler` gives a bool: it may have begun to write.
    template <class Stream, class Body, class Fields, class Handler>
    boost::asio::awaitable<bool> serve(Stream& stream,
                                       const boost::beast::http::request<Body, Fields>& request,
                                       Handler handler) const
    {
        using result =
            typename detail::awaited_by_asio<std::invoke_result_t<Handler&, web_hold&>>::type;
        static_assert(
            std::same_as<result, bool> || detail::beast_answer<result>,
            "a handler gives an asio::awaitable of a response, or, when it writes itself, "
            "of a bool: whether it has written");
        auto& lowest = boost::beast::get_lowest_layer(stream);
        if constexpr (requires { lowest.expires_never(); })
            lowest.expires_never();
        const auto connection = watch_->watch(detail::socket_of(stream));
        std::stop_source left; // the client, or whoever waits for this
        const auto leave = [&left] { left.request_stop(); };
        const std::stop_callback gone{connection.token(), leave};
        web_hold hold = co_await detail::await_hold(lock_.begin(request, left.get_token()), left);
        const detail::until_written end{hold};
        if (!hold && connection.token().stop_requested())
            co_return false;
        if (!hold && left.stop_requested())
            throw boost::system::system_error{boost::asio::error::operation_aborted};
        if (!hold)
            co_return co_await write(stream, respond(request, hold.answer()));
        if constexpr (std::same_as<result, bool>) {
            const bool written = co_await handler(hold);
            if (written)
                co_return request.keep_alive();
            co_return co_await write(stream, respond(request, no_answer(hold)));
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
    static web_answer no_answer(const web_hold& hold)
    {
        if (hold.is_lost())
            return hold.loss();
        web_answer a;
        a.status = 500;
        a.body = detail::problem_document(a.status, "The request was not answered.");
        return a;
    }

    template <class Request>
    static response respond(const Request& request, const web_answer& a)
    {
        response r{static_cast<boost::beast::http::status>(a.status), request.version(), a.body};
        r.set(boost::beast::http::field::content_type, a.content_type);
        if (a.retry_after.count() > 0)
            r.set(boost::beast::http::field::retry_after, std::to_string(a.retry_after.count()));
        r.keep_alive(request.keep_alive());
        r.prepare_payload();
        if (request.method() == boost::beast::http::verb::head)
            r.body().clear(); // its length is told, as for GET
        return r;
    }

    template <class Stream, class Response>
    boost::asio::awaitable<bool> write(Stream& stream, Response answer) const
    {
        const auto executor = co_await boost::asio::this_coro::executor;
        const detail::time_limit limit{boost::beast::get_lowest_layer(stream), executor,
                                       options_.write_timeout};
        if constexpr (requires { answer.need_eof(); }) {
            co_await boost::beast::http::async_write(stream, answer, boost::asio::use_awaitable);
            co_return !answer.need_eof();
        } else {
            const bool keep = answer.keep_alive();
            co_await boost::beast::async_write(stream, std::move(answer),
                                               boost::asio::use_awaitable);
            co_return keep;
        }
    }

    request_lock<Locks, KeyOf> lock_;
    beast_lock_options options_;
    std::shared_ptr<connection_watch> watch_ = connection_watch::shared();
};

} // namespace amux

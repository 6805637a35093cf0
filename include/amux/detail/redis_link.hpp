// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/redis_address.hpp>
#include <amux/detail/redis_clock.hpp>
#include <amux/detail/redis_greeting.hpp>
#include <amux/detail/redis_shared.hpp>
#include <amux/detail/redis_trouble.hpp>
#include <amux/detail/redis_wire.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>

namespace amux::detail {

/// One connection to the server, made when it is wanted, and again when it breaks.
///
///     down --(wanted, and the pause is over)--> resolving --> connecting --> greeting --> ready
///     every other phase --(trouble, time-out)--> down
///
/// Only the I/O thread changes the phase; others look at it under the mutex, and may write while it is `ready`. All
/// members need the mutex, but for `receive`, which touches what is the I/O thread's alone.
class redis_link {
public:
    redis_link(redis_shared& shared) noexcept : shared_{shared} {}
    redis_link(const redis_link&) = delete;
    redis_link& operator=(const redis_link&) = delete;
    virtual ~redis_link() = default;

    // The I/O thread, in this order, again and again:

    /// Does what is to be done by now.
    void step(clock::time_point now);
    /// When `step` is to be called next, if nothing is received before.
    virtual clock::time_point due(clock::time_point now) const;
    /// What `poll` is to look at.
    pollfd watched() const noexcept;
    /// Reads what has come. Without the mutex.
    void receive(short events);
    /// Takes in what was received.
    void digest(clock::time_point now);
    /// Drops the replies that were taken in. Without the mutex.
    void forget_replies() noexcept { wire_.forget_replies(); }

    /// The backend is gone.
    virtual void close() noexcept = 0;

protected:
    static constexpr clock::time_point never = (clock::time_point::max)();
    enum class phase : unsigned char { down, resolving, connecting, greeting, ready };

    bool ready() const noexcept { return phase_ == phase::ready; }

    /// Whether there is something to do on it.
    virtual bool wanted() const noexcept = 0;
    /// Looks at the deadlines of what waits for it, in every phase.
    virtual void on_time(clock::time_point now) = 0;
    /// It is ready.
    virtual void on_up(clock::time_point now) = 0;
    /// Returns: what is wrong with the reply; empty: nothing.
    virtual std::string on_reply(const redisReply& reply, clock::time_point now) = 0;
    /// It was ready, and is not any more.
    virtual void on_break(const std::string& why) = 0;
    /// An attempt has failed: nobody could be asked.
    virtual void on_refused(const redis_trouble& why) = 0;
    /// Called while it is ready: looks at its own deadlines, puts into `wire_.out` what is to be sent.
    virtual void work(clock::time_point now) = 0;

    void break_up(const std::string& why);
    /// The last reason why there was no connection.
    const redis_trouble& last_trouble() const noexcept { return last_trouble_; }
    /// It does work: the next break is followed by an attempt at once.
    void worked() noexcept { failures_ = 0; }

    redis_shared& shared_;
    redis_clock clock_;
    redis_wire wire_;

private:
    void resolve(clock::time_point now);
    void try_next(clock::time_point now, std::string trouble);
    void connected(clock::time_point now);
    void broken(const std::string& why, clock::time_point now);
    void greeted(clock::time_point now);
    void fail(redis_trouble why, clock::time_point now);
    clock::duration pause();

    phase phase_ = phase::down;
    clock::time_point retry_{}; // when down: not before
    clock::time_point limit_{}; // of the attempt
    clock::time_point asked_{}; // when the greeting was sent
    int failures_ = 0; // in a row
    redis_trouble last_trouble_;
    redis_resolver resolver_;
    std::vector<redis_address> addresses_; // that are left to be tried, last first
    redis_greeting greeting_;
    short events_ = 0; // of the last `poll`; the I/O thread's alone
};

inline void redis_link::step(clock::time_point now)
{
    on_time(now);
    if (phase_ == phase::down && wanted() && now >= retry_)
        resolve(now);
    if (phase_ == phase::resolving) {
        if (auto answer = resolver_.take()) {
            addresses_ = std::move(answer->found);
            std::reverse(addresses_.begin(), addresses_.end());
            try_next(now, "look up " + shared_.settings.host + ": " + answer->trouble);
        }
    }
    if (phase_ != phase::down && phase_ != phase::ready && now >= limit_) {
        if (phase_ == phase::resolving)
            fail({backend_error_kind::not_applied,
                  "look up " + shared_.settings.host + ": no answer"},
                 now);
        else
            try_next(now, "connect to " + shared_.settings.where() + ": no answer");
    }
    if (const std::string trouble = wire_.write_trouble(); !trouble.empty())
        broken(trouble, now);
    if (ready())
        work(now);
    if (phase_ >= phase::greeting)
        wire_.send();
}

inline clock::time_point redis_link::due(clock::time_point now) const
{
    if (phase_ == phase::ready)
        return wire_.write_trouble().empty() ? never : now;
    if (phase_ == phase::down)
        return wanted() ? retry_ : never;
    return limit_;
}

inline pollfd redis_link::watched() const noexcept
{
    pollfd p{wire_.fd(), 0, 0};
    if (phase_ == phase::connecting)
        p.events = POLLOUT;
    else if (phase_ >= phase::greeting)
        p.events = static_cast<short>(POLLIN | (wire_.unsent() ? POLLOUT : 0));
    return p;
}

inline void redis_link::resolve(clock::time_point now)
{
    phase_ = phase::resolving;
    limit_ = now + shared_.settings.connect_timeout;
    if (!shared_.settings.path.empty()) {
        addresses_.assign(1, redis_address{shared_.settings.path});
        try_next(now, {});
    } else {
        resolver_.start(shared_.settings.host, shared_.settings.port, shared_.waker);
    }
}

/// Connects to the next address; `trouble` is what the last one had.
inline void redis_link::try_next(clock::time_point now, std::string trouble)
{
    wire_.close();
    while (!addresses_.empty()) {
        const redis_address next = addresses_.back();
        addresses_.pop_back();
        const int error = wire_.connect(next);
        if (error == 0) {
            phase_ = phase::connecting;
            limit_ = now + shared_.settings.connect_timeout;
            return;
        }
        wire_.close();
        trouble = "connect to " + shared_.settings.where() + ": " + redis_socket::text_of(error);
    }
    fail({backend_error_kind::not_applied, std::move(trouble)}, now);
}

inline void redis_link::connected(clock::time_point now)
{
    if (const int error = wire_.connected(); error != 0)
        return broken(redis_socket::text_of(error), now);
    phase_ = phase::greeting;
    if (shared_.settings.tls) {
        if (auto trouble = wire_.secure(shared_.tls, shared_.settings); !trouble.empty())
            return broken(trouble, now);
    }
    asked_ = now;
    greeting_.begin(shared_.settings, wire_.out);
    wire_.send();
}

inline void redis_link::greeted(clock::time_point now)
{
    if (greeting_.trouble())
        return fail(*greeting_.trouble(), now);
    clock_.forget();
    clock_.learn(*greeting_.time(), asked_, now);
    phase_ = phase::ready;
    last_trouble_ = {};
    addresses_.clear();
    on_up(now);
}

inline void redis_link::receive(short events)
{
    events_ = events;
    if (phase_ == phase::connecting || (events & ~POLLOUT) == 0)
        return;
    wire_.receive(shared_.mutex);
}

inline void redis_link::digest(clock::time_point now)
{
    if (phase_ == phase::connecting && events_ != 0)
        return connected(now);
    for (const auto& reply : wire_.replies()) {
        if (phase_ == phase::greeting) {
            greeting_.on_reply(*reply, shared_.settings.where());
            if (greeting_.done())
                greeted(now);
        } else if (phase_ == phase::ready) {
            if (auto trouble = on_reply(*reply, now); !trouble.empty())
                break_up(trouble);
        }
    }
    if (const auto trouble = wire_.take_read_trouble(); !trouble.empty())
        broken(trouble, now);
}

inline void redis_link::broken(const std::string& why, clock::time_point now)
{
    if (phase_ == phase::ready)
        return break_up(why);
    const std::string text = "connect to " + shared_.settings.where() + ": " + why;
    if (phase_ == phase::greeting && greeting_.trouble())
        fail(*greeting_.trouble(), now); // the server has said why, and closed
    else if (why.starts_with("TLS: "))
        fail({backend_error_kind::permanent, text}, now);
    else if (phase_ >= phase::connecting)
        try_next(now, text);
}

inline void redis_link::break_up(const std::string& why)
{
    wire_.close();
    phase_ = phase::down;
    last_trouble_ = {backend_error_kind::not_applied,
                     "the connection to " + shared_.settings.where() + " broke: " + why};
    retry_ = clock::now() + pause();
    on_break(why);
}

inline void redis_link::fail(redis_trouble why, clock::time_point now)
{
    wire_.close();
    addresses_.clear();
    phase_ = phase::down;
    last_trouble_ = std::move(why);
    retry_ = now + pause();
    on_refused(last_trouble_);
}

/// None after the first failure; then from 20 ms up to 2 s, so that not all come back at once.
inline clock::duration redis_link::pause()
{
    const int n = failures_++;
    if (n == 0)
        return {};
    const auto longest = std::chrono::milliseconds{20} * (1 << (std::min)(n - 1, 7));
    return std::chrono::duration_cast<clock::duration>(
        (std::min)(longest, std::chrono::milliseconds{2'000}) * shared_.random.between(0.5, 1.0));
}

} // namespace amux::detail

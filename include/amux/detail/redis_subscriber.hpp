// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/redis_commands.hpp>
#include <amux/detail/redis_link.hpp>
#include <amux/detail/redis_waiter.hpp>
#include <amux/detail/timer_heap.hpp>
#include <amux/error.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace amux::detail {

/// The connection for subscriptions: one, whatever the number of keys. A key's channel is subscribed to while somebody
/// waits for the key, and for a moment longer: of many who are told of a release all but one are soon back.
class redis_subscriber final : public redis_link {
public:
    redis_subscriber(redis_shared& shared, redis_commands& looks) noexcept
        : redis_link{shared}, looks_{looks}
    {}

    // With the mutex:

    /// Any thread. Throws: `std::bad_alloc`; then it is not listed.
    void enlist(redis_waiter& w, clock::time_point now);
    /// Any thread: it is not to be woken any more. Nothing, when it is not listed.
    void forget(redis_waiter& w) noexcept;
    /// Any thread.
    void wake(redis_waiter& w) noexcept
    {
        forget(w);
        w.woken();
    }

    clock::time_point due(clock::time_point now) const override
    {
        auto due = redis_link::due(now);
        if (!timers_.empty())
            due = (std::min)(due, timers_.front()->due);
        if (!unanswered_.empty())
            due = (std::min)(due, unanswered_.front().deadline);
        if (!unused_.empty())
            due = (std::min)(due, unused_.front()->until);
        return due;
    }

    void close() noexcept override
    {
        fail_all({backend_error_kind::not_applied, "the backend was destroyed"});
    }

private:
    friend redis_waiter::question;

    /// No wait is longer: a holder without a ttl, or a clock that was set, strands nobody.
    static constexpr std::chrono::milliseconds longest_sleep{5'000};
    /// Who may not subscribe asks again for the right after this time.
    static constexpr std::chrono::seconds refusal_lasts{60};
    /// How long a channel stays that nobody waits for.
    static constexpr std::chrono::milliseconds lingers{200};

    struct channel {
        intrusive_list<redis_waiter, &redis_waiter::before, &redis_waiter::behind> waiters;
        std::uint64_t subscription = 0; // the number of its command; 0: none
        bool acknowledged = false;
        // In the list of the unused, while nobody waits:
        clock::time_point until{};
        const std::string* key = nullptr; // in the map
        channel* before = nullptr;
        channel* behind = nullptr;
    };
    using channel_map = std::map<std::string, channel, std::less<>>;

    struct command {
        bool subscribes;
        std::string key;
        std::uint64_t number;
        clock::time_point deadline;
    };

    bool wanted() const noexcept override
    {
        return std::any_of(channels_.begin(), channels_.end(),
                           [](const auto& each) { return !each.second.waiters.empty(); });
    }
    void on_time(clock::time_point now) override;
    void on_up(clock::time_point now) override
    {
        for (auto& [key, c] : channels_)
            subscribe(key, c, now);
    }
    std::string on_reply(const redisReply& reply, clock::time_point now) override;
    void on_break(const std::string&) override
    {
        unanswered_.clear();
        for (auto& [key, c] : channels_)
            c.acknowledged = false;
    }
    void on_refused(const redis_trouble& why) override
    {
        if (why.kind == backend_error_kind::permanent)
            fail_all(why);
    }
    void work(clock::time_point now) override
    {
        if (!unanswered_.empty() && unanswered_.front().deadline <= now)
            break_up("no answer in " + std::to_string(shared_.settings.command_timeout.count()) +
                     " ms");
    }

    std::uint64_t send_command(bool subscribes, std::string_view key, clock::time_point now);
    void subscribe(std::string_view key, channel& c, clock::time_point now)
    {
        c.acknowledged = false;
        c.subscription = send_command(true, key, now);
    }
    void start_look(redis_waiter& w, clock::time_point now);
    void looked(redis_waiter& w);
    void acknowledged(const command& c, clock::time_point now);
    void not_allowed(const command& c, const redis_trouble& why, clock::time_point now);
    void released(std::string_view key);
    void arm(redis_waiter& w, clock::time_point when) noexcept;
    void disarm(redis_waiter& w) noexcept;
    void fail(redis_waiter& w, const redis_trouble& why)
    {
        w.trouble = redis_trouble{why.kind, lock_message(why.text, {}, w.key)};
        wake(w);
    }
    void fail_all(const redis_trouble& why)
    {
        for (auto& [key, c] : channels_) {
            while (redis_waiter* const w = c.waiters.front())
                fail(*w, why);
        }
    }

    redis_commands& looks_;
    channel_map channels_; // by key
    intrusive_list<channel, &channel::before, &channel::behind> unused_; // first to go first
    timer_heap timers_;
    std::deque<command> unanswered_;
    std::uint64_t last_number_ = 0; // of a command
    std::uint64_t last_order_ = 0; // of a timer
    clock::time_point refused_until_{}; // it may not subscribe
};

inline void redis_waiter::question::answered() noexcept
{
    self.where->looked(self);
}

inline void redis_subscriber::enlist(redis_waiter& w, clock::time_point now)
{
    w.where = this;
    auto found = channels_.find(w.key);
    if (found == channels_.end())
        found = channels_.emplace(std::string{w.key}, channel{}).first;
    else if (found->second.waiters.empty())
        unused_.erase(found->second);
    channel& c = found->second;
    c.key = &found->first;
    c.waiters.push_back(w);
    w.at = redis_waiter::stage::subscribing;
    try {
        if (c.acknowledged || now < refused_until_)
            return start_look(w, now);
        arm(w, now + shared_.settings.command_timeout);
        if (c.subscription == 0 && ready())
            subscribe(w.key, c, now);
    } catch (...) {
        forget(w);
        throw;
    }
    shared_.waker->wake();
}

inline void redis_subscriber::forget(redis_waiter& w) noexcept
{
    if (w.at == redis_waiter::stage::idle)
        return;
    w.at = redis_waiter::stage::idle;
    disarm(w);
    looks_.forget(w.look);
    channel& c = channels_.find(w.key)->second;
    c.waiters.erase(w);
    if (!c.waiters.empty())
        return;
    c.until = clock::now() + lingers;
    unused_.push_back(c);
    shared_.waker->wake_by(c.until);
}

/// It goes when the I/O thread comes by. Returns: its number, from 1.
inline std::uint64_t redis_subscriber::send_command(bool subscribes, std::string_view key,
                                                    clock::time_point now)
{
    const std::size_t before = wire_.out.size();
    unanswered_.push_back(
        {subscribes, std::string{key}, ++last_number_, now + shared_.settings.command_timeout});
    try {
        redis_command_text text{wire_.out};
        text.begin(2);
        text.add(subscribes ? "SUBSCRIBE" : "UNSUBSCRIBE");
        text.add(shared_.settings.channel_prefix, key);
    } catch (...) {
        wire_.out.resize(before);
        unanswered_.pop_back();
        throw;
    }
    return last_number_;
}

inline void redis_subscriber::start_look(redis_waiter& w, clock::time_point now)
{
    w.at = redis_waiter::stage::looking;
    w.look.trouble.reset();
    w.look.remaining.reset();
    looks_.submit(w.look, now);
}

inline void redis_subscriber::looked(redis_waiter& w)
{
    const bool in_trouble = w.look.trouble.has_value();
    if (in_trouble ? w.look.trouble->kind == backend_error_kind::permanent : !w.look.yes) {
        w.trouble = std::move(w.look.trouble);
        return wake(w);
    }
    // A question that has failed does not end the wait: the subscription may stand.
    w.at = redis_waiter::stage::sleeping;
    // A little more than it has left: the server rounds down.
    const auto left = w.look.remaining.value_or(longest_sleep) + std::chrono::milliseconds{1};
    arm(w, clock::now() + (std::min)(left, longest_sleep));
}

/// The time of some who wait is up, or that of channels for which nobody does.
inline void redis_subscriber::on_time(clock::time_point now)
{
    for (channel* c = unused_.front(); c && c->until <= now; c = unused_.front()) {
        if (ready() && c->subscription != 0)
            send_command(false, *c->key, now);
        unused_.erase(*c);
        channels_.erase(channels_.find(*c->key));
    }
    while (!timers_.empty() && timers_.front()->due <= now) {
        redis_waiter& w = static_cast<redis_waiter::alarm&>(*timers_.front()).self;
        if (w.at != redis_waiter::stage::subscribing)
            wake(w);
        else if (last_trouble().text.empty())
            fail(w, {backend_error_kind::not_applied,
                     "the Redis server at " + shared_.settings.where() +
                         " has not confirmed the subscription in time"});
        else
            fail(w, {last_trouble().kind, "no subscription in time; " + last_trouble().text});
    }
}

inline std::string redis_subscriber::on_reply(const redisReply& reply, clock::time_point now)
{
    if (reply.type == REDIS_REPLY_ERROR) {
        const auto trouble = redis_reply_trouble(redis_text(reply), shared_.settings.where());
        if (unanswered_.empty() || trouble.kind != backend_error_kind::permanent)
            return trouble.text;
        const command c = std::move(unanswered_.front());
        unanswered_.pop_front();
        if (c.subscribes) // who may not unsubscribe gets messages that nobody waits for
            not_allowed(c, trouble, now);
        return {};
    }
    if (reply.type != REDIS_REPLY_ARRAY || reply.elements != 3)
        return "the answer of the server makes no sense";
    const auto what = redis_text(*reply.element[0]);
    auto name = redis_text(*reply.element[1]);
    const std::string& prefix = shared_.settings.channel_prefix;
    if (!name.starts_with(prefix))
        return "the answer of the server is about another channel";
    name.remove_prefix(prefix.size());
    if (what == "message") {
        released(name);
        return {};
    }
    if (unanswered_.empty() || unanswered_.front().key != name ||
        what != (unanswered_.front().subscribes ? "subscribe" : "unsubscribe"))
        return "the server has answered what nobody has asked";
    const command c = std::move(unanswered_.front());
    unanswered_.pop_front();
    worked();
    if (c.subscribes)
        acknowledged(c, now);
    return {};
}

inline void redis_subscriber::acknowledged(const command& c, clock::time_point now)
{
    const auto found = channels_.find(c.key);
    // It may be one that was taken back meanwhile, and made again.
    if (found == channels_.end() || found->second.subscription != c.number)
        return;
    found->second.acknowledged = true;
    for (redis_waiter* w = found->second.waiters.front(); w; w = w->behind) {
        if (w->at == redis_waiter::stage::looking)
            looks_.forget(w->look); // it was sent before the subscription was there again
        disarm(*w);
        start_look(*w, now);
    }
}

/// One is told, since somebody ought to know; the others, and for a while all who come, only look.
inline void redis_subscriber::not_allowed(const command& c, const redis_trouble& why,
                                          clock::time_point now)
{
    bool known = now < refused_until_;
    refused_until_ = now + refusal_lasts;
    const auto found = channels_.find(c.key);
    if (found == channels_.end() || found->second.subscription != c.number)
        return;
    found->second.subscription = 0;
    redis_waiter* w = found->second.waiters.front();
    while (w) {
        redis_waiter& each = *std::exchange(w, w->behind);
        if (each.at != redis_waiter::stage::subscribing)
            continue;
        if (!std::exchange(known, true)) {
            fail(each, why);
        } else {
            disarm(each);
            start_look(each, now);
        }
    }
}

inline void redis_subscriber::released(std::string_view key)
{
    const auto found = channels_.find(key);
    if (found == channels_.end())
        return;
    while (redis_waiter* const w = found->second.waiters.front())
        wake(*w);
}

inline void redis_subscriber::arm(redis_waiter& w, clock::time_point when) noexcept
{
    disarm(w);
    w.timer.due = when;
    w.timer.order = ++last_order_;
    w.timer.armed = true;
    timers_.push(w.timer);
}

inline void redis_subscriber::disarm(redis_waiter& w) noexcept
{
    if (std::exchange(w.timer.armed, false))
        timers_.erase(w.timer);
}

} // namespace amux::detail

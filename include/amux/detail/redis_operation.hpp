// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/redis_clock.hpp>
#include <amux/detail/redis_reply.hpp>
#include <amux/detail/redis_script.hpp>
#include <amux/detail/redis_settings.hpp>
#include <amux/detail/redis_trouble.hpp>
#include <amux/detail/redis_value.hpp>
#include <amux/lock_backend.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace amux::detail {

/// What is asked of a lease, and the answer. It lives in the frame of who asks, and is under the backend's mutex while it
/// is in a connection's hands.
///
/// `queued`: nothing of it has left; `again`: it came back, not carried out. `sent`: it may have been carried out. `idle`:
/// it is not asked, or answered.
class redis_operation {
public:
    enum class kind : unsigned char { acquire, extend, release, look, look_at_ttl };
    enum class place : unsigned char { idle, queued, again, sent };
    enum class verdict : unsigned char { answered, too_late, nonsense };

    /// Longer ones would not fit into what a server may answer.
    static constexpr std::size_t longest_key = redis_reply_reader::longest / 2;
    /// A hundred years. Longer ones of strangers are told as this, so that nobody's arithmetic ends.
    static constexpr std::chrono::milliseconds longest_ttl = std::chrono::hours{876'600};

    redis_operation(kind w, std::string_view k, std::string_view t = {},
                    std::chrono::milliseconds time = {}, std::string_view m = {}) noexcept
        : what{w}, key{k}, token{t}, metadata{m}, ttl{time}
    {}
    redis_operation(const redis_operation&) = delete;
    redis_operation& operator=(const redis_operation&) = delete;

    const kind what;
    const std::string_view key;
    const std::string_view token;
    const std::string_view metadata;
    const std::chrono::milliseconds ttl;

    // The connection's.
    place where = place::idle;
    bool with_text = false; // the server does not know the script
    bool was_late = false; // by a clock that was set since, perhaps: once more
    clock::time_point deadline{};
    std::size_t number = 0; // of the command, when sent
    redis_operation* before = nullptr;
    redis_operation* behind = nullptr;

    // The answer.
    std::optional<redis_trouble> trouble;
    bool yes = false;
    std::optional<fencing_token> fence;
    std::optional<std::chrono::milliseconds> remaining; // of whoever holds it; none: without end
    std::string value;

    /// Nothing is changed by it.
    bool only_looks() const noexcept { return what == kind::look || what == kind::look_at_ttl; }

    /// Called under the mutex, once.
    virtual void answered() noexcept = 0;

    /// The command, with its number. `not_after`: when it is too late to carry it out, by the server's clock.
    void write(redis_command_text out, const redis_settings& s,
               std::chrono::microseconds not_after) const;

    /// What the server's clock showed; none: that is no reply of a script of ours.
    static std::optional<std::chrono::microseconds> time_of(const redisReply& reply) noexcept;
    /// Whether a reply that has a time is to the command of this number.
    static bool is_answer_to(std::uint64_t command, const redisReply& reply) noexcept;
    /// Takes in such a reply.
    verdict read(const redisReply& reply);

protected:
    ~redis_operation() = default;

private:
    const redis_script& script() const noexcept;
    bool read_rest(const redisReply& reply);
};

inline const redis_script& redis_operation::script() const noexcept
{
    switch (what) {
        case kind::acquire:
            return redis_acquire;
        case kind::extend:
            return redis_extend;
        case kind::release:
            return redis_release;
        case kind::look_at_ttl:
            return redis_look_at_ttl;
        default:
            return redis_look;
    }
}

inline void redis_operation::write(redis_command_text out, const redis_settings& s,
                                   std::chrono::microseconds not_after) const
{
    const bool acquires = what == kind::acquire;
    const std::size_t arguments = only_looks() ? 2 : acquires ? 6 : 5;
    const std::size_t keys = acquires ? 2 : 1;
    out.begin(3 + keys + arguments);
    out.add(with_text ? "EVAL" : "EVALSHA");
    out.add(with_text ? script().text : script().name());
    out.add(acquires ? "2" : "1");
    out.add(s.lock_prefix, key);
    if (acquires)
        out.add(s.fence_key);
    out.add(std::to_string(not_after.count()));
    if (only_looks())
        return out.add(std::to_string(number));
    const std::string beginning = redis_value::beginning(token);
    out.add(beginning);
    // A token that looks like a value of ours must not be taken for one.
    out.add(redis_value::own(token) ? std::string_view{beginning} : token);
    if (what == kind::release)
        out.add(s.channel_prefix, key);
    else
        out.add(std::to_string(ttl.count()));
    if (acquires)
        out.add(metadata);
    out.add(std::to_string(number));
}

inline std::optional<std::chrono::microseconds> redis_operation::time_of(
    const redisReply& reply) noexcept
{
    if (reply.type != REDIS_REPLY_ARRAY || reply.elements < 2 ||
        reply.element[0]->type != REDIS_REPLY_INTEGER ||
        reply.element[1]->type != REDIS_REPLY_INTEGER)
        return std::nullopt;
    const long long shown = reply.element[0]->integer;
    return shown >= 0 && shown <= latest_redis_time.count()
               ? std::optional{std::chrono::microseconds{shown}}
               : std::nullopt;
}

inline bool redis_operation::is_answer_to(std::uint64_t command, const redisReply& reply) noexcept
{
    const redisReply& last = *reply.element[reply.elements - 1];
    return last.type == REDIS_REPLY_INTEGER && static_cast<std::uint64_t>(last.integer) == command;
}

inline auto redis_operation::read(const redisReply& reply) -> verdict
{
    const long long said = reply.element[1]->integer;
    if (said == -1)
        return verdict::too_late;
    if (said != 0 && said != 1)
        return verdict::nonsense;
    yes = said == 1;
    return read_rest(reply) ? verdict::answered : verdict::nonsense;
}

/// What follows the time and the yes or no, by what was asked.
inline bool redis_operation::read_rest(const redisReply& reply)
{
    const auto part = [&reply](std::size_t n, int type) {
        return n < reply.elements && reply.element[n]->type == type ? reply.element[n] : nullptr;
    };
    const auto read_ttl = [&](std::size_t n) {
        const redisReply* const ttl_part = part(n, REDIS_REPLY_INTEGER);
        if (ttl_part && ttl_part->integer >= 0)
            remaining = std::clamp(std::chrono::milliseconds{ttl_part->integer},
                                   std::chrono::milliseconds{1}, longest_ttl);
        return ttl_part != nullptr;
    };
    if (what == kind::acquire && yes) {
        const redisReply* const text = part(2, REDIS_REPLY_STRING);
        if (!text)
            return false;
        fencing_token f = 0;
        const auto digits = redis_text(*text);
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), f);
        if (error == std::errc{} && end == digits.data() + digits.size())
            fence = f;
        return fence || digits.empty();
    }
    if (what == kind::acquire || (what == kind::look_at_ttl && yes))
        return read_ttl(2);
    if (what == kind::look && yes) {
        const redisReply* const text = part(3, REDIS_REPLY_STRING);
        if (text)
            value = redis_text(*text);
        return text && read_ttl(2);
    }
    return true;
}

} // namespace amux::detail

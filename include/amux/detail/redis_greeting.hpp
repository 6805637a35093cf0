// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/redis_clock.hpp>
#include <amux/detail/redis_reply.hpp>
#include <amux/detail/redis_settings.hpp>
#include <amux/detail/redis_trouble.hpp>

#include <charconv>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace amux::detail {

/// The first words on a connection: who we are, and whether this is a server that can keep leases.
///
/// All commands go at once; their replies come in the same order.
class redis_greeting {
public:
    void begin(const redis_settings& s, std::string& out)
    {
        *this = {};
        redis_command_text text{out};
        if (!s.password.empty()) {
            steps_[count_++] = step::auth;
            text.begin(s.username.empty() ? 2 : 3);
            text.add("AUTH");
            if (!s.username.empty())
                text.add(s.username);
            text.add(s.password);
        }
        if (s.database != 0) {
            steps_[count_++] = step::select;
            text.begin(2);
            text.add("SELECT");
            text.add(std::to_string(s.database));
        }
        if (!s.client_name.empty()) {
            steps_[count_++] = step::name;
            text.begin(3);
            text.add("CLIENT");
            text.add("SETNAME");
            text.add(s.client_name);
        }
        steps_[count_++] = step::info;
        text.begin(1);
        text.add("INFO");
        steps_[count_++] = step::time;
        text.begin(1);
        text.add("TIME");
    }

    bool done() const noexcept { return next_ == count_; }

    /// Requires: not done.
    void on_reply(const redisReply& reply, const std::string& where)
    {
        const step s = steps_[next_++];
        const std::string_view text = redis_text(reply);
        if (reply.type == REDIS_REPLY_ERROR) {
            // Who may not ask for INFO, or give himself a name, gets on without.
            const bool needed = s == step::auth || s == step::select || s == step::time;
            const bool everywhere =
                !text.starts_with("NOPERM ") && !text.starts_with("ERR unknown");
            if (!error_ && (needed || everywhere))
                error_ =
                    s == step::auth ? refused_login(text, where) : redis_reply_trouble(text, where);
        } else if (s == step::info) {
            look_at_info(text, where);
        } else if (s == step::time) {
            read_time(reply, where);
        }
    }

    /// Why this server will not do. Requires: done.
    const std::optional<redis_trouble>& trouble() const noexcept
    {
        return unfit_ ? unfit_ : error_; // a Sentinel, say, answers the rest with errors
    }
    std::optional<std::chrono::microseconds> time() const noexcept { return time_; }

private:
    enum class step : unsigned char { auth, select, name, info, time };

    /// "\nname:value\r\n"
    static std::string_view field(std::string_view info, std::string_view name)
    {
        for (std::size_t at = info.find(name); at != std::string_view::npos;
             at = info.find(name, at + 1)) {
            if ((at != 0 && info[at - 1] != '\n') ||
                !info.substr(at + name.size()).starts_with(':'))
                continue;
            info.remove_prefix(at + name.size() + 1);
            return info.substr(0, info.find_first_of("\r\n"));
        }
        return {};
    }

    /// Some servers repeat what they do not take, password and all: of their text the first word is told, if it is one of
    /// those in capitals.
    static redis_trouble refused_login(std::string_view text, const std::string& where)
    {
        constexpr std::string_view capitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        redis_trouble t{backend_error_kind::not_applied,
                        "the Redis server at " + where + " refuses AUTH"};
        const std::string_view code = text.substr(0, text.find_first_not_of(capitals));
        if (!code.empty() && text.substr(code.size()).starts_with(' '))
            t.text.append(": ").append(code);
        const redis_error_meaning* const m = redis_meaning_of(text);
        if (!m)
            return t;
        t.kind = m->kind;
        if (text.starts_with("ERR unknown command"))
            t.text.append("; it has no such command");
        else if (!m->hint.empty())
            t.text.append("; ").append(m->hint);
        return t;
    }

    void look_at_info(std::string_view info, const std::string& where)
    {
        const auto unfit = [&](std::string text) {
            unfit_ = redis_trouble{backend_error_kind::permanent,
                                   "the Redis server at " + where + " " + std::move(text)};
        };
        const auto policy = field(info, "maxmemory_policy");
        const auto limit = field(info, "maxmemory");
        if (field(info, "redis_mode") == "sentinel")
            unfit("is a Sentinel: ask it for the primary, and connect to that");
        else if (field(info, "role") == "slave")
            unfit("is a replica: connect to its primary, " +
                  std::string{field(info, "master_host")} + ":" +
                  std::string{field(info, "master_port")});
        else if (!limit.empty() && limit != "0" && !policy.empty() && policy != "noeviction")
            unfit("would evict leases when it is full (maxmemory-policy " + std::string{policy} +
                  "): set maxmemory-policy noeviction, or use a server of its own");
    }

    void read_time(const redisReply& reply, const std::string& where)
    {
        using std::chrono::duration_cast;
        using std::chrono::seconds;
        // None for what is no number, or no time.
        const auto number = [](const redisReply& part) -> std::optional<long long> {
            const std::string_view digits = redis_text(part);
            long long n = 0;
            const auto [end, error] =
                std::from_chars(digits.data(), digits.data() + digits.size(), n);
            const bool fits = error == std::errc{} && end == digits.data() + digits.size() &&
                              n >= 0 && n <= duration_cast<seconds>(latest_redis_time).count();
            return fits ? std::optional{n} : std::nullopt;
        };
        const bool two = reply.type == REDIS_REPLY_ARRAY && reply.elements == 2;
        const auto whole = two ? number(*reply.element[0]) : std::nullopt;
        const auto rest = two ? number(*reply.element[1]) : std::nullopt;
        if (whole && rest)
            time_ = seconds{*whole} + std::chrono::microseconds{*rest};
        else if (!error_)
            error_ = redis_trouble{backend_error_kind::not_applied,
                                   "the Redis server at " + where + " does not tell its time"};
    }

    step steps_[5]{};
    std::size_t count_ = 0;
    std::size_t next_ = 0;
    std::optional<redis_trouble> unfit_;
    std::optional<redis_trouble> error_;
    std::optional<std::chrono::microseconds> time_;
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/error.hpp>

#include <array>
#include <string>
#include <string_view>

namespace amux::detail {

/// Why an operation has failed, or a connection cannot be had.
struct redis_trouble {
    backend_error_kind kind = backend_error_kind::not_applied;
    std::string text;
};

/// What the server's error replies mean.
struct redis_error_meaning {
    std::string_view beginning;
    backend_error_kind kind;
    std::string_view hint; // what to do about it; empty: the server's text says it all
};

/// First that fits. What is `not_applied` here the server refuses before it carries anything out, or at the first
/// command of a script that would change something.
inline constexpr std::array redis_error_meanings{
    redis_error_meaning{"LOADING ", backend_error_kind::not_applied, ""},
    redis_error_meaning{"MASTERDOWN ", backend_error_kind::not_applied, ""},
    redis_error_meaning{"BUSY ", backend_error_kind::not_applied, "another script keeps it"},
    redis_error_meaning{"UNKILLABLE ", backend_error_kind::not_applied, ""},
    redis_error_meaning{"TRYAGAIN ", backend_error_kind::not_applied, ""},
    redis_error_meaning{"CLUSTERDOWN ", backend_error_kind::not_applied, ""},
    redis_error_meaning{"OOM ", backend_error_kind::not_applied,
                        "it is full; leases that are held can still be extended and released"},
    redis_error_meaning{"MISCONF ", backend_error_kind::not_applied, "it cannot write to its disk"},
    redis_error_meaning{"NOREPLICAS ", backend_error_kind::not_applied, ""},
    redis_error_meaning{"READONLY ", backend_error_kind::not_applied,
                        "it has become a replica; the next attempt connects anew"},
    redis_error_meaning{"NOSCRIPT ", backend_error_kind::not_applied, ""},
    redis_error_meaning{"ERR max number of clients", backend_error_kind::not_applied,
                        "raise maxclients"},
    redis_error_meaning{
        "MOVED ", backend_error_kind::permanent,
        "this prefix is served by another node of the cluster: connect to that one"},
    redis_error_meaning{"ASK ", backend_error_kind::permanent,
                        "this prefix moves to another node of the cluster: connect to that one"},
    redis_error_meaning{
        "CROSSSLOT ", backend_error_kind::permanent,
        "what stands between it and amux does not keep names with one {prefix} together"},
    redis_error_meaning{"NOPERM ", backend_error_kind::permanent,
                        "the ACL user lacks a right that amux needs"},
    redis_error_meaning{"ERR The user executing the script can't ", backend_error_kind::permanent,
                        "the ACL user lacks a right that amux needs"},
    redis_error_meaning{"The user executing the script can't ", backend_error_kind::permanent,
                        "the ACL user lacks a right that amux needs"},
    redis_error_meaning{"NOAUTH ", backend_error_kind::permanent, "it wants a password"},
    redis_error_meaning{"WRONGPASS ", backend_error_kind::permanent,
                        "user name or password are wrong"},
    redis_error_meaning{"ERR invalid password", backend_error_kind::permanent, ""},
    redis_error_meaning{"ERR Client sent AUTH", backend_error_kind::permanent,
                        "it has no password"},
    redis_error_meaning{"ERR AUTH ", backend_error_kind::permanent, "it has no password"},
    redis_error_meaning{"ERR DB index", backend_error_kind::permanent, "there is no such database"},
    redis_error_meaning{"ERR invalid DB index", backend_error_kind::permanent,
                        "there is no such database"},
    redis_error_meaning{"ERR SELECT ", backend_error_kind::permanent, "it has database 0 only"},
    redis_error_meaning{"WRONGTYPE ", backend_error_kind::permanent,
                        "what is kept under that name is not a lease: delete it, or use another "
                        "key prefix"},
    redis_error_meaning{"ERR value is not an integer", backend_error_kind::permanent,
                        "the counter of fences was overwritten: delete it"},
    redis_error_meaning{"ERR increment or decrement", backend_error_kind::permanent,
                        "the counter of fences is at its end: delete it"},
    redis_error_meaning{"ERR unknown command", backend_error_kind::permanent,
                        "amux needs scripts: EVAL and EVALSHA, Redis 5 or newer"},
    redis_error_meaning{"ERR Unknown Redis command", backend_error_kind::permanent,
                        "amux needs scripts: EVAL and EVALSHA, Redis 5 or newer"},
    redis_error_meaning{"ERR Write commands not allowed after", backend_error_kind::permanent,
                        "amux needs Redis 5 or newer"},
};

/// The error of the command in a script that has failed. Servers before 7 put words of their own in front of it:
/// "ERR Error running script (call to f_...): @user_script:3: OOM command not allowed".
inline std::string_view redis_inner_error(std::string_view reply)
{
    constexpr std::string_view mark = "@user_script:";
    if (!reply.starts_with("ERR Error running script"))
        return reply;
    const auto at = reply.rfind(mark);
    const auto behind = at == std::string_view::npos ? at : reply.find(": ", at + mark.size());
    if (behind == std::string_view::npos)
        return reply;
    reply.remove_prefix(behind + 2);
    if (reply.starts_with('-'))
        reply.remove_prefix(1);
    return reply;
}

/// What the table says of an error; null: nothing.
inline const redis_error_meaning* redis_meaning_of(std::string_view error)
{
    for (const auto& m : redis_error_meanings) {
        if (error.starts_with(m.beginning))
            return &m;
    }
    return nullptr;
}

/// An error reply, judged. What is not in the table is `indeterminate`: a script may have failed half way.
inline redis_trouble redis_reply_trouble(std::string_view reply, const std::string& where)
{
    redis_trouble t{backend_error_kind::indeterminate,
                    "the Redis server at " + where + " says: " + std::string{reply}};
    if (const redis_error_meaning* const m = redis_meaning_of(redis_inner_error(reply))) {
        t.kind = m->kind;
        if (!m->hint.empty())
            t.text.append("; ").append(m->hint);
    }
    return t;
}

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
// Without this file nobody knows whether the conformance suite can fail.
#pragma once

#include <amux/lock_backend.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/memory_backend.hpp>
#include <amux/task.hpp>

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

namespace support {

/// The mistakes that an author of a backend may make.
enum class mistake {
    none,
    acquire_steals,
    acquire_refused_to_owner,
    acquire_again_keeps_ttl,
    acquire_again_takes_longer_only,
    acquire_looks_then_takes,
    refusal_lengthens,
    extend_creates,
    extend_asks_no_owner,
    extend_says_yes,
    extend_only_lengthens,
    release_asks_no_owner,
    release_does_nothing,
    release_of_expired_is_true,
    get_hides_holder,
    ttl_in_seconds,
    ttl_at_most_an_hour,
    ttl_cut_short,
    keys_end_at_nul,
    keys_ignore_case,
    keys_end_at_kilobyte,
    keys_share_release,
    fence_stays,
    fence_new_for_owner,
    fence_begins_anew,
    holder_ttl_too_small,
    holder_ttl_too_large,
    metadata_lost,
    metadata_cut_at_nul,
    metadata_of_refused,
    inspect_finds_expired,
    inspect_tells_whole_ttl,
    wait_for_free_hangs,
    wait_sleeps_through_release,
    wait_ignores_stop,
    operation_hangs,
    operation_throws,
};
inline constexpr int mistakes = static_cast<int>(mistake::operation_throws) + 1;

/// A store in memory with one mistake.
class broken_backend {
public:
    using milliseconds = std::chrono::milliseconds;

    broken_backend(mistake m, amux::manual_event_loop& loop)
        : mistake_{m}, loop_{loop}, store_{loop}
    {}

    amux::task<amux::acquire_result> acquire(std::string_view k, std::string_view t,
                                             milliseconds ttl, std::string_view metadata = {})
    {
        return acquire_now(stored(k), std::string{t}, length(ttl), std::string{metadata});
    }
    amux::task<bool> extend(std::string_view k, std::string_view t, milliseconds ttl)
    {
        return extend_now(stored(k), std::string{t}, length(ttl));
    }
    amux::task<bool> release(std::string_view k, std::string_view t)
    {
        return release_now(stored(k), std::string{t});
    }
    amux::task<std::optional<std::string>> get(std::string_view k) { return get_now(stored(k)); }
    amux::task<std::optional<amux::lease_info>> inspect(std::string_view k)
    {
        return inspect_now(stored(k));
    }
    amux::task<> wait_for_release(std::string_view k, std::stop_token stop)
    {
        return wait_now(stored(k), stop);
    }

private:
    bool is(mistake m) const { return mistake_ == m; }

    std::string stored(std::string_view k) const
    {
        std::string key{k};
        if (is(mistake::keys_end_at_nul))
            key = key.substr(0, key.find('\0'));
        if (is(mistake::keys_end_at_kilobyte))
            key = key.substr(0, 1'024);
        if (is(mistake::keys_ignore_case))
            std::replace(key.begin(), key.end(), 'A', 'a');
        return key;
    }
    milliseconds length(milliseconds ttl) const
    {
        if (is(mistake::ttl_in_seconds))
            return std::chrono::ceil<std::chrono::seconds>(ttl);
        if (is(mistake::ttl_cut_short))
            return ttl - milliseconds{1};
        if (is(mistake::ttl_at_most_an_hour) && ttl > std::chrono::hours{1})
            throw amux::backend_error{amux::backend_error_kind::permanent, "ttl too long"};
        return ttl;
    }

    std::optional<std::string> holder(const std::string& k) { return store_.get(k).await_resume(); }
    milliseconds left(const std::string& k)
    {
        const auto found = store_.inspect(k).await_resume();
        return found ? *found->remaining : milliseconds{};
    }

    amux::task<amux::acquire_result> acquire_now(std::string k, std::string t, milliseconds ttl,
                                                 std::string metadata)
    {
        if (is(mistake::operation_hangs))
            co_await std::suspend_always{};
        if (is(mistake::acquire_looks_then_takes)) {
            const auto seen = holder(k);
            co_await loop_.schedule();
            if (const auto now = holder(k); !seen && now)
                store_.release(k, *now);
        }
        const auto before = holder(k);
        const bool again = before == t;
        const bool refused = before && !again;
        if (is(mistake::acquire_steals) && refused)
            store_.release(k, *before);
        if (is(mistake::acquire_refused_to_owner) && again)
            co_return amux::acquire_result{};
        if (is(mistake::acquire_again_keeps_ttl) && again)
            ttl = left(k);
        if (is(mistake::acquire_again_takes_longer_only) && again)
            ttl = (std::max)(ttl, left(k));
        if (is(mistake::refusal_lengthens) && refused)
            store_.extend(k, *before, ttl);
        if (is(mistake::metadata_lost))
            metadata.clear();
        if (is(mistake::metadata_cut_at_nul))
            metadata = metadata.substr(0, metadata.find('\0'));
        if (is(mistake::metadata_of_refused) && refused) {
            const auto rest = left(k);
            store_.release(k, *before);
            store_.acquire(k, *before, rest, metadata);
        }
        auto result = store_.acquire(k, t, ttl, metadata).await_resume();
        if (result.acquired)
            last_[k] = {t, ttl};
        if (is(mistake::fence_stays) && result.fence)
            result.fence = 1;
        if (is(mistake::fence_new_for_owner) && result.fence)
            result.fence = ++fence_;
        if (is(mistake::fence_begins_anew) && result.fence)
            result.fence = again ? fences_[k] : (t == "b" ? fences_[k] = 1 : ++fences_[k]);
        if (is(mistake::holder_ttl_too_small) && result.holder_ttl)
            result.holder_ttl = milliseconds{1};
        if (is(mistake::holder_ttl_too_large) && result.holder_ttl)
            result.holder_ttl = 10 * *result.holder_ttl;
        co_return result;
    }

    amux::task<bool> extend_now(std::string k, std::string t, milliseconds ttl)
    {
        const auto who = holder(k);
        if (is(mistake::extend_creates) && !who) {
            store_.acquire(k, t, ttl);
            co_return true;
        }
        if (is(mistake::extend_asks_no_owner) && who)
            t = *who;
        if (is(mistake::extend_only_lengthens))
            ttl = (std::max)(ttl, left(k));
        const bool done = store_.extend(k, t, ttl).await_resume();
        co_return done || is(mistake::extend_says_yes);
    }

    amux::task<bool> release_now(std::string k, std::string t)
    {
        const auto who = holder(k);
        if (is(mistake::release_does_nothing))
            co_return who == t;
        if (is(mistake::release_asks_no_owner) && who)
            t = *who;
        if (is(mistake::release_of_expired_is_true) && !who && last_[k].first == t) {
            last_.erase(k);
            co_return true;
        }
        const bool done = store_.release(k, t).await_resume();
        last_.erase(k);
        if (is(mistake::keys_share_release) && done) {
            for (const auto& [key, lease] : last_)
                store_.release(key, lease.first == "b" ? "b" : "");
        }
        co_return done;
    }

    amux::task<std::optional<std::string>> get_now(std::string k)
    {
        if (is(mistake::operation_throws))
            throw amux::backend_error{amux::backend_error_kind::permanent, "not today"};
        auto who = holder(k);
        if (is(mistake::get_hides_holder))
            who.reset();
        co_return who;
    }

    amux::task<std::optional<amux::lease_info>> inspect_now(std::string k)
    {
        auto found = store_.inspect(k).await_resume();
        if (!found && is(mistake::inspect_finds_expired) && last_.contains(k))
            found.emplace().token = last_[k].first;
        if (found && is(mistake::inspect_tells_whole_ttl))
            found->remaining = last_[k].second;
        co_return found;
    }

    amux::task<> wait_now(std::string k, std::stop_token stop)
    {
        const bool free = !holder(k);
        if (is(mistake::wait_for_free_hangs) && free)
            co_await std::suspend_always{};
        if (is(mistake::wait_sleeps_through_release) && !free && !stop.stop_possible())
            co_await std::suspend_always{};
        if (is(mistake::wait_ignores_stop))
            stop = {};
        co_await store_.wait_for_release(k, stop);
    }

    mistake mistake_;
    amux::manual_event_loop& loop_;
    amux::memory_backend store_;
    std::map<std::string, std::pair<std::string, milliseconds>> last_;
    std::map<std::string, amux::fencing_token> fences_;
    amux::fencing_token fence_ = 0;
};

} // namespace support

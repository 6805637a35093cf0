// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/asyncmux_options.hpp>
#include <amux/detail/fatal.hpp>
#include <amux/detail/lock_records.hpp>
#include <amux/detail/mux_core.hpp>
#include <amux/detail/reentrancy.hpp>
#include <amux/error.hpp>
#include <amux/snapshot.hpp>

#include <string>

namespace amux::detail {

/// A mux as its guards and awaiters see it: the core, and what only messages and options need.
template <class Core>
struct mux_body : Core {
    using core = Core;
    using block = typename Core::block;

    /// What an option has asked for; then every lock that is awaited has a block.
    struct extras {
        explicit extras(const asyncmux_options& o) noexcept
            : prevents_reentrancy{o.prevent_reentrancy},
              keeps_records{o.record_requests || o.deadlocks},
              records{o.name, o.deadlocks, o.time, &text_of}
        {}

        const bool prevents_reentrancy;
        const bool keeps_records;
        reentrancy_registry<Core> holding;
        lock_records records;
    };

    explicit mux_body(const asyncmux_options& o)
        : Core{o.max_waiters}, name{o.name}, extra{wants_extras(o) ? new extras{o} : nullptr}
    {}
    mux_body(const mux_body&) = delete;
    mux_body& operator=(const mux_body&) = delete;
    ~mux_body() { delete extra; }

    /// Null: none are kept.
    lock_records* records() const noexcept
    {
        return extra && extra->keeps_records ? &extra->records : nullptr;
    }

    /// An attempt that nobody awaits: the record says so little.
    template <class Keys>
    block* try_recorded(const Keys& keys, typename Core::mask over, lock_mode mode)
    {
        const recorded_request by{records(), nullptr, {}, false};
        return Core::try_many(keys, over, mode, by.records ? &by : nullptr);
    }

    using Core::downgrade;
    void downgrade(block& b) noexcept
    {
        if (extra)
            extra->holding.set_shared(b);
        else
            b.mode = lock_mode::shared;
        Core::downgrade(b);
    }

    auto snapshot() { return Core::snapshot(name, records()); }

    [[noreturn]] void destroyed_in_use() noexcept
    {
        const std::string who = records() ? records()->in_words() : std::string{};
        fatal("an asyncmux is destroyed while it is held or waited for:",
              ((*name ? name : "(it has no name)") + who).c_str());
    }

    const char* const name;
    extras* const extra; // null: none

private:
    static bool wants_extras(const asyncmux_options& o) noexcept
    {
        return o.prevent_reentrancy || o.deadlocks || o.record_requests;
    }

    static std::string text_of(const void* of)
    {
        const block& b = *static_cast<const block*>(of);
        if (b.whole)
            return "the whole mux";
        std::string text;
        for (const auto& p : b) {
            const std::string key = key_text(Core::entry_of(p).key);
            text += text.empty() ? "" : ", ";
            text += key.empty() ? "(a key)" : in_quotes(key);
        }
        return text;
    }
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/context.hpp>
#include <amux/detail/intrusive_hash.hpp>
#include <amux/detail/mux_core.hpp>
#include <amux/detail/spin_lock.hpp>
#include <amux/error.hpp>

#include <cstdint>
#include <string>

namespace amux::detail {

/// Which context holds what: the blocks of a mux's guards, by the context that was granted them.
///
/// A block stands here from the moment its coroutine has the guard until just before the release, wherever the guard is
/// moved meanwhile. Its mutex is never taken together with a shard's. Thread-safety: by the mux's policy.
template <class Core>
class reentrancy_registry {
public:
    using block = typename Core::block;

    void add(block& b, std::uint64_t context_id) noexcept
    {
        const lock_scope l{mutex_};
        b.hash = context_id;
        blocks_.insert(b);
    }

    /// Does nothing for a block that was never added.
    void remove(block& b) noexcept
    {
        const lock_scope l{mutex_};
        if (b.hash == 0)
            return;
        blocks_.erase(b);
        b.hash = 0;
    }

    /// A request of a descendant may be looking at the mode, on another thread.
    void set_shared(block& b) noexcept
    {
        const lock_scope l{mutex_};
        b.mode = lock_mode::shared;
    }

    /// A block, held by this context or by one that awaits it, that a request for `keys` would wait for without end:
    /// whatever the modes, because a writer may queue between two readers. Returns true, and sets `held` and, when that is
    /// a key, the text of `same`, if there is.
    template <class Keys>
    bool would_wait_for_itself(const context* asking, const Keys& keys, lock_mode& held,
                               std::string& same)
    {
        const lock_scope l{mutex_};
        for (const context* c = asking; c; c = c->parent()) {
            const auto overlaps = [&](block& mine) { return overlap(mine, keys, same); };
            if (const block* const b = blocks_.find(c->id(), overlaps).node) {
                held = b->mode;
                return true;
            }
        }
        return false;
    }

private:
    static bool overlap(block&, whole_mux, std::string&) noexcept { return true; }
    template <class Keys>
    static bool overlap(block& mine, const Keys& keys, std::string& same)
    {
        if (mine.whole)
            return keys.size() != 0; // no keys at all: nothing is waited for
        bool found = false;
        keys.for_each([&](const auto& key) {
            for (auto& place : mine) {
                if (found || !Core::is_key_of(place, key))
                    continue;
                found = true;
                same = key_text(key);
            }
        });
        return found;
    }

    typename Core::threading::mutex mutex_;
    intrusive_hash<block> blocks_;
};

} // namespace amux::detail

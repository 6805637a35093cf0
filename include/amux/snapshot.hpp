// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/lock_mode.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace amux {

/// Who holds and who waits for one thing, at one moment.
struct lock_counts {
    /// How it is held; none: it is not.
    std::optional<lock_mode> mode;
    /// Granted, whether resumed yet or not.
    std::size_t holders = 0;
    /// Requests that wait; one that has reserved it and waits for others counts.
    std::size_t waiters = 0;
    /// Of the holders.
    std::size_t granted_not_resumed = 0;
};

/// Who holds and who waits for one key.
template <class Key>
struct key_snapshot : lock_counts {
    /// Copies the key.
    key_snapshot(const lock_counts& counts, const Key& k) : lock_counts{counts}, key(k) {}
    /// A copy.
    Key key;
};

/// The state of a mux at one moment, for people: `<amux/format.hpp>` prints it.
template <class Key>
struct mux_snapshot {
    /// The option `name`.
    std::string name;
    /// Whether `close()` was called.
    bool closed = false;
    /// Locks without a key.
    lock_counts whole;
    /// Those that are held or waited for, in no order.
    std::vector<key_snapshot<Key>> keys;
};

} // namespace amux

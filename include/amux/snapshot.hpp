// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/lock_mode.hpp>
#include <amux/source_location.hpp>

#include <cstddef>
#include <cstdint>
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

/// A request of a mux that records them: who holds or waits.
template <class Key>
struct request_snapshot {
    /// Order of arrival; no other request of the mux ever has it.
    std::uint64_t number = 0;
    /// Who asked: `context::id()`; 0 for a coroutine whose type has no context, and for `try_lock`.
    std::uint64_t context = 0;
    /// Where it was awaited; line 0 when that is not known.
    source_location where;
    /// What it is for: copies; none for the whole mux.
    std::vector<Key> keys;
    /// It is for the whole mux.
    bool whole = false;
    /// How.
    lock_mode mode = lock_mode::exclusive;
    /// It holds its lock; if not, it waits.
    bool granted = false;
    /// How long it has waited, or waited until it was granted.
    clock::duration waited{};
    /// How long it has held its lock; zero while it waits.
    clock::duration held{};
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
    /// With `record_requests`, or a detector of deadlocks: who holds and who waits, in order of arrival.
    std::vector<request_snapshot<Key>> requests;
};

} // namespace amux

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
    std::optional<lock_mode> mode; // none: not held
    std::size_t holders = 0; // granted, whether resumed yet or not
    std::size_t waiters = 0;
    std::size_t granted_not_resumed = 0; // of the holders
};

template <class Key>
struct key_snapshot : lock_counts {
    key_snapshot(const lock_counts& counts, const Key& k) : lock_counts{counts}, key(k) {}
    Key key;
};

/// The state of a mux at one moment, for people: `<amux/format.hpp>` prints it.
template <class Key>
struct mux_snapshot {
    std::string name;
    bool closed = false;
    lock_counts whole; // locks without a key
    std::vector<key_snapshot<Key>> keys; // held or waited for, in no order
};

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
// Without this file nobody says whether what a mux did in a schedule is what the rule allows.
#pragma once

#include "schedules/policy.hpp"
#include "support/model.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

namespace schedules {

/// The requests of one mux as its observer sees them, in the order in which things happen, against the rule of admission:
/// at each grant nothing held, and nobody who waits since earlier, is in conflict; whenever no internal lock is held,
/// nobody waits whom nothing holds back.
///
/// The mux does not say when a downgrade happens, nor when the frame of one who waits is destroyed: both are between the
/// begin and the end of the call, and within its internal locks; so until the thread that calls has dropped a lock, the
/// other threads must see it undone, and after that both are taken for possible until the call ends.
class history {
public:
    static constexpr int most = 8;
    enum class state : std::uint8_t { absent, waits, held, released, left };

    void clear() noexcept
    {
        for (entry& e : all_)
            e = {};
        last_ticket_ = 0;
        closed_ = false;
    }

    state of(int id) const noexcept { return at(id).now; }
    bool has_been_told(int id) const noexcept { return at(id).told; }
    bool closed() const noexcept { return closed_; }
    /// How often something has happened.
    std::uint64_t changes() const noexcept { return changes_; }
    /// Whether nothing would be in the way of a newcomer.
    bool admits(const walks::wanted& what) const
    {
        return !closed_ && std::none_of(all_.begin(), all_.end(), [&](const entry& e) {
            return (e.now == state::held || e.now == state::waits) && walks::conflict(e.what, what);
        });
    }
    bool idle() const noexcept
    {
        for (const entry& e : all_) {
            if (e.now == state::waits || e.now == state::held)
                return false;
        }
        return true;
    }

    void waits(int id, const walks::wanted& what)
    {
        ++changes_;
        entry& e = at(id);
        require(e.now == state::absent, "a request waits that was there before");
        require(!closed_, "a request waits though the mux is closed");
        require(!e.stopped, "a request waits though its stop has returned");
        e.what = what;
        e.ticket = ++last_ticket_;
        e.now = state::waits;
        require(is_held_back(e), "a request waits though nothing is in its way");
    }

    void granted_at_once(int id, const walks::wanted& what)
    {
        ++changes_;
        entry& e = at(id);
        require(e.now == state::absent, "a request is granted at once that was there before");
        require(!closed_, "a request is granted though the mux is closed");
        e.what = what;
        e.ticket = ++last_ticket_;
        require_admitted(e);
        e.now = state::held;
    }

    void granted(int id)
    {
        ++changes_;
        entry& e = at(id);
        require(e.now == state::waits, "a request is granted that does not wait");
        require_admitted(e);
        if (internal_locks::held == internal_locks::of_this_thread()) {
            for (const entry& other : all_) {
                require(other.now != state::waits || other.pending || other.ticket >= e.ticket ||
                            is_held_back(other),
                        "requests are granted, but not in order of arrival");
            }
        }
        e.now = state::held;
        e.told = true;
    }

    void released(int id)
    {
        ++changes_;
        entry& e = at(id);
        require(e.now == state::held, "a lock is released that is not held");
        e.now = state::released;
    }

    /// Its wait is over, without a grant.
    void leaves(int id)
    {
        ++changes_;
        entry& e = at(id);
        require(e.now == state::waits, "a request leaves that does not wait");
        require(e.may_leave || e.pending || closed_, "a request leaves for no reason");
        e.now = state::left;
        e.told = true;
    }

    /// From now on it may leave: it is being stopped, or its time is over.
    void may_leave(int id) noexcept { at(id).may_leave = true; }

    void stop_has_returned(int id)
    {
        entry& e = at(id);
        e.stopped = true;
        // One that is being destroyed hears of no stop.
        require(e.now != state::waits || e.pending, "a request waits though its stop has returned");
    }

    void closes()
    {
        ++changes_;
        require(internal_locks::of_this_thread() != 0, "a mux is closed outside of its locks");
        closed_ = true;
    }

    /// A call that the mux does not speak of begins, and ends.
    void begin_change(int id) noexcept
    {
        entry& e = at(id);
        e.pending = true;
        e.pending_by = thread() < 0 ? 3 : thread();
        e.unlocks_before = internal_locks::unlocks[e.pending_by];
    }
    void end_change(int id)
    {
        ++changes_;
        apply(at(id));
        if (internal_locks::held == 0)
            check_quiet();
    }

    void check_quiet() const
    {
        for (const entry& e : all_) {
            require(e.now != state::waits || e.pending || is_held_back(e),
                    "somebody waits whom nothing holds back");
        }
    }

private:
    struct entry {
        walks::wanted what{};
        std::uint64_t ticket = 0;
        int unlocks_before = 0;
        int pending_by = 0;
        state now = state::absent;
        bool pending = false; // is being downgraded, if held, or destroyed, if it waits
        bool told = false;
        bool may_leave = false;
        bool stopped = false;
    };

    const entry& at(int id) const noexcept { return all_[static_cast<std::size_t>(id)]; }
    entry& at(int id) noexcept { return all_[static_cast<std::size_t>(id)]; }

    static bool ahead(const entry& other, const entry& e) noexcept
    {
        return other.now == state::held || (other.now == state::waits && other.ticket < e.ticket);
    }

    bool is_held_back(const entry& e) const
    {
        for (const entry& other : all_) {
            if (&other != &e && ahead(other, e) && walks::conflict(other.what, e.what))
                return true;
        }
        return false;
    }

    void require_admitted(const entry& e)
    {
        for (entry& other : all_) {
            if (&other == &e || !ahead(other, e) || !walks::conflict(other.what, e.what))
                continue;
            if (other.pending && has_acted(other))
                apply(other);
            if (ahead(other, e) && walks::conflict(other.what, e.what))
                fail(other.now == state::held ? "a lock is granted beside one in conflict"
                                              : "a lock is granted before an earlier request");
        }
    }

    static bool has_acted(const entry& e) noexcept
    {
        return e.pending_by == (thread() < 0 ? 3 : thread()) ||
               internal_locks::unlocks[e.pending_by] != e.unlocks_before;
    }

    static void apply(entry& e) noexcept
    {
        if (!e.pending)
            return;
        e.pending = false;
        if (e.now == state::waits)
            e.now = state::left;
        else if (e.now == state::held)
            e.what.mode = walks::lock_mode::shared;
    }

    std::array<entry, most> all_{};
    std::uint64_t last_ticket_ = 0;
    std::uint64_t changes_ = 0;
    bool closed_ = false;
};

} // namespace schedules

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/holders.hpp>
#include <amux/detail/intrusive_list.hpp>
#include <amux/lock_mode.hpp>

#include <cstdint>

namespace amux::detail {

/// The one rule of admission, as arithmetic over counters and lists: no threads, no coroutines, no memory.
///
/// A request is granted at the first moment when it conflicts with no lock that is held and with no earlier request
/// that still waits. It asks for *places*: one for each key, or, for the whole mux, one in every shard (a *wall*). A
/// place is occupied or waits; a request is granted when all its places are occupied. A place that is occupied while
/// its request still waits for others is a reservation, and holds followers back as a lock does.
///
/// Keys are spread over shards; each shard is ruled by a `shard_state`, under the shard's lock. A request that has
/// places in several shards arrives, and leaves, with all their locks held; so any two requests stand in the same order
/// everywhere, waits point to earlier requests only, and there is no deadlock. `Counter` counts down the places that a
/// request still lacks: openers in different shards may do so at the same moment.
template <class Counter>
struct admission {
    struct place;
    struct key_state;

    struct request {
        request* next = nullptr; // in the list of those that are granted; a request is granted once
        std::uint64_t ticket = 0; // order of arrival among those that wait
        Counter missing{0}; // waiting places, when there are several
        lock_mode mode = lock_mode::exclusive;
        bool several = false; // false: the only place, once occupied, grants
    };

    struct place {
        place* queue_prev; // among those that wait for the key
        place* queue_next;
        place* line_prev; // among those that walls hold back, and the waiting walls
        place* line_next;
        key_state* key; // null: a wall
        request* owner;
        bool in_line;
        bool occupied;
    };

    /// What is held of one key, and who waits for it, in order of arrival.
    struct key_state {
        holders held; // occupied places
        intrusive_list<place, &place::queue_prev, &place::queue_next> queue;

        bool idle() const noexcept { return held.none() && queue.empty(); }
    };

    /// The requests that one step has granted, in the order in which they are to be resumed once `sort`ed.
    class granted_list {
    public:
        void push(request& r) noexcept;
        /// Puts them in order of arrival. Complexity: constant when they stand so already, O(n log n) at worst.
        void sort() noexcept;
        request* first() const noexcept { return first_; }

    private:
        static request* merge(request* a, request* b) noexcept;

        request* first_ = nullptr;
        request* last_ = nullptr; // not kept by `sort`: nothing is pushed after it
        bool in_order_ = true;
    };

    class shard_state;
};

/// One shard: what is held in it, and whom its walls hold back.
///
/// `line_` holds, in order of arrival, the waiting walls and the keyed places that a wall holds back: an exclusive one
/// that any wall, held or waiting ahead, conflicts with; a shared one that an exclusive wall does. A place that is not
/// in line waits for its key alone. So a waiting place is *clear*, to be occupied at once,
///
///   - on a key: at the head of the key's queue, not in line, and the key has room;
///   - a wall: when it is the first waiting wall, no exclusive place waits ahead of it, and nothing is occupied that it
///     conflicts with. (A shared place that waits ahead needs no count: an exclusive one ahead of it does for it.)
///
/// Between two calls no waiting place is clear. Clear, once true, stays true until the place is occupied or leaves,
/// because only later ones arrive; so the order in which places are looked at is free. No walk visits a place more than
/// twice in its life: `first_wall_` and `first_exclusive_wall_` only move towards the end of the line.
template <class Counter>
class admission<Counter>::shard_state {
public:
    /// Would a newcomer be granted now?
    bool admits(const key_state& key, lock_mode mode) const noexcept
    {
        return !walled(mode) && key.queue.empty() && key.held.admit(mode);
    }
    /// The same for a key on which nothing is held or waited for.
    bool admits_new_key(lock_mode mode) const noexcept { return !walled(mode); }
    bool admits_wall(lock_mode mode) const noexcept { return !first_wall_ && wall_fits(mode); }

    /// A newcomer that is admitted takes what it asked for.
    void occupy(key_state& key, lock_mode mode) noexcept
    {
        key.held.add(mode);
        keys_.add(mode);
    }
    void occupy_wall(lock_mode mode) noexcept { walls_.add(mode); }

    /// A newcomer that is not admitted waits. Requires: the owner's ticket is drawn.
    void append(place& p) noexcept;

    /// What is held is given back; whoever is clear now is occupied, and granted when it lacks nothing more.
    void leave(key_state& key, lock_mode mode, granted_list& granted) noexcept;
    /// The two halves of `leave`: gives back, and says whether anybody waits who might be clear now; occupies those.
    bool vacate(key_state& key, lock_mode mode) noexcept
    {
        vacate_place(key, mode);
        return first_wall_ || !key.queue.empty();
    }
    void admit(key_state& key, granted_list& granted) noexcept;
    /// The commonest case of `admit`: with no wall about, the head of the queue takes an exclusive lock on this key alone.
    /// Requires: `vacate` says that somebody waits. Returns: its place; null when it is not so, and nothing was done.
    place* hand_over(key_state& key) noexcept
    {
        place* const p = key.queue.front();
        if (!walls_idle() || !key.held.none() || !is_exclusive(*p) || p->owner->several)
            return nullptr;
        key.queue.pop_front();
        --exclusive_ahead_;
        p->occupied = true;
        occupy(key, lock_mode::exclusive);
        return p;
    }
    void leave_wall(lock_mode mode, granted_list& granted) noexcept
    {
        walls_.remove(mode);
        if (!line_.empty()) [[unlikely]]
            open_line(mode, granted);
    }
    /// A waiting place is taken out, with the same effects.
    void withdraw(place& p, granted_list& granted) noexcept;
    /// Exclusive becomes shared, in one step.
    void downgrade(key_state& key, granted_list& granted) noexcept;
    void downgrade_wall(granted_list& granted) noexcept;

    /// Takes out one place of a waiting request and lets nobody in. Requires: `forget_waiting` once, when every waiting
    /// request of the shard is out.
    void abandon(place& p) noexcept;
    void forget_waiting() noexcept;

    /// A key comes from another shard. Requires: neither shard has walls, nor exclusive places that wait.
    void adopt(const key_state& key) noexcept { keys_.add(key.held); }

    /// No wall is held or waits.
    bool walls_idle() const noexcept { return walls_.none() && !first_wall_; }
    const holders& walls_held() const noexcept { return walls_; }
    /// Exclusive places that wait with no waiting wall ahead of them.
    std::uint32_t exclusive_ahead() const noexcept { return exclusive_ahead_; }
    place* first_wall() const noexcept { return first_wall_; }

private:
    using line = intrusive_list<place, &place::line_prev, &place::line_next>;

    static bool is_exclusive(const place& p) noexcept
    {
        return p.owner->mode == lock_mode::exclusive;
    }
    static bool is_wall(const place& p) noexcept { return p.key == nullptr; }

    /// A newcomer on any key would conflict with a wall that is held, or waits.
    bool walled(lock_mode mode) const noexcept
    {
        return !walls_idle() &&
               (mode == lock_mode::exclusive || walls_.exclusive() != 0 || first_exclusive_wall_);
    }
    /// A wall with no waiting wall ahead would conflict with nothing.
    bool wall_fits(lock_mode mode) const noexcept
    {
        return exclusive_ahead_ == 0 && keys_.admit(mode) && walls_.admit(mode);
    }

    void vacate_place(key_state& key, lock_mode mode) noexcept
    {
        key.held.remove(mode);
        keys_.remove(mode);
    }
    void no_longer_waits(const place& p) noexcept;
    void settle(place& p, granted_list& granted) noexcept;
    void open(key_state& key, granted_list& granted) noexcept;
    void open_walls(granted_list& granted) noexcept;
    void open_line(lock_mode left, granted_list& granted) noexcept;
    void free_line(place* from, const place* end, bool shared_only, granted_list& granted) noexcept;
    void first_wall_from(place* p) noexcept;
    void first_exclusive_wall_from(place* p) noexcept;

    holders walls_; // occupied walls
    place* first_wall_ = nullptr; // of the waiting ones
    holders keys_; // occupied keyed places
    std::uint32_t exclusive_ahead_ = 0;
    place* first_exclusive_wall_ = nullptr;
    line line_;
};

template <class Counter>
void admission<Counter>::shard_state::append(place& p) noexcept
{
    const lock_mode mode = p.owner->mode;
    p.occupied = false;
    p.in_line = is_wall(p) || walled(mode);
    if (p.in_line)
        line_.push_back(p);
    if (!is_wall(p)) {
        p.key->queue.push_back(p);
        if (mode == lock_mode::exclusive && !first_wall_)
            ++exclusive_ahead_;
        return;
    }
    if (!first_wall_)
        first_wall_ = &p;
    if (mode == lock_mode::exclusive && !first_exclusive_wall_)
        first_exclusive_wall_ = &p;
}

template <class Counter>
void admission<Counter>::shard_state::leave(key_state& key, lock_mode mode,
                                            granted_list& granted) noexcept
{
    if (vacate(key, mode))
        admit(key, granted);
}

template <class Counter>
void admission<Counter>::shard_state::admit(key_state& key, granted_list& granted) noexcept
{
    open(key, granted);
    open_walls(granted);
}

template <class Counter>
void admission<Counter>::shard_state::downgrade(key_state& key, granted_list& granted) noexcept
{
    vacate_place(key, lock_mode::exclusive);
    occupy(key, lock_mode::shared);
    open(key, granted);
    open_walls(granted);
}

/// A wall that was held so has left: whom it held back stands in line.
template <class Counter>
void admission<Counter>::shard_state::open_line(lock_mode left, granted_list& granted) noexcept
{
    // While other shared walls are held, exclusive places stay held back, and shared ones were not: nothing to walk.
    if (walls_.shared() == 0) {
        free_line(line_.front(), first_wall_, false, granted);
        if (left == lock_mode::exclusive)
            free_line(first_wall_, first_exclusive_wall_, true, granted);
    }
    open_walls(granted);
}

template <class Counter>
void admission<Counter>::shard_state::downgrade_wall(granted_list& granted) noexcept
{
    walls_.remove(lock_mode::exclusive);
    walls_.add(lock_mode::shared);
    free_line(line_.front(), first_exclusive_wall_, true, granted);
    open_walls(granted);
}

template <class Counter>
void admission<Counter>::shard_state::withdraw(place& p, granted_list& granted) noexcept
{
    if (!is_wall(p)) {
        no_longer_waits(p);
        p.key->queue.erase(p);
        if (p.in_line)
            line_.erase(p);
        open(*p.key, granted);
        open_walls(granted);
        return;
    }
    place* behind = p.line_next;
    const bool was_first = first_wall_ == &p;
    const bool was_first_exclusive = first_exclusive_wall_ == &p;
    line_.erase(p);
    if (was_first) {
        first_wall_from(behind);
        if (walls_.none()) {
            // Nothing stood ahead of it in line, so this starts right behind it.
            free_line(line_.front(), first_wall_, false, granted);
            behind = first_wall_;
        }
    }
    if (was_first_exclusive) {
        first_exclusive_wall_from(behind);
        if (walls_.exclusive() == 0)
            free_line(behind, first_exclusive_wall_, true, granted);
    }
    open_walls(granted);
}

template <class Counter>
void admission<Counter>::shard_state::abandon(place& p) noexcept
{
    if (!p.occupied) {
        if (!is_wall(p))
            p.key->queue.erase(p);
    } else if (is_wall(p)) {
        walls_.remove(p.owner->mode);
    } else {
        vacate_place(*p.key, p.owner->mode);
    }
}

template <class Counter>
void admission<Counter>::shard_state::forget_waiting() noexcept
{
    line_.clear();
    first_wall_ = first_exclusive_wall_ = nullptr;
    exclusive_ahead_ = 0;
}

/// Takes a keyed place that waits out of the count of those ahead of the first wall, if it is one of them.
template <class Counter>
void admission<Counter>::shard_state::no_longer_waits(const place& p) noexcept
{
    if (is_exclusive(p) && (!first_wall_ || p.owner->ticket < first_wall_->owner->ticket))
        --exclusive_ahead_;
}

template <class Counter>
void admission<Counter>::shard_state::settle(place& p, granted_list& granted) noexcept
{
    p.occupied = true;
    if (!p.owner->several || --p.owner->missing == 0)
        granted.push(*p.owner);
}

/// Occupies the places at the head of the key's queue while they are clear.
template <class Counter>
void admission<Counter>::shard_state::open(key_state& key, granted_list& granted) noexcept
{
    for (place* p = key.queue.front(); p && !p->in_line && key.held.admit(p->owner->mode);
         p = key.queue.front()) {
        key.queue.erase(*p);
        no_longer_waits(*p);
        occupy(key, p->owner->mode);
        settle(*p, granted);
    }
}

/// Occupies the first waiting walls while they are clear.
template <class Counter>
void admission<Counter>::shard_state::open_walls(granted_list& granted) noexcept
{
    while (first_wall_ && wall_fits(first_wall_->owner->mode)) {
        place& wall = *first_wall_;
        place* const behind = wall.line_next;
        line_.erase(wall);
        first_wall_from(behind);
        if (&wall == first_exclusive_wall_)
            first_exclusive_wall_from(behind);
        occupy_wall(wall.owner->mode);
        settle(wall, granted);
    }
}

/// No wall holds back the keyed places from `from` to `end` any more (of those, only the shared ones): they wait for
/// their keys alone, and those that are clear are occupied.
template <class Counter>
void admission<Counter>::shard_state::free_line(place* from, const place* end, bool shared_only,
                                                granted_list& granted) noexcept
{
    for (place* p = from; p != end;) {
        place& here = *p;
        p = p->line_next; // stays in line: `open` occupies nothing that is in line
        if (is_wall(here) || (shared_only && is_exclusive(here)))
            continue;
        line_.erase(here);
        here.in_line = false;
        open(*here.key, granted);
    }
}

/// The next first wall is searched from `p` on; the exclusive places on the way have no waiting wall ahead any more.
template <class Counter>
void admission<Counter>::shard_state::first_wall_from(place* p) noexcept
{
    for (; p && !is_wall(*p); p = p->line_next) {
        if (is_exclusive(*p))
            ++exclusive_ahead_;
    }
    first_wall_ = p;
}

template <class Counter>
void admission<Counter>::shard_state::first_exclusive_wall_from(place* p) noexcept
{
    while (p && !(is_wall(*p) && is_exclusive(*p)))
        p = p->line_next;
    first_exclusive_wall_ = p;
}

template <class Counter>
void admission<Counter>::granted_list::push(request& r) noexcept
{
    in_order_ = in_order_ && (!last_ || last_->ticket < r.ticket);
    (last_ ? last_->next : first_) = &r;
    last_ = &r;
}

template <class Counter>
typename admission<Counter>::request* admission<Counter>::granted_list::merge(request* a,
                                                                              request* b) noexcept
{
    request* first = nullptr;
    request** end = &first;
    while (a && b) {
        request*& lower = a->ticket < b->ticket ? a : b;
        *end = lower;
        end = &lower->next;
        lower = lower->next;
    }
    *end = a ? a : b;
    return first;
}

/// A merge sort of the ascending runs: `merged[i]` holds 2^i runs, as in binary counting.
template <class Counter>
void admission<Counter>::granted_list::sort() noexcept
{
    if (in_order_)
        return;
    request* merged[64] = {};
    for (request* rest = first_; rest;) {
        request* run = rest;
        request* end = run;
        while (end->next && end->ticket < end->next->ticket)
            end = end->next;
        rest = end->next;
        end->next = nullptr;
        int i = 0;
        for (; merged[i]; ++i) {
            run = merge(merged[i], run);
            merged[i] = nullptr;
        }
        merged[i] = run;
    }
    first_ = nullptr;
    for (request* run : merged)
        first_ = merge(first_, run);
}

} // namespace amux::detail

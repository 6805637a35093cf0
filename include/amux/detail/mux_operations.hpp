// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/mux_core.hpp>

namespace amux::detail {

template <class Key, class Threading, class Hash, class Equal>
template <class Kept>
auto mux_core<Key, Threading, Hash, Equal>::take_or_lock(std::uint64_t hash, Kept& kept,
                                                         lock_mode mode) -> taken
{
    auto s = shards_.lock(hash);
    const auto at = find(*s, hash, kept.look());
    entry* e = at.node;
    if (closed() || !(e ? s->state.admits(*e, mode) : s->state.admits_new_key(mode))) [[unlikely]]
        return {e, &s.pass_on()};
    if (!e)
        e = &make(*s, at, hash, kept.take());
    s->state.occupy(*e, mode);
    observe_grant(nullptr, std::addressof(e->key), nullptr, mode);
    return {e, nullptr};
}

template <class Key, class Threading, class Hash, class Equal>
template <class Kept>
auto mux_core<Key, Threading, Hash, Equal>::try_one(std::uint64_t hash, Kept& kept, lock_mode mode)
    -> entry*
{
    const taken t = take_or_lock(hash, kept, mode);
    if (!t.locked)
        return t.key;
    t.locked->mutex.unlock();
    return nullptr;
}

template <class Key, class Threading, class Hash, class Equal>
template <class Kept, class StopRequested, class GetWaiter>
request_state mux_core<Key, Threading, Hash, Equal>::wait_one(shard& locked, entry* e, Kept& kept,
                                                              StopRequested stop_requested,
                                                              GetWaiter get_waiter)
{
    after_unlock after;
    const typename shards::locked_shard s{locked};
    if (stop_requested())
        return request_state::stopped;
    if (closed())
        return request_state::closed;
    if (!e) {
        // Who does not get the lock is to be told which key it was: that one stays with the request.
        const std::uint64_t hash = hash_of(kept.look());
        e = &make(*s, find(*s, hash, kept.look()), hash, kept.look());
    }
    if (!take_slot()) {
        retire_if_idle(*s, *e, after.dead);
        return request_state::full;
    }
    auto& w = get_waiter(e->hash);
    w.key = e;
    w.own.key = e;
    w.own.owner = &w;
    w.ticket = draw_ticket();
    s->state.append(w.own);
    w.state = request_state::waiting;
    observer_.on_wait(observation_of(w));
    w.waits();
    return request_state::waiting;
}

template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::release(entry& e, lock_mode mode) noexcept
{
    dead_keys<entry> dead;
    auto s = shards_.lock(e.hash);
    observer_.on_release(observation(nullptr, std::addressof(e.key), nullptr, mode));
    if (s->state.vacate(e, mode)) [[unlikely]]
        return admit(s.pass_on(), e);
    retire_if_idle(*s, e, dead);
}

/// The rare half of `release`, out of its way. Drops the lock of the shard.
template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::admit(shard& locked, entry& e) noexcept
{
    after_unlock after;
    const typename shards::locked_shard s{locked};
    if (place* const next = s->state.hand_over(e)) [[likely]]
        return grant(*static_cast<waiter*>(next->owner), after);
    granted_list granted;
    s->state.admit(e, granted);
    retire_if_idle(*s, e, after.dead);
    grant(granted, after);
}

template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::downgrade(entry& e) noexcept
{
    after_unlock after;
    const auto s = shards_.lock(e.hash);
    observe_downgrade(std::addressof(e.key), nullptr);
    granted_list granted;
    s->state.downgrade(e, granted);
    grant(granted, after);
}

template <class Key, class Threading, class Hash, class Equal>
template <class Keys>
auto mux_core<Key, Threading, Hash, Equal>::try_many(const Keys& keys, mask over, lock_mode mode,
                                                     const recorded_request* by) -> block*
{
    after_unlock after;
    const auto locked = shards_.lock_several(over);
    if (closed())
        return nullptr;
    newcomer fresh{locked, after};
    fresh.prepare(keys);
    block& b = fresh.get();
    if (!admits(locked, b, mode))
        return nullptr;
    b.mode = mode;
    if (by) [[unlikely]]
        lock_records::begin(b, false, *by);
    occupy(locked, b, mode);
    observe_grant(nullptr, nullptr, &b, mode);
    return fresh.keep();
}

template <class Key, class Threading, class Hash, class Equal>
template <class Keys, class Waiter, class StopRequested>
request_state mux_core<Key, Threading, Hash, Equal>::arrive_many(Waiter& w, const Keys& keys,
                                                                 StopRequested stop_requested,
                                                                 const recorded_request* by)
{
    after_unlock after;
    const auto locked = shards_.lock_several(w.over);
    if (stop_requested())
        return request_state::stopped;
    if (closed())
        return request_state::closed;
    newcomer fresh{locked, after};
    fresh.prepare(keys);
    block& b = fresh.get();
    b.mode = w.mode;
    const bool waits = !admits(locked, b, w.mode);
    if (waits && !take_slot())
        return request_state::full;
    if (by) [[unlikely]]
        record(b, waits, *by);
    if (!waits) {
        occupy(locked, b, w.mode);
        observe_grant(nullptr, nullptr, &b, w.mode);
        w.places = fresh.keep();
        return request_state::granted;
    }
    w.places = fresh.keep();
    append(locked, w);
    w.state = request_state::waiting;
    observer_.on_wait(observation_of(w));
    w.waits();
    return request_state::waiting;
}

/// Once it is recorded as waiting it does wait: a search for deadlocks sees it.
template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::record(block& b, bool waits, const recorded_request& by)
{
    try {
        lock_records::begin(b, waits, by);
    } catch (...) {
        if (waits)
            free_slot();
        throw;
    }
}

template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::release(block& b) noexcept
{
    after_unlock after;
    const auto locked = shards_.lock_several(b.shards);
    observer_.on_release(observation(nullptr, nullptr, &b, b.mode));
    if (request_record* const r = lock_records::of(b)) [[unlikely]]
        lock_records::end(*r);
    granted_list granted;
    if (b.whole) {
        locked.for_each([&](shard& s) { s.state.leave_wall(b.mode, granted); });
    } else {
        for (place& p : b) {
            entry& e = entry_of(p);
            locked.of(e.hash).state.leave(e, b.mode, granted);
        }
        retire_keys(locked, b, after);
    }
    locked.lowest().blocks.retire(b);
    grant(granted, after);
}

template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::downgrade(block& b) noexcept
{
    after_unlock after;
    const auto locked = shards_.lock_several(b.shards);
    observe_downgrade(nullptr, &b);
    if (request_record* const r = lock_records::of(b)) [[unlikely]]
        lock_records::downgraded(*r);
    granted_list granted;
    if (b.whole) {
        locked.for_each([&](shard& s) { s.state.downgrade_wall(granted); });
    } else {
        for (place& p : b)
            locked.of(entry_of(p).hash).state.downgrade(*p.key, granted);
    }
    grant(granted, after);
}

template <class Key, class Threading, class Hash, class Equal>
bool mux_core<Key, Threading, Hash, Equal>::admits(const locked_shards& locked, block& b,
                                                   lock_mode mode) noexcept
{
    if (b.whole)
        return locked.all_of([&](shard& s) { return s.state.admits_wall(mode); });
    for (place& p : b) {
        if (!locked.of(entry_of(p).hash).state.admits(*p.key, mode))
            return false;
    }
    return true;
}

template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::occupy(const locked_shards& locked, block& b,
                                                   lock_mode mode) noexcept
{
    if (b.whole)
        return locked.for_each([&](shard& s) { s.state.occupy_wall(mode); });
    for (place& p : b)
        locked.of(entry_of(p).hash).state.occupy(*p.key, mode);
}

/// Puts the places of a request that must wait: those that are clear are reserved, the others queue.
template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::append(const locked_shards& locked, waiter& w) noexcept
{
    w.several = true;
    w.ticket = draw_ticket();
    std::uint32_t missing = 0;
    const auto put = [&](auto& state, place& p, bool admitted) {
        p.owner = &w;
        p.occupied = admitted;
        if (!admitted) {
            state.append(p);
            ++missing;
        } else if (p.key) {
            state.occupy(*p.key, w.mode);
        } else {
            state.occupy_wall(w.mode);
        }
    };
    block& b = *w.places;
    if (b.whole) {
        locked.for_each([&](shard& s) {
            place& p = b.begin()[b.size++];
            p.key = nullptr;
            put(s.state, p, s.state.admits_wall(w.mode));
        });
    } else {
        for (place& p : b) {
            auto& state = locked.of(entry_of(p).hash).state;
            put(state, p, state.admits(*p.key, w.mode));
        }
    }
    w.missing.store(missing, std::memory_order_relaxed);
}

template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::grant(granted_list& granted,
                                                  after_unlock& after) noexcept
{
    granted.sort();
    for (request* r = granted.first(); r;) {
        waiter& w = *static_cast<waiter*>(r);
        r = r->next; // once posted, the request may be gone
        grant(w, after);
    }
}

template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::grant(waiter& w, after_unlock& after) noexcept
{
    w.state = request_state::granted;
    free_slot();
    mark_unresumed(w, true);
    observer_.on_grant(observation_of(w));
    resume(w, after);
}

template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::resume(waiter& w, after_unlock& after) noexcept
{
    ::new (static_cast<void*>(&w.node)) resumption{w.handle};
    if (w.where) {
        w.where->post(w.node);
    } else {
        resume_queue::push(w.node);
        after.resumes = true;
    }
}

/// Counts a grant that its coroutine has not seen yet, for snapshots; without a lock when it has.
template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::mark_unresumed(waiter& w, bool yes) noexcept
{
    if (w.several) [[unlikely]]
        mark_several(w, yes);
    else
        mark(w.key->unresumed, w.mode, yes);
}

template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::mark(counter& unresumed, lock_mode mode,
                                                 bool yes) noexcept
{
    if (mode == lock_mode::exclusive)
        unresumed.store(yes ? 1 : 0, std::memory_order_relaxed); // the only holder
    else if (yes)
        unresumed.fetch_add(1, std::memory_order_relaxed);
    else
        unresumed.fetch_sub(1, std::memory_order_relaxed);
}

template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::mark_several(waiter& w, bool yes) noexcept
{
    // A coroutine that runs has no lock of the shards, and nothing to record.
    if (request_record* const r = yes ? lock_records::of(*w.places) : nullptr)
        lock_records::granted(*r);
    if (w.places->whole)
        return mark(unresumed_, w.mode, yes);
    for (place& p : *w.places)
        mark(entry_of(p).unresumed, w.mode, yes);
}

template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::resumed(waiter& w) noexcept
{
    mark_unresumed(w, false);
}

/// Calls `take(state, place)` for every place of a waiting request, and retires what they stood on.
template <class Key, class Threading, class Hash, class Equal>
template <class Take>
void mux_core<Key, Threading, Hash, Equal>::dissolve(const locked_shards& locked, waiter& w,
                                                     after_unlock& after, Take take)
{
    if (!w.several) {
        shard& s = locked.of(w.key->hash);
        take(s.state, w.own);
        return retire_if_idle(s, *w.key, after.dead);
    }
    block& b = *std::exchange(w.places, nullptr);
    if (request_record* const r = lock_records::of(b)) [[unlikely]]
        lock_records::end(*r);
    if (b.whole) {
        place* p = b.begin();
        locked.for_each([&](shard& s) { take(s.state, *p++); });
    } else {
        for (place& p : b)
            take(locked.of(entry_of(p).hash).state, p);
    }
    retire_keys(locked, b, after);
    locked.lowest().blocks.retire(b);
}

/// Takes a waiting request out of all its queues, and lets those in whom it held back.
template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::take_out(const locked_shards& locked, waiter& w,
                                                     granted_list& granted,
                                                     after_unlock& after) noexcept
{
    observe_leave(w);
    free_slot();
    dissolve(locked, w, after, [&](auto& state, place& p) {
        if (!p.occupied)
            state.withdraw(p, granted);
        else if (p.key)
            state.leave(*p.key, w.mode, granted);
        else
            state.leave_wall(w.mode, granted);
    });
}

template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::give_up(waiter& w, request_state reason) noexcept
{
    if (!enter(w))
        return;
    after_unlock after;
    const auto locked = shards_.lock_several(w.over);
    leave(w);
    if (w.state != request_state::waiting)
        return;
    granted_list granted;
    take_out(locked, w, granted, after);
    w.state = reason;
    refuse(w, after); // before those whom it held back
    grant(granted, after);
}

template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::abandon(waiter& w) noexcept
{
    if (enter(w)) {
        // With the locks, whoever grants or refuses it has posted it.
        after_unlock after;
        const auto locked = shards_.lock_several(w.over);
        leave(w);
        if (w.state == request_state::waiting) {
            granted_list granted;
            take_out(locked, w, granted, after);
            return grant(granted, after);
        }
    }
    // Its state is final: only the post is left to take back, and the lock if it was granted. Whoever has refused it, and
    // has the locks yet, may be about to post it. (The bound is for a port whose `cancel` does not tell the truth.)
    if (!w.where)
        resume_queue::remove(w.node);
    else
        for (int tries = 1 << 20; !w.where->cancel(w.node) && tries != 0; --tries)
            spin_lock::yield();
    if (w.state != request_state::granted)
        return;
    resumed(w);
    if (w.several)
        release(*w.places);
    else
        release(*w.key, w.mode);
}

template <class Key, class Threading, class Hash, class Equal>
bool mux_core<Key, Threading, Hash, Equal>::take_slot() noexcept
{
    if (max_waiters_ == no_limit)
        return true;
    std::size_t waiting = waiting_.load(std::memory_order_relaxed);
    while (waiting < max_waiters_) {
        if (waiting_.compare_exchange_weak(waiting, waiting + 1, std::memory_order_relaxed))
            return true;
    }
    return false;
}

/// Every waiting request leaves, nobody is let in, and all are told in order of arrival.
template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::close() noexcept
{
    after_unlock after;
    const auto locked = shards_.lock_several(shards::every);
    closed_.store(true, std::memory_order_relaxed);
    granted_list told;
    for_each_waiting(locked, [&told](const place& p) {
        waiter& w = *static_cast<waiter*>(p.owner);
        if (std::exchange(w.state, request_state::closed) == request_state::waiting)
            told.push(w);
    });
    told.sort();
    for (request* r = told.first(); r; r = r->next) {
        waiter& w = *static_cast<waiter*>(r);
        observe_leave(w);
        dissolve(locked, w, after, [](auto& state, place& p) { state.abandon(p); });
    }
    locked.for_each([](shard& s) { s.state.forget_waiting(); });
    for (request* r = told.first(); r;) {
        waiter& w = *static_cast<waiter*>(r);
        r = r->next;
        refuse(w, after);
    }
}

template <class Key, class Threading, class Hash, class Equal>
bool mux_core<Key, Threading, Hash, Equal>::idle() noexcept
{
    shards_.unbind();
    for (;; spin_lock::yield()) {
        const auto locked = shards_.lock_several(shards::every);
        if (late_.load(std::memory_order_relaxed) == 0)
            return locked.all_of([](shard& s) { return s.idle(); });
    }
}

template <class Key, class Threading, class Hash, class Equal>
template <class F>
void mux_core<Key, Threading, Hash, Equal>::for_each_waiting(const locked_shards& locked, F f)
{
    locked.for_each([&](shard& s) {
        s.table.for_each([&](entry& e) {
            for (place* p = e.queue.front(); p; p = p->queue_next)
                f(*p);
        });
        for (place* p = s.state.first_wall(); p; p = p->line_next) {
            if (!p->key)
                f(*p);
        }
    });
}

template <class Key, class Threading, class Hash, class Equal>
mux_snapshot<Key> mux_core<Key, Threading, Hash, Equal>::snapshot(const char* name,
                                                                  lock_records* records)
{
    mux_snapshot<Key> out;
    out.name = name;
    const auto locked = shards_.lock_several(shards::every);
    out.closed = closed();

    // `scratch` counts the reservations of a key: places that are occupied while their request waits for others. Such a
    // request is met at each place where it waits, and counted at the first.
    struct cleared_at_end {
        const locked_shards& locked;
        ~cleared_at_end()
        {
            for_each_waiting(locked, [](const place& p) {
                if (block* const b = static_cast<waiter*>(p.owner)->places)
                    b->counted = false;
            });
            locked.for_each([](shard& s) { s.table.for_each([](entry& e) { e.scratch = 0; }); });
        }
    } const scratch{locked};
    std::size_t reserved_walls = 0; // in the first shard
    for_each_waiting(locked, [&](const place& met) {
        const waiter& w = *static_cast<waiter*>(met.owner);
        if (!w.several || std::exchange(w.places->counted, true))
            return;
        if (w.places->whole) {
            ++out.whole.waiters;
            reserved_walls += w.places->begin()->occupied ? 1 : 0;
            return;
        }
        for (const place& p : *w.places)
            entry_of(p).scratch += p.occupied ? 1 : 0;
    });

    const auto count = [](lock_counts& out_counts, const holders& held, std::size_t reserved) {
        out_counts.holders = std::size_t{held.exclusive()} + held.shared() - reserved;
        if (out_counts.holders != 0)
            out_counts.mode = held.exclusive() != 0 ? lock_mode::exclusive : lock_mode::shared;
    };
    count(out.whole, locked.lowest().state.walls_held(), reserved_walls);
    out.whole.granted_not_resumed = unresumed_.load(std::memory_order_relaxed);

    std::size_t keys = 0;
    locked.for_each([&keys](shard& s) { keys += s.table.size(); });
    out.keys.reserve(keys); // a key may call the mux when it is destroyed: none is under the locks
    locked.for_each([&](shard& s) {
        s.table.for_each([&](const entry& e) {
            lock_counts counts;
            count(counts, e.held, e.scratch);
            counts.waiters = e.scratch;
            for (const place* p = e.queue.front(); p; p = p->queue_next)
                ++counts.waiters;
            counts.granted_not_resumed = e.unresumed.load(std::memory_order_relaxed);
            out.keys.emplace_back(counts, e.key);
        });
    });
    if (records)
        add_requests(out, *records);
    return out;
}

template <class Key, class Threading, class Hash, class Equal>
void mux_core<Key, Threading, Hash, Equal>::add_requests(mux_snapshot<Key>& out,
                                                         lock_records& records)
{
    const clock::time_point now = records.now();
    records.for_each([&](const request_record& r) {
        auto& request = out.requests.emplace_back();
        request.number = r.number;
        request.context = r.context;
        request.where = r.where;
        request.whole = r.whole;
        request.mode = r.mode;
        request.granted = !r.waits;
        request.waited = (r.waits ? now : r.granted) - r.asked;
        request.held = r.waits ? clock::duration::zero() : now - r.granted;
        if (r.whole)
            return;
        const block& b = *static_cast<const block*>(r.block);
        request.keys.reserve(b.size);
        for (const place& p : b)
            request.keys.push_back(entry_of(p).key);
    });
}

template <class Key, class Threading, class Hash, class Equal>
std::size_t mux_core<Key, Threading, Hash, Equal>::tracked_keys() noexcept
{
    std::size_t keys = 0;
    shards_.lock_several(shards::every).for_each([&keys](shard& s) { keys += s.table.size(); });
    return keys;
}

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

/// \file
/// A message instead of a hang: `asyncmux_options::deadlocks`.

#include <amux/context.hpp>
#include <amux/detail/in_quotes.hpp>
#include <amux/detail/lock_records.hpp>
#include <amux/detail/record_lists.hpp>
#include <amux/detail/request_record.hpp>
#include <amux/detail/spin_lock.hpp>
#include <amux/error.hpp>
#include <amux/lock_mode.hpp>
#include <amux/source_location.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace amux {

/// A context that waits, in a cycle of such, and what it waits for.
struct deadlock_step {
    /// Who waits; 0 for a coroutine whose type has no context.
    std::uint64_t context;
    /// The name of the mux.
    std::string mux;
    /// The keys that are asked for, in quotes, or "the whole mux".
    std::string lock;
    /// How it is asked for.
    lock_mode mode;
    /// Where it is awaited.
    source_location where;
    /// Who stands in the way.
    std::uint64_t other;
    /// It holds its lock; if not, it waits for it ahead.
    bool holds;
    /// Where it awaited that.
    source_location other_where;
};

/// The request would close a cycle of contexts that wait for each other: none of them would ever go on.
class deadlock_error : public lock_error {
public:
    /// What an `asyncmux` with a `deadlock_detector` throws.
    explicit deadlock_error(std::vector<deadlock_step> cycle)
        : lock_error{in_words(cycle)}, cycle_{std::move(cycle)}
    {}

    /// From the request that was refused to the one that waits for its context, or for one that awaits that.
    const std::vector<deadlock_step>& cycle() const noexcept { return cycle_; }

private:
    static std::string in_words(const std::vector<deadlock_step>& cycle);

    std::vector<deadlock_step> cycle_;
};

/// Finds out when coroutines would wait for each other for ever, over all muxes that have it as their option `deadlocks`:
/// the request that would close the cycle throws `deadlock_error`, and everything is as if it had not been made.
///
/// A request that waits goes on when those ahead of it that it conflicts with have ended. One that is held ends when its
/// context releases it; and a context stands still while it waits, or while a `when_all` waits that it awaits. One that
/// waits itself ends after those that *it* waits for. Where this leads back to a lock of the context that asks, or of one
/// that awaits that, nobody goes on; no other request can bring this about later, so it is enough to look when one begins
/// to wait.
///
/// A request with a time limit ends in any case: it is never refused, and leads nowhere. A stop may never come, so a
/// request that can be stopped is as any other. What has no context (`try_lock`, foreign coroutines without the hook) is
/// part of no cycle. A guard counts for the context that was granted it: whoever hands one to another context, waits for
/// that, and asks for more, may be refused although the other would have released it; and one that a `when_all` child has
/// returned is in nobody's way.
///
/// Complexity: of a request, O(its keys) and one lock for all muxes; of one that waits, also O(locks of its context), and
/// when somebody waits behind one of those, O(requests that this leads to). Memory: O(requests). Thread-safety: muxes of
/// any threads. Lifetime: it outlives its muxes.
class deadlock_detector final : public detail::wait_graph {
    using record = detail::request_record;
    using list = detail::record_list;
    using link = detail::record_link;
    using lists = detail::record_lists;
    using table = lists::table;
    using locked = detail::lock_scope<detail::spin_lock>;

public:
    /// Knows of no request yet.
    deadlock_detector() = default;

private:
    // Called with locks of shards held; its own lock is inside of those. A record leaves before its lock is released, so
    // whatever is linked exists.

    void arrives(record& r, const context* asking) override
    {
        const locked l{mutex_};
        r.order = ++last_order_;
        link_lasting(r, depth(asking));
        if (!stands_still(r))
            return;
        for (const context* c = asking; c; c = c->parent())
            lists_.add(r, waits_, c->id());
        if (closes_cycle(r, asking))
            throw deadlock_error{cycle_of(r)};
    }

    void granted(record& r) noexcept override
    {
        const locked l{mutex_};
        r.waits = false;
        lists_.unlink(r, r.lasting_links);
    }

    void downgraded(record& r) noexcept override
    {
        const locked l{mutex_};
        r.mode = lock_mode::shared;
    }

    void leaves(record& r) noexcept override
    {
        const locked l{mutex_};
        lists_.unlink(r, 0);
    }

    void link_lasting(record& r, std::size_t more)
    {
        r.links.reserve(r.keys.size() + 3 + more); // linked, they must not move
        lists_.add(r, all_, lists::address(r.kept_by));
        if (r.whole)
            lists_.add(r, whole_, lists::address(r.kept_by));
        for (const void* key : r.keys)
            lists_.add(r, keys_, lists::address(key));
        if (r.context != 0)
            lists_.add(r, requests_, r.context);
        r.lasting_links = r.links.size();
    }

    static std::size_t depth(const context* c) noexcept
    {
        std::size_t n = 0;
        for (; c; c = c->parent())
            ++n;
        return n;
    }
    static bool is_among(const context* c, std::uint64_t id) noexcept
    {
        while (c && c->id() != id)
            c = c->parent();
        return c != nullptr;
    }

    /// It waits, and nothing but those ahead can end that.
    static bool stands_still(const record& r) noexcept { return r.waits && !r.ends_by_itself; }

    /// Breadth first, so that a shortest cycle is found.
    bool closes_cycle(record& asking, const context* by) noexcept
    {
        if (!stands_in_the_way(by))
            return false;
        ++search_;
        record* end = nullptr; // of those found, in the order in which they were
        const auto reach = [&](record& r, record& from, record& through) {
            if (std::exchange(r.search, search_) == search_)
                return;
            r.found_from = &from;
            r.found_through = &through;
            r.found_next = nullptr;
            end = (end ? end->found_next : asking.found_next) = &r;
        };
        asking.found_next = nullptr; // itself it is never reached: it is ahead of nobody
        for (record* w = &asking; w; w = w->found_next) {
            const auto closes = [&](record& ahead) {
                if (stands_still(ahead))
                    reach(ahead, *w, ahead);
                if (ahead.waits || ahead.context == 0)
                    return false;
                if (is_among(by, ahead.context)) {
                    asking.found_from = w;
                    asking.found_through = &ahead;
                    return true;
                }
                const list* const l = lists::find(waits_, ahead.context);
                for (const link* k = l ? l->links.front() : nullptr; k; k = k->next)
                    reach(*k->record, *w, ahead);
                return false;
            };
            if (any_ahead(*w, closes))
                return true;
        }
        return false;
    }

    /// Whether somebody has arrived behind a lock that this context, or one that awaits it, holds. Seldom so: then there
    /// is nothing to search.
    bool stands_in_the_way(const context* c) noexcept
    {
        for (; c; c = c->parent()) {
            const list* const l = lists::find(requests_, c->id());
            for (const link* k = l ? l->links.front() : nullptr; k; k = k->next) {
                if (!k->record->waits && is_ahead_of_somebody(*k->record))
                    return true;
            }
        }
        return false; // a search would find nothing
    }
    bool is_ahead_of_somebody(const record& r) noexcept
    {
        const list* const others = lists::find(r.whole ? all_ : whole_, lists::address(r.kept_by));
        if (others && others->links.back()->record->order > r.order)
            return true;
        for (const link& k : r.links) {
            if (k.in->table == &keys_ && k.next)
                return true;
        }
        return false; // nobody has come since
    }

    /// Whether `f` says yes to one of those that `w` waits for. Those that this search has looked at are left out.
    template <class F>
    bool any_ahead(const record& w, F f)
    {
        for (const link& k : w.links) {
            if (k.in->table == (w.whole ? &all_ : &keys_) && any_ahead_in(*k.in, k.prev, w, f))
                return true;
        }
        list* const others = w.whole ? nullptr : lists::find(whole_, lists::address(w.kept_by));
        return others && any_ahead_in(*others, others->links.back(), w, f);
    }
    template <class F>
    bool any_ahead_in(list& l, const link* from, const record& w, F f)
    {
        if (std::exchange(l.search, search_) != search_)
            l.all_until = l.exclusive_until = 0;
        const bool all = w.mode == lock_mode::exclusive;
        const bool more = !all && l.exclusive_until > l.all_until;
        const std::uint64_t looked_at = more ? l.exclusive_until : l.all_until;
        if (w.order <= looked_at)
            return false;
        for (const link* k = from; k && k->record->order > looked_at; k = k->prev) {
            record& r = *k->record;
            if (r.order < w.order && (all || r.mode == lock_mode::exclusive) && f(r))
                return true;
        }
        (all ? l.all_until : l.exclusive_until) = w.order - 1;
        return false;
    }

    static std::vector<deadlock_step> cycle_of(const record& asking)
    {
        std::vector<deadlock_step> from_its_end;
        const record* to = &asking;
        do {
            const record& ahead = *to->found_through;
            to = to->found_from;
            from_its_end.push_back({to->context, to->kept_by->name(), to->kept_by->text_of(*to),
                                    to->mode, to->where, ahead.context, !ahead.waits, ahead.where});
        } while (to != &asking);
        return {from_its_end.rbegin(), from_its_end.rend()};
    }

    table all_; // by mux
    table whole_; // by mux: for the whole of it
    table keys_; // by what stands for the key
    table requests_; // by context
    table waits_; // by context: those without which it does not go on
    lists lists_;
    std::uint64_t last_order_ = 0;
    std::uint64_t search_ = 0;
    detail::spin_lock mutex_;
};

inline std::string deadlock_error::in_words(const std::vector<deadlock_step>& cycle)
{
    const auto context = [](std::uint64_t id) {
        return id == 0 ? std::string{"a coroutine without a context"}
                       : "context " + std::to_string(id);
    };
    std::string text{"amux: deadlock: "};
    for (const deadlock_step& s : cycle) {
        const bool first = &s == &cycle.front();
        if (!first)
            text += "; ";
        text += context(s.context);
        if (!first && (&s)[-1].other != s.context)
            text += ", which " + context((&s)[-1].other) + " awaits,";
        text += first ? " asks for " : " waits for ";
        text.append(s.lock).append(" (").append(to_string(s.mode));
        if (!s.mux.empty())
            text.append(", mux ").append(detail::in_quotes(s.mux));
        text.append(")").append(detail::place_text(s.where)).append(", which ");
        text.append(context(s.other)).append(s.holds ? " holds" : " asked for before");
        text.append(detail::place_text(s.other_where));
    }
    return text;
}

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/context.hpp>
#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/request_record.hpp>
#include <amux/detail/spin_lock.hpp>
#include <amux/error.hpp>
#include <amux/lock_mode.hpp>
#include <amux/scheduler.hpp>
#include <amux/source_location.hpp>

#include <cstdint>
#include <string>

namespace amux::detail {

class lock_records;

/// Who asks for a lock of a mux that keeps records.
struct recorded_request {
    lock_records* records; // null: none are kept
    const context* asking; // null: not known
    source_location where;
    bool has_limit;
};

/// The records of one mux: a request has one from when it waits or is granted until it is released.
///
/// A record is changed under the locks of its request's shards; this list has a lock of its own, inside of those.
class lock_records {
public:
    /// The keys of a block, as text.
    using describer = std::string (*)(const void* block);

    lock_records(const char* mux_name, wait_graph* graph, const scheduler* time,
                 describer d) noexcept
        : name_{mux_name}, graph_{graph}, time_{time}, describe_{d}
    {}
    lock_records(const lock_records&) = delete;
    lock_records& operator=(const lock_records&) = delete;

    // With the locks of the request's shards held.

    /// Throws: `std::bad_alloc`, and what the graph throws; then the record is still to be ended.
    template <class Block>
    [[gnu::noinline]] static void begin(Block& b, bool waits, const recorded_request& by)
    {
        if (!b.record)
            b.record = new request_record;
        request_record& r = *b.record;
        r.keys.clear();
        r.keys.reserve(b.size);
        for (const auto& p : b) // of the whole mux it has none yet
            r.keys.push_back(p.key);
        r.block = &b;
        r.mode = b.mode;
        r.whole = b.whole;
        r.waits = waits;
        by.records->begin(r, by);
    }

    /// The record of a block; null: none is kept.
    template <class Block>
    static request_record* of(const Block& b) noexcept
    {
        return b.record && b.record->kept_by ? b.record : nullptr;
    }
    [[gnu::noinline]] static void granted(request_record& r) noexcept
    {
        r.granted = r.kept_by->now();
        if (wait_graph* const g = r.kept_by->graph_)
            g->granted(r);
        else
            r.waits = false;
    }
    [[gnu::noinline]] static void downgraded(request_record& r) noexcept
    {
        if (wait_graph* const g = r.kept_by->graph_)
            g->downgraded(r);
        else
            r.mode = lock_mode::shared;
    }
    [[gnu::noinline]] static void end(request_record& r) noexcept
    {
        lock_records& self = *r.kept_by;
        if (self.graph_)
            self.graph_->leaves(r); // until then a search on another thread may read it
        r.kept_by = nullptr;
        const lock_scope l{self.mutex_};
        self.records_.erase(r);
    }

    const char* name() const noexcept { return name_; }
    std::string text_of(const request_record& r) const { return describe_(r.block); }

    // With all locks of the mux held.

    /// Calls `f(record)` for each, in order of arrival.
    template <class F>
    void for_each(F f)
    {
        for (const request_record* r = records_.front(); r; r = r->next)
            f(*r);
    }

    /// Who holds and waits: for whoever reads the end of a program.
    std::string in_words() const
    {
        std::string text;
        for (const request_record* r = records_.front(); r; r = r->next) {
            text.append("\n  ").append(text_of(*r)).append(r->waits ? " waited for" : " held");
            text.append(" (").append(to_string(r->mode)).append(")");
            if (r->context != 0)
                text.append(" by context ").append(std::to_string(r->context));
            text.append(place_text(r->where));
        }
        return text;
    }

    clock::time_point now() const noexcept { return time_ ? time_->now() : clock::now(); }

private:
    void begin(request_record& r, const recorded_request& by)
    {
        r.context = by.asking ? by.asking->id() : 0;
        r.where = by.where;
        r.asked = r.granted = now();
        r.ends_by_itself = by.has_limit;
        r.kept_by = this;
        {
            const lock_scope l{mutex_};
            r.number = ++last_number_;
            records_.push_back(r);
        }
        if (graph_)
            graph_->arrives(r, by.asking);
    }

    const char* const name_;
    wait_graph* const graph_; // null: deadlocks are not looked for
    const scheduler* const time_;
    const describer describe_;
    intrusive_list<request_record, &request_record::prev, &request_record::next> records_;
    std::uint64_t last_number_ = 0;
    spin_lock mutex_;
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/intrusive_hash.hpp>
#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/request_record.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace amux::detail {

/// Records that have something in common, in order of arrival: a key, a mux, a context.
struct record_list {
    record_list* chain = nullptr; // in its table, or among the unused
    std::uint64_t hash = 0;
    std::uint64_t common = 0; // an address, or the number of a context
    intrusive_hash<record_list>* table = nullptr;
    intrusive_list<record_link, &record_link::prev, &record_link::next> links;
    // Of one search: of the records up to this one all, or the exclusive ones, have been looked at.
    std::uint64_t search = 0;
    std::uint64_t all_until = 0;
    std::uint64_t exclusive_until = 0;
};

/// Makes lists of records in tables, and keeps those that are empty for the next ones. It goes when the tables are empty.
class record_lists {
public:
    using table = intrusive_hash<record_list>;

    record_lists() = default;
    record_lists(const record_lists&) = delete;
    record_lists& operator=(const record_lists&) = delete;
    ~record_lists()
    {
        while (record_list* const l = unused_) {
            unused_ = l->chain;
            delete l;
        }
    }

    static std::uint64_t address(const void* p) noexcept
    {
        return reinterpret_cast<std::uintptr_t>(p);
    }

    static record_list* find(table& t, std::uint64_t common) noexcept
    {
        return spot_of(t, common).node;
    }

    /// At the end of the list of those that have this in common. Requires: the record has room for a link. Throws: without
    /// memory for a list, and nothing has changed.
    void add(request_record& r, table& t, std::uint64_t common)
    {
        record_list& l = list_of(t, common);
        l.links.push_back(r.links.emplace_back(record_link{nullptr, nullptr, &l, &r}));
    }

    /// Takes it out of its lists, the first `kept` excepted.
    void unlink(request_record& r, std::size_t kept) noexcept
    {
        for (; r.links.size() > kept; r.links.pop_back()) {
            record_list& l = *r.links.back().in;
            l.links.erase(r.links.back());
            if (!l.links.empty())
                continue;
            l.table->erase(l);
            l.chain = unused_;
            unused_ = &l;
        }
    }

private:
    record_list& list_of(table& t, std::uint64_t common)
    {
        const auto at = spot_of(t, common);
        if (at.node)
            return *at.node;
        record_list* const l = unused_ ? std::exchange(unused_, unused_->chain) : new record_list;
        l->common = common;
        l->hash = hash_of(common);
        l->table = &t;
        t.insert(*l, at);
        return *l;
    }
    static table::spot spot_of(table& t, std::uint64_t common) noexcept
    {
        return t.find(hash_of(common),
                      [common](const record_list& l) { return l.common == common; });
    }
    static std::uint64_t hash_of(std::uint64_t common) noexcept
    {
        return (common * 0x9E3779B97F4A7C15u) >> 16; // 2^64 divided by the golden ratio (Knuth)
    }

    record_list* unused_ = nullptr;
};

} // namespace amux::detail

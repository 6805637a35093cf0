// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/context.hpp>
#include <amux/detail/intrusive_list.hpp>
#include <amux/lock_mode.hpp>
#include <amux/source_location.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace amux::detail {

struct request_record;
struct record_list;
class lock_records;

/// A record in a list of the graph of waits.
struct record_link {
    record_link* prev;
    record_link* next;
    record_list* in;
    request_record* record;
};

/// What is known of one request of a mux that keeps records, from when it waits or is granted until it is released. It
/// belongs to the request's block, and is used again with it.
struct request_record {
    request_record* prev = nullptr; // in the mux, in order of arrival
    request_record* next = nullptr;
    lock_records* kept_by = nullptr; // null: not in use
    std::uint64_t number = 0; // order of arrival in the mux

    std::uint64_t context = 0; // 0: none is known
    source_location where;
    clock::time_point asked;
    clock::time_point granted; // once it does not wait any more
    const void* block = nullptr;
    std::vector<const void*> keys; // what stands for them, while it is in use
    lock_mode mode = lock_mode::exclusive;
    bool whole = false;
    bool waits = false;
    bool ends_by_itself = false; // its wait has a limit

    // The graph's: first the links that last until it is released, then those of its wait; and those of one search.
    std::vector<record_link> links;
    std::size_t lasting_links = 0;
    std::uint64_t order = 0; // of arrival, over all muxes
    std::uint64_t search = 0;
    request_record* found_next = nullptr; // behind it in the order of the search
    request_record* found_from = nullptr; // this one waits for the next,
    request_record* found_through = nullptr; // which does not end before the wait of this record
};

/// Is told what becomes of the requests of several muxes: a `deadlock_detector`. With locks of shards held.
class wait_graph {
public:
    wait_graph() = default;
    wait_graph(const wait_graph&) = delete;
    wait_graph& operator=(const wait_graph&) = delete;

    /// It waits, or is granted at once. Throws: when it must not wait, or there is no memory; it `leaves` then, too.
    virtual void arrives(request_record& r, const context* asking) = 0;
    virtual void granted(request_record& r) noexcept = 0;
    virtual void downgraded(request_record& r) noexcept = 0;
    /// Its lock is about to be released, or its wait has ended without a grant.
    virtual void leaves(request_record& r) noexcept = 0;

protected:
    ~wait_graph() = default;
};

} // namespace amux::detail

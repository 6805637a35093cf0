// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace amux::detail {

/// A chained hash table through two members of its nodes, `Node* chain` and `std::uint64_t hash`. It owns no node.
///
/// The table starts with one bucket inside itself, so that an object with a table needs no memory of its own, and grows
/// with the most nodes that it ever held. Growing is spread over the insertions that follow: no insertion pays for all.
/// When memory for more buckets cannot be had the chains get longer instead, so inserting never fails. Nodes never move.
/// Complexity: O(1) on average.
template <class Node>
class intrusive_hash {
public:
    /// Its first bytes: a table that has held two nodes at once touches them only when it grows.
    static constexpr std::size_t seldom_touched = 16;

    intrusive_hash() = default;
    intrusive_hash(const intrusive_hash&) = delete;
    intrusive_hash& operator=(const intrusive_hash&) = delete;
    ~intrusive_hash()
    {
        release(old_);
        release(buckets_);
    }

    std::size_t size() const noexcept { return size_; }

    /// Where a node is, or else where to insert it; until the table changes.
    struct spot {
        Node* node; // null: there is none
        Node** bucket;
    };

    /// Finds the first node with this hash for which `matches(node)` is true.
    template <class Matches>
    spot find(std::uint64_t hash, Matches matches)
    {
        Node** const b = &bucket(hash);
        for (Node* n = *b; n; n = n->chain) {
            if (n->hash == hash && matches(*n))
                return {n, b};
        }
        return {nullptr, b};
    }

    void insert(Node& n) noexcept { insert(n, {nullptr, &bucket(n.hash)}); }
    /// Requires: `where` was found for the hash of `n`, and the table has not changed since.
    void insert(Node& n, const spot& where) noexcept
    {
        n.chain = *where.bucket;
        *where.bucket = &n;
        if (old_) [[unlikely]]
            move_some();
        else if (size_ > mask_) [[unlikely]]
            grow();
        ++size_;
    }

    /// Requires: `n` is in this table.
    void erase(Node& n) noexcept
    {
        Node** link = &bucket(n.hash);
        while (*link != &n)
            link = &(*link)->chain;
        *link = n.chain;
        --size_;
    }

    /// Calls `f(node)` for each; `f` may destroy the node but not touch the table.
    template <class F>
    void for_each(F f)
    {
        for (std::size_t i = moved_; old_ && i <= old_mask_; ++i)
            for_each_in(old_[i], f);
        for (std::size_t i = 0; i <= mask_; ++i) {
            // While growing, the new buckets of an old one that has not moved yet are not written yet.
            if (!old_ || (i & old_mask_) < moved_)
                for_each_in(buckets_[i], f);
        }
    }

    /// The same, and empties the table; `f` may put the node into another one.
    template <class F>
    void take_all(F f)
    {
        for_each(f);
        release(old_);
        release(buckets_);
        old_ = nullptr;
        buckets_ = &first_bucket_;
        first_bucket_ = nullptr;
        mask_ = size_ = 0;
    }

private:
    template <class F>
    static void for_each_in(Node* n, F& f)
    {
        while (n) {
            Node* const next = n->chain;
            f(*n);
            n = next;
        }
    }

    Node*& bucket(std::uint64_t hash) noexcept
    {
        if (old_ && (hash & old_mask_) >= moved_) [[unlikely]]
            return old_[hash & old_mask_];
        return buckets_[hash & mask_];
    }

    void release(Node** buckets) noexcept
    {
        if (buckets != &first_bucket_)
            delete[] buckets;
    }

    [[gnu::noinline]] void grow() noexcept
    {
        const std::size_t count = mask_ == 0 ? 8 : 2 * (std::size_t{mask_} + 1);
        // Left uninitialised: a bucket is written when the old one that it comes from is moved.
        Node** const buckets = count > most_buckets ? nullptr : new (std::nothrow) Node*[count];
        if (!buckets)
            return;
        old_ = buckets_;
        old_mask_ = mask_;
        moved_ = 0;
        buckets_ = buckets;
        mask_ = static_cast<std::uint32_t>(count - 1);
        move_some();
    }

    /// Moves a few buckets: enough for the move to be over before the table has doubled again.
    [[gnu::noinline]] void move_some() noexcept
    {
        for (int i = 0; i < 4 && moved_ <= old_mask_; ++i)
            move_bucket(moved_++);
        if (moved_ > old_mask_) {
            release(old_);
            old_ = nullptr;
        }
    }

    void move_bucket(std::size_t b) noexcept
    {
        for (std::size_t i = b; i <= mask_; i += std::size_t{old_mask_} + 1)
            buckets_[i] = nullptr;
        for (Node* n = old_[b]; n;) {
            Node* const next = n->chain;
            Node*& head = buckets_[n->hash & mask_];
            n->chain = head;
            head = n;
            n = next;
        }
    }

    static constexpr std::size_t most_buckets = std::size_t{1} << 31;

    // 32 bits: a mux that was used once, with its key's entry, is to need no more than 256 bytes.
    Node* first_bucket_ = nullptr;
    std::uint32_t old_mask_ = 0;
    std::uint32_t moved_ = 0;
    // From here on it is what every insertion and erasure touches once there are more buckets than one (see `shard_set`).
    Node** buckets_ = &first_bucket_;
    Node** old_ = nullptr; // while growing: the buckets from `moved_` on still stand here
    std::uint32_t mask_ = 0;
    std::uint32_t size_ = 0;
};

} // namespace amux::detail

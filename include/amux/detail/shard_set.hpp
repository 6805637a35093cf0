// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/admission.hpp>
#include <amux/detail/entry.hpp>
#include <amux/detail/intrusive_hash.hpp>
#include <amux/detail/request_record.hpp>
#include <amux/lock_mode.hpp>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace amux::detail {

/// The places of a request for several keys or for the whole mux, in one piece of memory; the guard gets it with the
/// grant. With an option that detects or records something every lock that is awaited has one.
template <class Rule>
struct place_block {
    place_block* chain = nullptr; // in the registry, or in a pool
    std::uint64_t hash = 0; // the context's id while it is in the registry, else 0
    std::uint32_t shards = 0; // a bit for each
    std::uint32_t size = 0;
    std::uint32_t capacity = 0;
    lock_mode mode = lock_mode::exclusive;
    bool whole = false;
    bool one_key = false;
    bool counted = false; // by a snapshot that is being made
    request_record* record = nullptr; // once one was kept

    typename Rule::place* begin() noexcept
    {
        return std::launder(reinterpret_cast<typename Rule::place*>(this + 1));
    }
    typename Rule::place* end() noexcept { return begin() + size; }
    const typename Rule::place* begin() const noexcept
    {
        return std::launder(reinterpret_cast<const typename Rule::place*>(this + 1));
    }
    const typename Rule::place* end() const noexcept { return begin() + size; }

    static place_block* make(std::size_t capacity)
    {
        using place = typename Rule::place;
        static_assert(alignof(place) <= alignof(place_block));
        void* const memory = ::operator new(sizeof(place_block) + capacity * sizeof(place));
        auto* const b = ::new (memory) place_block;
        b->capacity = static_cast<std::uint32_t>(capacity);
        for (std::size_t i = 0; i < capacity; ++i)
            ::new (static_cast<void*>(reinterpret_cast<place*>(b + 1) + i)) place;
        return b;
    }
    static void destroy(place_block* b) noexcept
    {
        delete b->record;
        ::operator delete(b);
    }
};

/// The unused blocks of one shard. Thread-safety: under the shard's lock.
template <class Rule>
class block_pool {
public:
    using block = place_block<Rule>;

    block_pool() = default;
    block_pool(const block_pool&) = delete;
    block_pool& operator=(const block_pool&) = delete;
    ~block_pool()
    {
        while (block* b = free_) {
            free_ = b->chain;
            block::destroy(b);
        }
    }

    /// A block of at least `capacity` places, empty. One that is too small is replaced: after a while all are large
    /// enough for the requests that this mux sees.
    block* make(std::size_t capacity)
    {
        block* b = free_;
        if (!b)
            return block::make(capacity);
        if (b->capacity < capacity) {
            block* const larger = block::make(capacity);
            free_ = b->chain;
            block::destroy(b);
            return larger;
        }
        free_ = b->chain;
        b->hash = 0;
        b->size = 0;
        return b;
    }

    void retire(block& b) noexcept
    {
        b.chain = free_;
        free_ = &b;
    }

    void take_all(block_pool& other) noexcept { std::swap(free_, other.free_); }

private:
    block* free_ = nullptr;
};

/// The shards of a mux: one to begin with, inside the mux; many when threads are seen to collide.
///
/// It grows once, while the lock of the first shard is held and no wall is held or waits; from then on the first shard
/// is empty and its lock only tells late comers to look again. So a reader of `all_` that saw the first shard looks once
/// more after locking it.
template <class Key, class Threading>
class shard_set {
public:
    using counter = typename Threading::template atomic<std::uint32_t>;
    using rule = admission<counter>;
    using entry = key_entry<Key, typename rule::key_state, counter>;
    using block = place_block<rule>;
    using spot = typename intrusive_hash<entry>::spot;
    using mask = std::uint32_t;

    static constexpr std::size_t most = Threading::shards;
    static_assert(std::has_single_bit(most) && most <= 32);
    static constexpr mask every = most == 32 ? ~mask{0} : (mask{1} << most) - 1;

    struct shard {
        intrusive_hash<entry> table;
        entry_pool<Key, entry> entries;
        typename Threading::mutex mutex;
        typename rule::shard_state state;
        block_pool<rule> blocks;

        bool idle() const noexcept { return state.walls_idle() && table.size() == 0; }
    };

    /// One of many. What an uncontended lock touches, from the second part of the table to the first of the state, is one
    /// cache line of 64 bytes, and no other shard's: between two cores it is passed once for a lock and once for a release.
    /// (A shard that never had two keys at once has its one bucket in the line before.)
    struct alignas(64) lone_shard {
        unsigned char before[64 - intrusive_hash<entry>::seldom_touched];
        shard itself;
    };

    /// One shard, locked.
    class locked_shard {
    public:
        explicit locked_shard(shard& s) noexcept : shard_{&s} {}
        locked_shard(const locked_shard&) = delete;
        locked_shard& operator=(const locked_shard&) = delete;
        ~locked_shard()
        {
            if (shard_)
                shard_->mutex.unlock();
        }
        /// The shard, locked: to be dropped by whoever takes it.
        shard& pass_on() noexcept { return *std::exchange(shard_, nullptr); }
        shard* operator->() const noexcept { return shard_; }
        shard& operator*() const noexcept { return *shard_; }

    private:
        shard* shard_;
    };

    /// Several shards, locked together.
    class locked_shards {
    public:
        locked_shards(shard& only, lone_shard* all, mask m) noexcept
            : only_{only}, all_{all}, mask_{m}
        {}
        locked_shards(const locked_shards&) = delete;
        locked_shards& operator=(const locked_shards&) = delete;
        ~locked_shards()
        {
            for_each([](shard& s) { s.mutex.unlock(); });
        }

        shard& of(std::uint64_t hash) const noexcept
        {
            return all_ ? all_[index(hash)].itself : only_;
        }
        mask which() const noexcept { return mask_; }
        /// The first of them: in its pool live the blocks of requests for just these shards.
        shard& lowest() const noexcept
        {
            return all_ ? all_[std::countr_zero(mask_)].itself : only_;
        }
        std::size_t size() const noexcept
        {
            return all_ ? static_cast<std::size_t>(std::popcount(mask_)) : 1;
        }

        template <class F>
        void for_each(F f) const
        {
            if (!all_)
                return f(only_);
            for (mask rest = mask_; rest; rest &= rest - 1)
                f(all_[std::countr_zero(rest)].itself);
        }
        template <class F>
        bool all_of(F f) const
        {
            bool all = true;
            for_each([&](shard& s) { all = all && f(s); });
            return all;
        }

    private:
        shard& only_; // when there are not many
        lone_shard* all_;
        mask mask_;
    };

    shard_set() = default;
    shard_set(const shard_set&) = delete;
    shard_set& operator=(const shard_set&) = delete;
    ~shard_set() { delete[] all_.load(std::memory_order_relaxed); }

    static unsigned index(std::uint64_t hash) noexcept
    {
        if constexpr (most == 1)
            return 0;
        else
            return static_cast<unsigned>(hash >> (64 - std::countr_zero(most)));
    }
    static mask mask_of(std::uint64_t hash) noexcept { return mask{1} << index(hash); }

    [[nodiscard]] locked_shard lock(std::uint64_t hash) noexcept
    {
        if constexpr (most == 1) {
            first_.mutex.lock();
            return locked_shard{first_};
        }
        if (!all_.load(std::memory_order_acquire) && lock_first())
            return locked_shard{first_};
        shard& s = all_.load(std::memory_order_acquire)[index(hash)].itself;
        s.mutex.lock();
        return locked_shard{s};
    }

    /// In the order of their index, so that two callers cannot wait for each other.
    [[nodiscard]] locked_shards lock_several(mask m) noexcept
    {
        if (!all_.load(std::memory_order_acquire) && lock_first())
            return locked_shards{first_, nullptr, m};
        lone_shard* const all = all_.load(std::memory_order_acquire);
        for (mask rest = m; rest; rest &= rest - 1)
            all[std::countr_zero(rest)].itself.mutex.lock();
        return locked_shards{first_, all, m};
    }

    /// It has many. Requires: a lock of one of them.
    bool grown() const noexcept { return all_.load(std::memory_order_relaxed) != nullptr; }

    /// The next thread to come may be any one: for destruction.
    void unbind() noexcept
    {
        if constexpr (requires { first_.mutex.unbind(); })
            first_.mutex.unbind();
    }

private:
    /// Locks the first shard if it still is the only one.
    bool lock_first() noexcept
    {
        if (!first_.mutex.try_lock()) [[unlikely]]
            collide();
        if (!grown()) [[likely]]
            return true;
        first_.mutex.unlock();
        return false;
    }

    [[gnu::noinline]] void collide() noexcept
    {
        first_.mutex.lock();
        if (most > 1 && !grown() && ++collisions_ >= Threading::collisions_to_grow)
            grow();
    }

    /// Spreads the keys of the first shard over many. It is put off while it would cost much or a wall is in the way.
    void grow() noexcept
    {
        constexpr std::size_t most_keys_to_move = 1024;
        collisions_ = 0;
        // Without a waiting exclusive place, and without walls, a shard's state is its counts alone.
        if (!first_.state.walls_idle() || first_.state.exclusive_ahead() != 0 ||
            first_.table.size() > most_keys_to_move)
            return;
        lone_shard* all = nullptr;
        try {
            // Not the form that does not throw: who replaces `operator new` seldom has that one for aligned arrays.
            all = new lone_shard[most];
        } catch (const std::bad_alloc&) {
            return;
        }
        first_.table.take_all([all](entry& e) {
            shard& to = all[index(e.hash)].itself;
            to.table.insert(e);
            to.state.adopt(e);
        });
        first_.state = {};
        all[0].itself.entries.take_all(first_.entries);
        all[0].itself.blocks.take_all(first_.blocks);
        all_.store(all, std::memory_order_release);
    }

    typename Threading::template atomic<lone_shard*> all_{nullptr}; // once there are many
    unsigned collisions_ = 0;
    shard first_;
};

} // namespace amux::detail

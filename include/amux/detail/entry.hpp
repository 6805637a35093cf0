// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

namespace amux::detail {

/// What becomes of the key of an entry that is not used any more. No destructor of the user's runs under a lock.
enum class key_disposal {
    none, // trivially destructible: the entry goes back to its shard's pool as it is
    empty, // a standard string: emptied, its buffer kept with the entry
    destroy, // anything else: destroyed after the shard's lock is dropped
};

template <class Key>
inline constexpr bool is_standard_string = false;
template <class C>
inline constexpr bool is_standard_string<std::basic_string<C>> = true;

template <class Key>
inline constexpr key_disposal disposal_of =
    std::is_trivially_destructible_v<Key> ? key_disposal::none
    : is_standard_string<Key>             ? key_disposal::empty
                                          : key_disposal::destroy;

/// Raw memory for objects of one type, kept by the thread that freed it last: up to 64 pieces a thread.
///
/// For entries whose keys are destroyed outside every lock: by then the mux may be gone, so its pools cannot take them.
template <class T>
class recycler {
public:
    [[gnu::noinline]] static void* allocate()
    {
        cache& c = this_thread();
        if (!c.first)
            return ::operator new(sizeof(T), std::align_val_t{alignof(T)});
        --c.count;
        piece* const p = c.first;
        c.first = p->next;
        return p;
    }

    [[gnu::noinline]] static void deallocate(void* memory) noexcept
    {
        cache& c = this_thread();
        if (c.count == cache::limit)
            return ::operator delete(memory, std::align_val_t{alignof(T)});
        ++c.count;
        c.first = ::new (memory) piece{c.first};
    }

private:
    struct piece {
        piece* next;
    };

    struct cache {
        static constexpr std::size_t limit = 64;
        piece* first = nullptr;
        std::size_t count = 0;

        ~cache()
        {
            while (piece* p = std::exchange(first, first ? first->next : nullptr))
                ::operator delete(static_cast<void*>(p), std::align_val_t{alignof(T)});
            count = limit; // what this thread frees from now on is not kept
        }
    };

    static cache& this_thread() noexcept
    {
        static thread_local cache c;
        return c;
    }
};

/// A key that is held or waited for, and who holds and waits. It does not move while it is in use.
template <class Key, class KeyState, class Counter>
struct key_entry : KeyState {
    key_entry* chain = nullptr; // in the table, or in a pool
    std::uint64_t hash = 0;
    Counter unresumed{0}; // granted, and the coroutine has not run yet
    std::uint32_t scratch = 0; // for one walk at a time, under the lock
    union {
        Key key;
    };

    key_entry() noexcept {}
    ~key_entry() {}
};

/// Entries whose keys are to be destroyed once no lock is held.
template <class Entry>
class dead_keys {
public:
    dead_keys() = default;
    dead_keys(const dead_keys&) = delete;
    dead_keys& operator=(const dead_keys&) = delete;
    ~dead_keys() { destroy(); }

    void destroy() noexcept
    {
        while (Entry* const e = first_) {
            first_ = e->chain;
            using key_type = decltype(e->key);
            e->key.~key_type();
            e->~Entry();
            recycler<Entry>::deallocate(e);
        }
    }

    void push(Entry& e) noexcept
    {
        e.chain = first_;
        first_ = &e;
    }

private:
    Entry* first_ = nullptr;
};

/// The unused entries of one shard. Thread-safety: under the shard's lock.
template <class Key, class Entry>
class entry_pool {
public:
    static constexpr std::size_t kept_capacity = 256; // characters

    entry_pool() = default;
    entry_pool(const entry_pool&) = delete;
    entry_pool& operator=(const entry_pool&) = delete;
    ~entry_pool()
    {
        while (Entry* e = free_) {
            free_ = e->chain;
            if constexpr (disposal == key_disposal::empty)
                e->key.~Key();
            e->~Entry();
            recycler<Entry>::deallocate(e);
        }
    }

    /// An entry for `key`, which is moved from when it is an rvalue `Key`. Throws: what making a `Key` or memory throws.
    template <class K>
    Entry& make(std::uint64_t hash, K&& key)
    {
        Entry* e = free_;
        if (!e) {
            e = make_new(std::forward<K>(key));
        } else {
            if constexpr (disposal == key_disposal::empty)
                refill(e->key, std::forward<K>(key));
            else
                ::new (static_cast<void*>(std::addressof(e->key))) Key(std::forward<K>(key));
            free_ = e->chain;
        }
        e->hash = hash;
        return *e;
    }

    /// Takes back an entry that no table holds. What must not be destroyed under the lock goes to `dead`.
    void retire(Entry& e, dead_keys<Entry>& dead) noexcept
    {
        if constexpr (disposal == key_disposal::destroy)
            return dead.push(e);
        if constexpr (disposal == key_disposal::empty) {
            if (e.key.capacity() > kept_capacity)
                return dead.push(e);
            e.key.clear();
        }
        e.chain = free_;
        free_ = &e;
    }

    void take_all(entry_pool& other) noexcept { std::swap(free_, other.free_); }

private:
    static constexpr key_disposal disposal = disposal_of<Key>;

    template <class K>
    static Entry* make_new(K&& key)
    {
        void* const memory = recycler<Entry>::allocate();
        Entry* const e = ::new (memory) Entry;
        try {
            ::new (static_cast<void*>(std::addressof(e->key))) Key(std::forward<K>(key));
        } catch (...) {
            e->~Entry();
            recycler<Entry>::deallocate(memory);
            throw;
        }
        return e;
    }

    static void refill(Key& kept, Key&& key) noexcept { kept.swap(key); }
    template <class K>
    static void refill(Key& kept, const K& key)
    {
        if (key.size() <= kept.capacity())
            kept.assign(key);
        else
            kept = Key(
                key); // assigned, it would double its buffer, which might then be too large to be kept
    }

    Entry* free_ = nullptr;
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/keys.hpp>
#include <amux/detail/lock_records.hpp>
#include <amux/detail/resume_queue.hpp>
#include <amux/detail/shard_set.hpp>
#include <amux/scheduler.hpp>
#include <amux/snapshot.hpp>
#include <amux/threading.hpp>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace amux::detail {

/// Where a request stands. Of one that waits it is changed under the locks of its shards; final once it is not `waiting`
/// any more.
enum class request_state : unsigned char {
    idle,
    waiting,
    granted,
    stopped,
    timed_out,
    closed,
    full,
};

/// The mux without its interface: the operations on its shards. Thread-safety: by its policy.
///
/// Every operation acts at one moment, with the locks of all its shards held: it changes state, and posts whom it has
/// granted, still under the locks, because a waiting frame may be destroyed by whoever gets them next. After the first
/// unlock it touches local variables only: the mux, and every request, may be gone. It destroys dead keys then, and last
/// resumes what this thread has queued (`after_unlock`).
template <class Key, class Threading, class Hash, class Equal>
class mux_core {
public:
    using key_type = Key;
    using threading = Threading;
    using shards = shard_set<Key, Threading>;
    using shard = typename shards::shard;
    using locked_shards = typename shards::locked_shards;
    using rule = typename shards::rule;
    using entry = typename shards::entry;
    using block = typename shards::block;
    using place = typename rule::place;
    using request = typename rule::request;
    using granted_list = typename rule::granted_list;
    using mask = typename shards::mask;

    /// What is posted of a request that is decided.
    struct resumption : scheduler::node {
        explicit resumption(std::coroutine_handle<> h) noexcept : node{run}, handle{h} {}
        std::coroutine_handle<> handle;

    private:
        static void run(scheduler::node& n) noexcept
        {
            static_cast<resumption&>(n).handle.resume();
        }
    };

    /// A request that may wait. It lives in the frame of its coroutine.
    struct waiter : request {
        waiter(lock_mode m, scheduler* s, std::coroutine_handle<> h) noexcept : where{s}, handle{h}
        {
            this->mode = m;
        }

        request_state state = request_state::idle;
        mask over = 0; // the shards; before a stop or a timer may come
        typename Threading::template atomic<std::uint32_t> visits{0}; // see `enter`
        scheduler* where; // null: on the thread that grants, or stops
        std::coroutine_handle<> handle;
        entry* key = nullptr; // when it is one
        block* places = nullptr; // when several
        [[no_unique_address]] mutable typename note_of<typename Threading::observer>::type note{};
        union { // one place is needed until the request is decided, the node from then on
            place own;
            resumption node;
        };
    };

    explicit mux_core(std::size_t max_waiters) noexcept : max_waiters_{max_waiters} {}

    template <class K>
    static std::uint64_t hash_of(const K& key)
    {
        return mixed(static_cast<std::size_t>(Hash{}(key)));
    }
    static mask mask_of(whole_mux) noexcept { return shards::every; }
    template <class Keys>
    static mask mask_of(const Keys& keys)
    {
        mask m = 0;
        keys.for_each([&m](const auto& k) { m |= shards::mask_of(hash_of(k)); });
        return m;
    }
    static entry& entry_of(const place& p) noexcept { return *static_cast<entry*>(p.key); }
    template <class K>
    static bool is_key_of(const place& p, const K& key)
    {
        return Equal{}(entry_of(p).key, key);
    }

    bool closed() const noexcept { return closed_.load(std::memory_order_relaxed); }

    struct taken {
        entry* key; // may be null when it was not taken
        shard* locked; // null when it was taken; else to be passed to `wait_one`, or unlocked
    };
    /// Takes the lock on one key if nothing is in the way and the mux is not closed; only then is `kept` moved from.
    template <class Kept>
    taken take_or_lock(std::uint64_t hash, Kept& kept, lock_mode mode);
    /// The same, and nothing is left locked.
    template <class Kept>
    entry* try_one(std::uint64_t hash, Kept& kept, lock_mode mode);
    /// Waits in the queue of the key: when this returns, the request is visible to others. Unlocks the shard; before that
    /// are called `stop_requested`, and for the request that is to wait `get_waiter(hash)`, and its `waits`.
    template <class Kept, class StopRequested, class GetWaiter>
    [[gnu::noinline]] request_state wait_one(shard& locked, entry* e, Kept& kept,
                                             StopRequested stop_requested, GetWaiter get_waiter);
    void release(entry& e, lock_mode mode) noexcept;
    void downgrade(entry& e) noexcept;

    /// The same for several keys, and for the whole mux. Requires: `over` is their `mask_of`, and not 0; `by` when records
    /// are kept.
    template <class Keys>
    block* try_many(const Keys& keys, mask over, lock_mode mode, const recorded_request* by);
    template <class Keys, class Waiter, class StopRequested>
    request_state arrive_many(Waiter& w, const Keys& keys, StopRequested stop_requested,
                              const recorded_request* by);
    void release(block& b) noexcept;
    /// Requires: its `mode` says so already.
    void downgrade(block& b) noexcept;

    /// A lock on no keys at all. Nothing has to be freed, so for the observer it is over at once.
    void grant_nothing(lock_mode mode) noexcept
    {
        const lock_observation o{nullptr, nullptr, 0, mode, false, nullptr, nullptr};
        observer_.on_grant(o);
        observer_.on_release(o);
    }

    /// Ends the wait, if it still waits, for this reason.
    void give_up(waiter& w, request_state reason) noexcept;
    /// The frame of `w`, which has arrived, is destroyed before it was resumed.
    void abandon(waiter& w) noexcept;
    /// The coroutine of a granted request runs.
    void resumed(waiter& w) noexcept;

    void close() noexcept;
    /// Nobody holds or waits. For the destructor: afterwards nobody is on the way out of a call, or into one.
    bool idle() noexcept;
    std::size_t tracked_keys() noexcept;
    mux_snapshot<Key> snapshot(const char* name, lock_records* records);
    auto& observer() noexcept { return observer_; }

private:
    /// What is left to do when the locks are dropped: declared before them.
    struct after_unlock {
        dead_keys<entry> dead;
        bool resumes = false;

        after_unlock() = default;
        after_unlock(const after_unlock&) = delete;
        after_unlock& operator=(const after_unlock&) = delete;
        ~after_unlock()
        {
            dead.destroy(); // before anybody runs
            if (resumes)
                resume_queue::drain();
        }
    };

    /// A block for a newcomer, with the entries of its keys; undone unless it is kept.
    class newcomer {
    public:
        newcomer(const locked_shards& locked, after_unlock& after) noexcept
            : locked_{locked}, after_{after}
        {}
        newcomer(const newcomer&) = delete;
        newcomer& operator=(const newcomer&) = delete;
        ~newcomer()
        {
            if (!block_)
                return;
            unmark();
            if (request_record* const r = lock_records::of(*block_)) [[unlikely]]
                lock_records::end(*r);
            retire_keys(locked_, *block_, after_);
            locked_.lowest().blocks.retire(*block_);
        }

        block& get() const noexcept { return *block_; }
        block* keep() noexcept { return std::exchange(block_, nullptr); }

        void prepare(whole_mux)
        {
            block_ = locked_.lowest().blocks.make(locked_.size());
            block_->shards = shards::every;
            block_->whole = true;
            block_->one_key = false;
        }

        template <class Keys>
        void prepare(const Keys& keys)
        {
            block_ = locked_.lowest().blocks.make(keys.size());
            block_->shards = locked_.which();
            block_->whole = false;
            block_->one_key = requires { keys.is_one_key; };
            keys.for_each([this](const auto& key) { this->add(key); });
            unmark();
        }

    private:
        void unmark() noexcept
        {
            for (place& p : *block_)
                entry_of(p).scratch = 0;
        }

        template <class K>
        void add(const K& key)
        {
            const std::uint64_t hash = hash_of(key);
            shard& s = locked_.of(hash);
            const auto at = find(s, hash, key);
            entry& e = at.node ? *at.node : make(s, at, hash, key);
            if (std::exchange(e.scratch, 1) != 0)
                return; // the same key again
            place& p = block_->begin()[block_->size++];
            p.key = &e;
        }

        const locked_shards& locked_;
        after_unlock& after_;
        block* block_ = nullptr;
    };

    using spot = typename shards::spot;

    template <class K>
    static spot find(shard& s, std::uint64_t hash, const K& key)
    {
        return s.table.find(hash, [&key](const entry& e) { return Equal{}(e.key, key); });
    }
    /// Makes the entry of a key that was not found.
    template <class K>
    static entry& make(shard& s, const spot& where, std::uint64_t hash, K&& key)
    {
        entry& e = s.entries.make(hash, std::forward<K>(key));
        s.table.insert(e, where);
        return e;
    }

    static void retire_if_idle(shard& s, entry& e, dead_keys<entry>& dead) noexcept
    {
        if (!e.idle())
            return;
        s.table.erase(e);
        s.entries.retire(e, dead);
    }
    static void retire_keys(const locked_shards& locked, block& b, after_unlock& after) noexcept
    {
        if (b.whole)
            return;
        for (place& p : b)
            retire_if_idle(locked.of(entry_of(p).hash), entry_of(p), after.dead);
    }

    [[gnu::noinline]] void record(block& b, bool waits, const recorded_request& by);
    static void add_requests(mux_snapshot<Key>& out, lock_records& records);
    /// Calls `f(waiter)` once or more for every request that waits.
    template <class F>
    static void for_each_waiting(const locked_shards& locked, F f);
    static bool admits(const locked_shards& locked, block& b, lock_mode mode) noexcept;
    static void occupy(const locked_shards& locked, block& b, lock_mode mode) noexcept;
    void append(const locked_shards& locked, waiter& w) noexcept;

    template <class Take>
    static void dissolve(const locked_shards& locked, waiter& w, after_unlock& after, Take take);
    void take_out(const locked_shards& locked, waiter& w, granted_list& granted,
                  after_unlock& after) noexcept;
    [[gnu::noinline]] void admit(shard& locked, entry& e) noexcept;
    void grant(granted_list& granted, after_unlock& after) noexcept;
    void grant(waiter& w, after_unlock& after) noexcept;
    static void resume(waiter& w, after_unlock& after) noexcept;

    /// A request that is refused (stopped, timed out, closed) needs the mux no more, which may be destroyed then; but a
    /// stop, a timer or the end of its frame may be just about to ask the mux for its locks. So these enter at the
    /// request, which they have, and leave with the locks held; who refuses it takes over the count of those inside, and
    /// the destructor waits for them.
    ///
    /// Returns: false when it is refused: the mux may be gone.
    static bool enter(waiter& w) noexcept
    {
        return w.visits.fetch_add(1, std::memory_order_acquire) < refused;
    }
    void leave(waiter& w) noexcept
    {
        if (w.visits.fetch_sub(1, std::memory_order_relaxed) >= refused)
            late_.fetch_sub(1, std::memory_order_relaxed);
    }
    void refuse(waiter& w, after_unlock& after) noexcept
    {
        late_.fetch_add(w.visits.fetch_add(refused, std::memory_order_release),
                        std::memory_order_relaxed);
        resume(w, after);
    }
    static constexpr std::uint32_t refused = std::uint32_t{1} << 31;

    void mark_unresumed(waiter& w, bool yes) noexcept;
    using counter = typename shards::counter;
    static void mark(counter& unresumed, lock_mode mode, bool yes) noexcept;
    [[gnu::noinline]] void mark_several(waiter& w, bool yes) noexcept;

    void observe_grant(const waiter* w, const void* key, block* b, lock_mode mode) noexcept
    {
        observer_.on_grant(observation(w, key, b, mode));
    }
    /// Optional in an observer.
    void observe_leave(const waiter& w) noexcept
    {
        if constexpr (requires { observer_.on_leave(observation_of(w)); })
            observer_.on_leave(observation_of(w));
    }
    void observe_downgrade(const void* key, block* b) noexcept
    {
        const lock_observation o = observation(nullptr, key, b, lock_mode::shared);
        if constexpr (requires { observer_.on_downgrade(o); })
            observer_.on_downgrade(o);
    }
    static lock_observation observation_of(const waiter& w) noexcept
    {
        return observation(&w, w.several ? nullptr : std::addressof(w.key->key), w.places, w.mode);
    }
    static lock_observation observation(const waiter* w, const void* key, block* b,
                                        lock_mode mode) noexcept
    {
        const bool whole = b && b->whole;
        if (b && b->one_key)
            key = std::addressof(entry_of(*b->begin()).key);
        const std::size_t keys = b ? (whole ? 0 : b->size) : 1;
        void* note = nullptr;
        if constexpr (requires { typename Threading::observer::note; })
            note = w ? std::addressof(w->note) : nullptr;
        return {w, key, keys, mode, whole, key ? nullptr : b, note};
    }

    bool take_slot() noexcept;
    void free_slot() noexcept
    {
        if (max_waiters_ != no_limit)
            waiting_.fetch_sub(1, std::memory_order_relaxed);
    }
    std::uint64_t draw_ticket() noexcept
    {
        if (shards_.grown())
            return tickets_.fetch_add(1, std::memory_order_relaxed);
        const std::uint64_t t =
            tickets_.load(std::memory_order_relaxed); // who has the only lock, is alone
        tickets_.store(t + 1, std::memory_order_relaxed);
        return t;
    }

    template <class T>
    using atomic = typename Threading::template atomic<T>;
    static constexpr std::size_t no_limit = static_cast<std::size_t>(-1);

    shards shards_;
    atomic<bool> closed_{false}; // written with all locks held
    const std::size_t max_waiters_;
    atomic<std::size_t> waiting_{0}; // kept while there is a limit
    atomic<std::uint64_t> tickets_{1};
    atomic<std::uint32_t> late_{0}; // inside, for requests that are refused
    atomic<std::uint32_t> unresumed_{0}; // whole-mux locks granted and not resumed
    [[no_unique_address]] typename Threading::observer observer_;
};

} // namespace amux::detail

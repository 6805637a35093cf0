// SPDX-License-Identifier: BSL-1.0
// Without this file the price of a lock that nobody else wants would not be known: the price that is paid always.
#include "rows.hpp"

#include "coroutines.hpp"
#include "floors.hpp"
#include "foreign.hpp"
#include "muxes.hpp"
#include "peers.hpp"

#include <memory>
#include <mutex>
#include <shared_mutex>

namespace bench {

namespace {

constexpr std::size_t operations = 100'000;

enum class kind { exclusive, shared };

/// Calls `once(key)` for `operations` keys in turn. Returns: nanoseconds for each.
template <class Key, class Once>
double in_turn(const std::vector<Key>& keys, Once once)
{
    std::size_t i = 0;
    const stopwatch watch;
    for (std::size_t n = 0; n != operations; ++n) {
        once(keys[i]);
        i = i + 1 == keys.size() ? 0 : i + 1;
    }
    return watch.each(operations);
}

/// The same, in a coroutine that awaits `lock(key)`.
template <class Key, class Lock>
detached await_in_turn(const std::vector<Key>& keys, Lock lock, double& each)
{
    std::size_t i = 0;
    const stopwatch watch;
    for (std::size_t n = 0; n != operations; ++n) {
        auto guard = co_await lock(keys[i]);
        keep(guard);
        i = i + 1 == keys.size() ? 0 : i + 1;
    }
    each = watch.each(operations);
}

template <class Key, class Lock>
row::sample awaiting(const std::vector<Key>& keys, Lock lock)
{
    return [&keys, lock] {
        double each = 0;
        await_in_turn(keys, lock, each);
        return each;
    };
}

/// By hand, with a mutex for coroutines: two things to keep.
template <kind Kind, class Key, class Map>
detached await_map_in_turn(const std::vector<Key>& keys, Map& map, double& each)
{
    std::size_t i = 0;
    const stopwatch watch;
    for (std::size_t n = 0; n != operations; ++n) {
        const typename Map::user user{map, keys[i]};
        if constexpr (Kind == kind::shared) {
            auto guard = co_await (*user).lock_shared();
            keep(guard);
        } else {
            auto guard = co_await (*user).lock();
            keep(guard);
        }
        i = i + 1 == keys.size() ? 0 : i + 1;
    }
    each = watch.each(operations);
}

template <kind Kind, class Mux, class Key>
void add_mux(row& r, std::string name, Mux& mux, const std::vector<Key>& keys)
{
    if constexpr (Kind == kind::shared)
        r.add(std::move(name), awaiting(keys, [&mux](const Key& k) { return mux.lock_shared(k); }));
    else
        r.add(std::move(name), awaiting(keys, [&mux](const Key& k) { return mux.lock(k); }));
}

/// All that a row's samples use.
template <class Key>
struct contenders {
    std::vector<Key> keys;
    amux::asyncmux<Key> mux{};
    grown_asyncmux<Key> grown{};
    amux::unsynchronized_asyncmux<Key> single{};
    keyed_floor<Key> floor{};
    coroutine_mutex unkeyed{};
    map_of<Key, std::mutex> mutexes{};
    map_of<Key, std::shared_mutex> shared_mutexes{};
    map_of<Key, coroutine_mutex> coroutine_mutexes{};
    map_of<Key, coroutine_shared_mutex> coroutine_shared_mutexes{};
    tbb_map<Key> tbb{};
};

template <kind Kind, class Key>
void add_muxes(row& r, contenders<Key>& c)
{
    add_mux<Kind>(r, "asyncmux", c.mux, c.keys);
    add_mux<Kind>(r, "asyncmux, 16 shards", c.grown.get(), c.keys);
    add_mux<Kind>(r, "unsynchronized_asyncmux", c.single, c.keys);
}

template <class Key>
void exclusive(row& r, std::size_t n)
{
    static std::unique_ptr<contenders<Key>> c; // as long as the process
    c.reset(new contenders<Key>{make_keys<Key>(n)});
    add_muxes<kind::exclusive>(r, *c);
    add_mux<kind::shared>(r, "asyncmux, shared", c->mux, c->keys);
    r.add("floor", [] {
        return in_turn(c->keys, [](const Key& k) {
            const typename keyed_floor<Key>::guard g{c->floor, k};
            keep(g);
        });
    });
    r.add("coroutine mutex, unkeyed",
          awaiting(c->keys, [](const Key&) { return c->unkeyed.lock(); }));
    r.add("map of std::mutex", [] {
        return in_turn(c->keys, [](const Key& k) {
            const typename map_of<Key, std::mutex>::user user{c->mutexes, k};
            const std::lock_guard g{*user};
            keep(g);
        });
    });
    r.add("map of coroutine mutexes", [] {
        double each = 0;
        await_map_in_turn<kind::exclusive>(c->keys, c->coroutine_mutexes, each);
        return each;
    });
    if constexpr (tbb_map<Key>::found)
        r.add("tbb::concurrent_hash_map",
              [] { return in_turn(c->keys, [](const Key& k) { c->tbb.lock_and_unlock(k); }); });

    constexpr bool ints = std::is_integral_v<Key>;
    r.at_most(1.15, "asyncmux", "floor");
    r.at_most(1.15, "asyncmux, 16 shards", "floor");
    r.at_most(1.05, "asyncmux, shared", "asyncmux");
    r.at_most(ints ? 0.6 : 1.2, "unsynchronized_asyncmux", "coroutine mutex, unkeyed");
    r.at_most(ints ? 1 / 3.5 : 1 / 3.0, "asyncmux", "map of std::mutex");
    if constexpr (tbb_map<Key>::found)
        r.at_most(ints ? 1 / 3.5 : 1 / 3.0, "asyncmux", "tbb::concurrent_hash_map");
}

template <class Key>
void shared(row& r, std::size_t n)
{
    static std::unique_ptr<contenders<Key>> c;
    c.reset(new contenders<Key>{make_keys<Key>(n)});
    add_muxes<kind::shared>(r, *c);
    r.add("map of std::shared_mutex", [] {
        return in_turn(c->keys, [](const Key& k) {
            const typename map_of<Key, std::shared_mutex>::user user{c->shared_mutexes, k};
            const std::shared_lock g{*user};
            keep(g);
        });
    });
    r.add("map of coroutine shared mutexes", [] {
        double each = 0;
        await_map_in_turn<kind::shared>(c->keys, c->coroutine_shared_mutexes, each);
        return each;
    });
    if constexpr (tbb_map<Key>::found)
        r.add("tbb::concurrent_hash_map", [] {
            return in_turn(c->keys, [](const Key& k) { c->tbb.lock_and_unlock_shared(k); });
        });
    r.at_most(1 / 4.0, "asyncmux", "map of std::shared_mutex");
    r.at_most(1 / 4.0, "asyncmux", "map of coroutine shared mutexes");
}

template <class Key>
void add_rows_of(table& t)
{
    for (const std::size_t n : {1UL, 1'000UL, 100'000UL, 1'000'000UL}) {
        const std::string keys = std::string{key_name<Key>} + ", " + short_number(n);
        t.add("exclusive, " + keys, [n](row& r) { exclusive<Key>(r, n); });
        t.add("shared, " + keys, [n](row& r) { shared<Key>(r, n); });
    }
}

/// Mutexes without a key, each as its library gives it.
void unkeyed(row& r)
{
    static const std::vector<int> one{0};
    static std::mutex standard;
    static short_lock brief;
    static coroutine_mutex ours;
    static unsynchronized_coroutine_mutex single;
    r.add("short lock", [] {
        return in_turn(one, [](int) {
            brief.lock();
            keep(brief);
            brief.unlock();
        });
    });
    r.add("std::mutex", [] {
        return in_turn(one, [](int) {
            const std::lock_guard g{standard};
            keep(g);
        });
    });
    r.add("coroutine mutex", awaiting(one, [](int) { return ours.lock(); }));
    r.add("coroutine mutex, unsynchronized", awaiting(one, [](int) { return single.lock(); }));
    for_each_foreign([&r]<class Mutex>(const char* name) {
        static Mutex m;
        r.add(name, awaiting(one, [](int) { return m.lock(); }));
    });
}

} // namespace

void add_uncontended(table& t)
{
    t.add("unkeyed", unkeyed);
    add_rows_of<std::int64_t>(t);
    add_rows_of<std::string>(t);
}

} // namespace bench

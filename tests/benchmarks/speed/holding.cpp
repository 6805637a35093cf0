// SPDX-License-Identifier: BSL-1.0
// Without this file a lock could be fast as long as there is one, and slow when a program holds many, or has many muxes.
#include "rows.hpp"

#include "coroutines.hpp"
#include "muxes.hpp"
#include "peers.hpp"

#include <memory>
#include <mutex>
#include <optional>

namespace bench {

namespace {

constexpr std::size_t held = 100'000;

template <class Mux, class Key>
detached await_all(Mux& mux, const std::vector<Key>& keys, double& each)
{
    std::vector<typename Mux::guard> guards;
    guards.reserve(keys.size());
    const stopwatch watch;
    for (const Key& k : keys) {
        auto guard = co_await mux.lock(k);
        guards.push_back(std::move(guard));
    }
    guards.clear();
    each = watch.each(keys.size());
}

template <class Mux, class Key>
double hold_all(Mux& mux, const std::vector<Key>& keys)
{
    double each = 0;
    await_all(mux, keys, each);
    return each;
}

template <class Key>
struct map_guard {
    using map = map_of<Key, std::mutex>;
    map_guard(map& m, const Key& k) : user{m, k}, lock{*user} {}
    typename map::user user;
    std::unique_lock<std::mutex> lock;
};

template <class Key>
double hold_by_hand(map_of<Key, std::mutex>& map, const std::vector<Key>& keys)
{
    std::vector<std::optional<map_guard<Key>>> guards(keys.size());
    const stopwatch watch;
    for (std::size_t i = 0; i != keys.size(); ++i)
        guards[i].emplace(map, keys[i]);
    guards.clear();
    return watch.each(keys.size());
}

template <class Key>
void hold_many(row& r)
{
    static const auto keys = make_keys<Key>(held);
    static amux::asyncmux<Key> mux;
    static grown_asyncmux<Key> grown;
    static amux::unsynchronized_asyncmux<Key> single;
    static map_of<Key, std::mutex> map;
    r.rounds(11);
    r.add("asyncmux", [] { return hold_all(mux, keys); });
    r.add("asyncmux, 16 shards", [] { return hold_all(grown.get(), keys); });
    r.add("asyncmux, new", [] {
        amux::asyncmux<Key> fresh;
        return hold_all(fresh, keys);
    });
    r.add("unsynchronized_asyncmux", [] { return hold_all(single, keys); });
    r.add("map of std::mutex", [] { return hold_by_hand(map, keys); });
    constexpr bool ints = std::is_integral_v<Key>;
    r.at_most(ints ? 0.9 : 0.6, "asyncmux", "map of std::mutex");
    r.at_most(ints ? 0.9 : 0.6, "asyncmux, 16 shards", "map of std::mutex");
    r.at_most(0.5, "unsynchronized_asyncmux", "map of std::mutex");
}

constexpr std::size_t muxes = 1'000'000;

template <class Mux>
detached use_each(Mux* all, double& each)
{
    const stopwatch watch;
    for (std::size_t i = 0; i != muxes; ++i) {
        auto guard = co_await all[i].lock(static_cast<std::int64_t>(i));
        keep(guard);
    }
    each = watch.each(muxes);
}

void a_million(row& r)
{
    using key = std::int64_t;
    using map = map_of<key, std::mutex>;
    r.rounds(3);
    r.add("asyncmux", [] {
        const auto all = std::make_unique<amux::asyncmux<key>[]>(muxes);
        double each = 0;
        use_each(all.get(), each);
        return each;
    });
    r.add("unsynchronized_asyncmux", [] {
        const auto all = std::make_unique<amux::unsynchronized_asyncmux<key>[]>(muxes);
        double each = 0;
        use_each(all.get(), each);
        return each;
    });
    r.add("map of std::mutex", [] {
        const auto all = std::make_unique<map[]>(muxes);
        const stopwatch watch;
        for (std::size_t i = 0; i != muxes; ++i) {
            const map::user user{all[i], static_cast<key>(i)};
            const std::lock_guard g{*user};
            keep(g);
        }
        return watch.each(muxes);
    });
}

} // namespace

void add_holding(table& t)
{
    t.add("hold 100k keys, int", hold_many<std::int64_t>);
    t.add("hold 100k keys, string", hold_many<std::string>);
    t.add("a million muxes, each used once", a_million);
}

} // namespace bench

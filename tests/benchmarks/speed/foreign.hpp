// SPDX-License-Identifier: BSL-1.0
// Without this file amux would be compared with our own idea of other libraries only.
//
// Adapters for what is found on this machine: CMakeLists.txt looks, and defines BENCH_NAME.
#pragma once

#include <cstddef>

#if defined(BENCH_TBB)
#include <tbb/concurrent_hash_map.h>
#endif
#if defined(BENCH_LIBCORO)
#include <coro/mutex.hpp>
#endif
#if defined(BENCH_CPPCORO)
#include <cppcoro/async_mutex.hpp>
#endif
#if defined(BENCH_ASYNC_SIMPLE)
#include <async_simple/coro/Mutex.h>
#endif

namespace bench {

/// TBB's map as a keyed lock: an accessor locks its element.
template <class Key>
class tbb_map {
#if defined(BENCH_TBB)
public:
    static constexpr bool found = true;
    using map = tbb::concurrent_hash_map<Key, char>;

    void lock_and_unlock(const Key& key)
    {
        typename map::accessor a;
        map_.insert(a, key);
        map_.erase(a);
    }
    void lock_and_unlock_shared(const Key& key)
    {
        typename map::const_accessor a;
        map_.insert(a, key);
        map_.erase(a);
    }

private:
    map map_;
#else
public:
    static constexpr bool found = false;
    void lock_and_unlock(const Key&) {}
    void lock_and_unlock_shared(const Key&) {}
#endif
};

#if defined(BENCH_LIBCORO)
struct libcoro_mutex {
    auto lock() { return mutex.scoped_lock(); }
    coro::mutex mutex;
};
#endif
#if defined(BENCH_CPPCORO)
struct cppcoro_mutex {
    auto lock() { return mutex.scoped_lock_async(); }
    cppcoro::async_mutex mutex;
};
#endif
#if defined(BENCH_ASYNC_SIMPLE)
struct async_simple_mutex {
    auto lock() { return mutex.coScopedLock(); }
    async_simple::coro::Mutex mutex;
};
#endif

/// Calls `f.operator()<Mutex>(name)` for the mutex of each library that was found. None of them has keys.
template <class F>
void for_each_foreign([[maybe_unused]] F f)
{
#if defined(BENCH_LIBCORO)
    f.template operator()<libcoro_mutex>("libcoro");
#endif
#if defined(BENCH_CPPCORO)
    f.template operator()<cppcoro_mutex>("cppcoro");
#endif
#if defined(BENCH_ASYNC_SIMPLE)
    f.template operator()<async_simple_mutex>("async_simple");
#endif
}

} // namespace bench

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/detail/entry.hpp>
#include <amux/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector> // with the concepts of iterators; <iterator> would add those of streams

namespace amux {

/// What can be the key of a mux.
///
/// Law: two keys are the same lock when the mux's `Equal` says so; a key does not change while it is one.
template <class Key>
concept lock_key = std::copy_constructible<Key> && std::is_nothrow_move_constructible_v<Key> &&
                   std::is_nothrow_destructible_v<Key>;

/// Hash of strings and of what converts to them without a copy; equal text has equal hashes.
struct transparent_string_hash {
    using is_transparent = void;
    template <class C>
    std::size_t operator()(const std::basic_string<C>& s) const noexcept
    {
        return std::hash<std::basic_string_view<C>>{}(s);
    }
    template <class C>
    std::size_t operator()(std::basic_string_view<C> s) const noexcept
    {
        return std::hash<std::basic_string_view<C>>{}(s);
    }
};

/// Equality, also between a key and what can stand for it.
struct transparent_equal {
    using is_transparent = void;
    template <class A, class B>
    bool operator()(const A& a, const B& b) const
    {
        return a == b;
    }
};

namespace detail {

template <class Key>
struct default_hash_of {
    using hash = std::hash<Key>;
    using equal = transparent_equal;
};
template <class C>
struct default_hash_of<std::basic_string<C>> {
    using hash = transparent_string_hash;
    using equal = transparent_equal;
};

template <class T>
concept transparent = requires { typename T::is_transparent; };

/// What `K` stands for when it is not a `Key` itself: a view, for a string key, of anything that converts to one.
template <class Key, class K>
struct stand_in {
    using type = std::remove_cvref_t<K>;
};
template <class C, class K>
    requires std::convertible_to<const K&, std::basic_string_view<C>>
struct stand_in<std::basic_string<C>, K> {
    using type = std::basic_string_view<C>;
};

/// `K` is no `Key`, but can be looked up, and made into one when it must be kept.
template <class K, class Key, class Hash, class Equal>
concept key_like =
    transparent<Hash> && transparent<Equal> && !std::same_as<std::remove_cvref_t<K>, Key> &&
    !std::same_as<std::remove_cvref_t<K>, std::stop_token> &&
    requires(const typename stand_in<Key, std::remove_reference_t<K>>::type& k, const Key& key) {
        { Hash{}(k) } -> std::convertible_to<std::size_t>;
        { Equal{}(key, k) } -> std::convertible_to<bool>;
        Key(k);
    };

/// One key of a description. `look()` to hash and compare it, `take()` to make a `Key`, which may move it away.
template <class Key>
struct key_by_reference {
    const Key* key;
    const Key& look() const noexcept { return *key; }
    const Key& take() noexcept { return *key; }
};
template <class Key>
struct key_by_value {
    Key key;
    const Key& look() const noexcept { return key; }
    Key&& take() noexcept { return std::move(key); }
};

/// How a call's argument is kept: an lvalue is referred to, an rvalue moved in; a view is copied, and so refers to the
/// same text, and so is a small trivial key, which is no dearer than a reference; what can only be converted to a key is
/// converted at once.
template <class Key, class Hash, class Equal, class Arg>
auto keep_key(Arg&& arg)
{
    using plain = std::remove_cvref_t<Arg>;
    constexpr bool is_lvalue = std::is_lvalue_reference_v<Arg>;
    constexpr bool is_small = std::is_trivially_copyable_v<plain> && !std::is_array_v<plain> &&
                              sizeof(plain) <= 2 * sizeof(void*);
    if constexpr (std::same_as<plain, Key> && is_lvalue && !is_small) {
        return key_by_reference<Key>{std::addressof(arg)};
    } else if constexpr (key_like<Arg, Key, Hash, Equal>) {
        using kept = typename stand_in<Key, std::remove_reference_t<Arg>>::type;
        if constexpr (std::same_as<kept, plain> && is_lvalue && !is_small)
            return key_by_reference<plain>{std::addressof(arg)};
        else
            return key_by_value<kept>{kept(std::forward<Arg>(arg))};
    } else {
        return key_by_value<Key>{Key(std::forward<Arg>(arg))};
    }
}

/// The keys of a request come in three kinds: none (the whole mux), one, and several.
struct whole_mux {};

template <class Kept>
struct one_key {
    static constexpr bool is_one_key = true;
    Kept kept;
    static constexpr std::size_t size() noexcept { return 1; }
    template <class F>
    void for_each(F f) const
    {
        f(kept.look());
    }
};

/// For a message: one key, if it is text or an integer.
template <class Keys>
std::string key_text_of(const Keys& keys)
{
    if constexpr (requires { Keys::is_one_key; })
        return key_text(keys.kept.look());
    else
        return {};
}

/// Keys named one by one.
template <class... Kept>
struct listed_keys {
    std::tuple<Kept...> kept;
    static constexpr std::size_t size() noexcept { return sizeof...(Kept); }
    template <class F>
    void for_each(F f) const
    {
        std::apply([&](const Kept&... k) { (f(k.look()), ...); }, kept);
    }
};

template <class... Kept>
listed_keys<Kept...> to_listed_keys(std::tuple<Kept...> kept)
{
    return {std::move(kept)};
}

/// The keys in a range: `Range` is a pointer to the caller's, or one that was moved in.
template <class Key, class Hash, class Equal, class Range>
struct range_keys {
    mutable Range range; // a view may be iterable only when it is not const

    auto& get() const noexcept
    {
        if constexpr (std::is_pointer_v<Range>)
            return *range;
        else
            return range;
    }
    std::size_t size() const
    {
        std::size_t n = 0;
        for (auto it = std::begin(get()); it != std::end(get()); ++it)
            ++n;
        return n;
    }
    template <class F>
    void for_each(F f) const
    {
        for (auto&& k : get()) {
            using element = std::remove_cvref_t<decltype(k)>;
            if constexpr (std::same_as<element, Key>)
                f(static_cast<const Key&>(k));
            else
                f(static_cast<const typename stand_in<Key, element>::type&>(k));
        }
    }
};

template <class R>
concept key_range = requires(std::remove_cvref_t<R>& r) {
    std::begin(r) != std::end(r);
    ++std::declval<decltype(std::begin(r))&>();
    *std::begin(r);
};

/// An lvalue range is referred to, an rvalue moved in. One that can be walked only once, that makes its elements as it is
/// walked, or whose elements can only be converted to keys, is copied into a vector: a key that dies under a lock might
/// call the mux.
template <class Key, class Hash, class Equal, class R>
auto keep_range(R&& r)
{
    using plain = std::remove_cvref_t<R>;
    using element = std::remove_cvref_t<decltype(*std::begin(r))>;
    if constexpr (!std::forward_iterator<decltype(std::begin(r))> ||
                  !std::is_lvalue_reference_v<decltype(*std::begin(r))> ||
                  !(std::same_as<element, Key> || key_like<element, Key, Hash, Equal>)) {
        std::vector<Key> keys;
        for (auto&& k : r)
            keys.push_back(Key(std::forward<decltype(k)>(k)));
        return range_keys<Key, Hash, Equal, std::vector<Key>>{std::move(keys)};
    } else if constexpr (std::is_lvalue_reference_v<R>) {
        return range_keys<Key, Hash, Equal, std::remove_reference_t<R>*>{std::addressof(r)};
    } else {
        return range_keys<Key, Hash, Equal, plain>{std::forward<R>(r)};
    }
}

/// Spreads a hash over all bits: the upper ones choose the shard, the lower ones the bucket.
inline std::uint64_t mixed(std::size_t hash) noexcept
{
    // A multiplication carries upwards only: bits that stand high are folded down first, and brought down after it.
    const std::uint64_t all{hash};
    const std::uint64_t h =
        (all ^ (all >> 32)) * 0x9E3779B97F4A7C15u; // 2^64 divided by the golden ratio (Knuth)
    return h ^ (h >> 32);
}

} // namespace detail
} // namespace amux

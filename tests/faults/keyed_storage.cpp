// SPDX-License-Identifier: BSL-1.0
// Without this file keys may leak, be confused, live too long, or break the mux when one of their functions throws.
#include "support/growing_policy.hpp"
#include "support/request.hpp"
#include "support/scale.hpp"

#include <amux/asyncmux.hpp>
#include <amux/manual_event_loop.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <array>
#include <cctype>
#include <chrono>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <sstream>
#include <iterator>
#include <list>
#include <ranges>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using amux::asyncmux;
using support::request;

TEST_CASE("asyncmux: no key stays behind, however its request ends", "[asyncmux][keys]")
{
    const int keys = support::scaled(100000);
    amux::manual_event_loop loop;
    asyncmux<int> mux{{.max_waiters = 1}};
    request holder{mux.lock()};
    for (int i = 0; i != keys; ++i) {
        const auto n = static_cast<std::size_t>(i % 6);
        std::stop_source stop;
        REQUIRE_FALSE(mux.try_lock(i));
        request waiter{mux.try_lock_for(i, 1ms, stop.get_token()), {.where = &loop}};
        request full{mux.lock(int{i + 1})};
        REQUIRE(full.state() == "full");
        if (n == 0)
            stop.request_stop();
        else if (n == 1)
            loop.advance(1ms);
        else
            waiter.destroy();
        loop.run_ready();
        REQUIRE(waiter.state() == (n < 2 ? "empty" : "destroyed"));
    }
    CHECK(mux.tracked_keys() == 0);
    holder.unlock();
    for (int i = 0; i != keys; ++i) {
        REQUIRE(mux.try_lock(i));
        REQUIRE(mux.try_lock_all_shared(i, i + 1));
    }
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: the table grows while requests wait in it", "[asyncmux][keys]")
{
    asyncmux<std::string> mux;
    request holder{mux.lock("first")};
    request waiter{mux.lock_shared("first")};
    std::vector<asyncmux<>::guard> held;
    for (int i = 0; i != 5000; ++i) {
        held.push_back(mux.try_lock(std::to_string(i)));
        REQUIRE(held.back());
    }
    CHECK(mux.tracked_keys() == 5001);
    CHECK_FALSE(mux.try_lock("first"));
    for (int i = 0; i != 5000; ++i)
        REQUIRE_FALSE(mux.try_lock_shared(std::to_string(i)));
    holder.unlock();
    CHECK(waiter.state() == "owns");
    held.clear();
    CHECK(mux.tracked_keys() == 1);
}

namespace {

struct same_hash {
    template <class T>
    std::size_t operator()(const T&) const noexcept
    {
        return 42;
    }
};

struct ignores_case {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const noexcept
    {
        std::size_t h = 0;
        for (const char c : s)
            h = h * 31 + static_cast<std::size_t>(std::tolower(static_cast<unsigned char>(c)));
        return h;
    }
    bool operator()(std::string_view a, std::string_view b) const noexcept
    {
        return a.size() == b.size() && (*this)(a) == (*this)(b);
    }
};

/// What a key is looked up by, too large to be copied into a description.
struct article {
    std::array<char, 48> title{};
    int number = 0;
    explicit operator int() const noexcept { return number; }
};

struct by_number {
    using is_transparent = void;
    static int of(int n) noexcept { return n; }
    static int of(const article& a) noexcept { return a.number; }
    template <class T>
    std::size_t operator()(const T& t) const noexcept
    {
        return static_cast<std::size_t>(of(t));
    }
    template <class A, class B>
    bool operator()(const A& a, const B& b) const noexcept
    {
        return of(a) == of(b);
    }
};

/// A key that is no string, but made of text and looked up by it.
struct player {
    std::string name;
    explicit player(std::string_view n) : name{n} {}
};

struct by_name {
    using is_transparent = void;
    static std::string_view of(std::string_view n) noexcept { return n; }
    static std::string_view of(const player& p) noexcept { return p.name; }
    template <class T>
    std::size_t operator()(const T& t) const noexcept
    {
        return std::hash<std::string_view>{}(of(t));
    }
    template <class A, class B>
    bool operator()(const A& a, const B& b) const noexcept
    {
        return of(a) == of(b);
    }
};

} // namespace

TEST_CASE("asyncmux: a literal of any length looks a key up that is no string", "[asyncmux][keys]")
{
    asyncmux<player, amux::multi_threaded, by_name, by_name> mux;
    request holder{mux.lock("short")};
    CHECK(holder.guard().key()->name == "short");
    CHECK_FALSE(mux.try_lock(player{"short"}));
    request both{mux.lock_all("tall", "one of more than sixteen characters")};
    CHECK(both.state() == "owns");
    CHECK_FALSE(mux.try_lock_shared("tall"));
    CHECK_FALSE(mux.try_lock("one of more than sixteen characters"));
    CHECK(mux.tracked_keys() == 3);
}

TEST_CASE("asyncmux: a key may be looked up by something large, which is not copied",
          "[asyncmux][keys]")
{
    asyncmux<int, amux::multi_threaded, by_number, by_number> mux;
    article a;
    a.number = 7;
    request holder{mux.lock(a)};
    REQUIRE(holder.guard().key() != nullptr);
    CHECK(*holder.guard().key() == 7);
    auto described = mux.lock(a);
    a.number = 8; // it refers to this one until it is granted
    request other{std::move(described)};
    CHECK(other.state() == "owns");
    CHECK_FALSE(mux.try_lock(7));
    CHECK_FALSE(mux.try_lock(a));
    CHECK(mux.tracked_keys() == 2);
}

TEST_CASE("asyncmux: a mux with very many keys is divided only when they have gone",
          "[asyncmux][keys]")
{
    asyncmux<int, walks::growing<4>> mux;
    std::vector<decltype(mux)::guard> held;
    for (int i = 0; i != 1100; ++i)
        held.push_back(mux.try_lock(i));
    const int mutexes = walks::noticed::mutexes;
    walks::noticed::collisions = 1;
    held.push_back(mux.try_lock(5000));
    CHECK(walks::noticed::mutexes == mutexes); // to move them would keep everybody waiting
    held.resize(100);
    walks::noticed::collisions = 1;
    held.push_back(mux.try_lock(5000));
    CHECK(walks::noticed::mutexes == mutexes + 4);
    CHECK(mux.tracked_keys() == 101);
    CHECK_FALSE(mux.try_lock(99));
}

TEST_CASE("asyncmux: keys with one hash are told apart by their equality", "[asyncmux][keys]")
{
    asyncmux<int, amux::multi_threaded, same_hash> mux;
    std::vector<decltype(mux)::guard> held;
    for (int i = 0; i != 300; ++i)
        held.push_back(mux.try_lock(i));
    for (int i = 0; i != 300; ++i)
        REQUIRE_FALSE(mux.try_lock(i));
    held.erase(held.begin() + 100, held.begin() + 200);
    for (int i = 0; i != 300; ++i)
        REQUIRE(mux.try_lock(i).owns_lock() == (i >= 100 && i < 200));
    held.clear();
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: keys that are equal but not identical are one lock", "[asyncmux][keys]")
{
    asyncmux<std::string, amux::multi_threaded, ignores_case, ignores_case> mux;
    request holder{mux.lock("Key")};
    request waiter{mux.lock(std::string("KEY"))};
    CHECK(waiter.state() == "waits");
    holder.unlock();
    CHECK(*waiter.guard().key() == "Key"); // the first who asked named it
    waiter.unlock();
    CHECK(mux.try_lock_all("a", "A", "b"));
    request both{mux.lock_all("a", "A")};
    CHECK(both.state() == "owns");
    CHECK(mux.tracked_keys() == 1);
}

TEST_CASE("asyncmux: a string key is given as a literal, a view, an lvalue or an rvalue",
          "[asyncmux][keys]")
{
    asyncmux<> mux;
    std::string lvalue = "key";
    const std::string constant = "key";
    const char* const pointer = "key";
    char array[] = "key";
    const std::string_view view = "key and more";
    request first{mux.lock(view.substr(0, 3))};
    support::requests<asyncmux<>> all;
    all.emplace_back(mux.lock("key"));
    all.emplace_back(mux.lock(lvalue));
    all.emplace_back(mux.lock(constant));
    all.emplace_back(mux.lock(std::string("key")));
    all.emplace_back(mux.lock(std::as_const(constant), std::stop_token{}));
    all.emplace_back(mux.lock(pointer));
    all.emplace_back(mux.lock(array));
    all.emplace_back(mux.lock({"key", 3}));
    all.emplace_back(mux.lock_shared(std::string_view("key")));
    CHECK(mux.tracked_keys() == 1);
    first.unlock();
    for (auto& r : all) {
        REQUIRE(r.state() == "owns");
        CHECK(*r.guard().key() == "key");
        r.unlock();
    }
    CHECK(lvalue == "key");
}

TEST_CASE("asyncmux: strings of other characters are keys as well", "[asyncmux][keys]")
{
    asyncmux<std::u16string> mux;
    auto g = mux.try_lock(u"key");
    CHECK(g);
    CHECK_FALSE(mux.try_lock(std::u16string_view(u"key")));
    asyncmux<std::wstring> wide;
    CHECK(wide.try_lock(L"key"));
    asyncmux<std::string_view> views; // kept as they are: the text outlives the lock
    CHECK(views.try_lock("key"));
}

namespace {

enum class color { red, green };

struct point {
    int x = 0;
    int y = 0;
};
struct point_hash {
    std::size_t operator()(const point& p) const noexcept
    {
        return static_cast<std::size_t>(p.x * 31 + p.y);
    }
};
struct same_point {
    bool operator()(const point& a, const point& b) const noexcept
    {
        return a.x == b.x && a.y == b.y;
    }
};

/// Anything converts to it.
struct any_key {
    std::size_t value = 0;
    template <class T>
        requires(!std::same_as<T, any_key>)
    any_key(const T&) : value{sizeof(T)}
    {}
    bool operator==(const any_key&) const = default;
};
struct any_hash {
    std::size_t operator()(const any_key& k) const noexcept { return k.value; }
};

} // namespace

TEST_CASE("asyncmux: an enumeration, an integer, a pointer or a struct is a key",
          "[asyncmux][keys]")
{
    asyncmux<color> colors;
    auto red = colors.try_lock(color::red);
    CHECK_FALSE(colors.try_lock(color::red));
    CHECK(colors.try_lock(color::green));

    asyncmux<point, amux::multi_threaded, point_hash, same_point> points;
    auto p = points.try_lock({1, 2});
    CHECK(p.key()->y == 2);
    CHECK_FALSE(points.try_lock(point{1, 2}));
    CHECK(points.try_lock_all(std::vector<point>{{1, 3}, {2, 2}}));

    asyncmux<const int*> pointers;
    const int a = 0;
    CHECK(pointers.try_lock(&a));
    asyncmux<std::unique_ptr<int>*> more_pointers;
    CHECK(more_pointers.try_lock(nullptr));
    asyncmux<bool> flags;
    CHECK(flags.try_lock(true));
    asyncmux<std::shared_ptr<int>> shared;
    CHECK(shared.try_lock(std::make_shared<int>(1)));
    amux::unsynchronized_asyncmux<color> unsynchronized;
    CHECK(unsynchronized.try_lock_all_shared(color::red, color::green));
}

TEST_CASE("asyncmux: a key that anything converts to makes no call ambiguous", "[asyncmux][keys]")
{
    using mux_type = asyncmux<any_key, amux::multi_threaded, any_hash>;
    mux_type mux;
    amux::manual_event_loop loop;
    std::stop_source source;
    const std::stop_token stop = source.get_token();
    const auto till = loop.now() + 1s;
    const any_key key{1};
    const support::asker here{.where = &loop};
    const auto tracked_by = [&](auto asked) {
        request r{std::move(asked), here};
        REQUIRE(r.state() == "owns");
        return mux.tracked_keys();
    };
    CHECK(tracked_by(mux.lock()) == 0);
    CHECK(tracked_by(mux.lock(stop)) == 0);
    CHECK(tracked_by(mux.lock(std::stop_token{})) == 0);
    CHECK(tracked_by(mux.lock("text")) == 1);
    CHECK(tracked_by(mux.lock(1.5, stop)) == 1);
    CHECK(tracked_by(mux.lock(key)) == 1);
    CHECK(tracked_by(mux.lock_shared(any_key{2}, stop)) == 1);
    CHECK(tracked_by(mux.try_lock_for(1s)) == 0);
    CHECK(tracked_by(mux.try_lock_for(1s, stop)) == 0);
    CHECK(tracked_by(mux.try_lock_for(key, 1s, stop)) == 1);
    CHECK(tracked_by(mux.try_lock_shared_for(1s, 1s, stop)) == 1);
    CHECK(tracked_by(mux.try_lock_until(till)) == 0);
    CHECK(tracked_by(mux.try_lock_until(till, stop)) == 0);
    CHECK(tracked_by(mux.try_lock_shared_until(till, till, stop)) == 1);
    CHECK(tracked_by(mux.lock_all('c', 1.0, stop)) == 2);
    CHECK(tracked_by(mux.lock_all(std::vector<any_key>{key}, stop)) == 1);
    CHECK(tracked_by(mux.lock_all(std::vector<double>{1, 2}, stop)) == 1);
    CHECK(mux.try_lock());
    CHECK(mux.try_lock(1));
}

TEST_CASE("asyncmux: keys of a set come as any range, or one by one", "[asyncmux][keys]")
{
    asyncmux<> mux;
    const auto tracked_by = [&](auto asked) {
        request r{std::move(asked)};
        REQUIRE(r.state() == "owns");
        REQUIRE(r.guard().key() == nullptr);
        return mux.tracked_keys();
    };
    std::vector<std::string> lvalue{"a", "b", "a"};
    const std::list<const char*> list{"a", "b", "c"};
    const std::string_view views[] = {"a", "b"};
    const std::initializer_list<std::string_view> braces{"a", "b", "b", "c"};
    const std::string text = "a";
    std::stop_token stop;
    CHECK(tracked_by(mux.lock_all(lvalue)) == 2);
    CHECK(tracked_by(mux.lock_all(std::as_const(lvalue), stop)) == 2);
    CHECK(tracked_by(mux.lock_all(std::vector(lvalue))) == 2);
    CHECK(tracked_by(mux.lock_all(list)) == 3);
    CHECK(tracked_by(mux.lock_all(views)) == 2);
    CHECK(tracked_by(mux.lock_all(braces, std::stop_token{})) == 3);
    CHECK(tracked_by(mux.lock_all(std::array{"x", "y"})) == 2);
    CHECK(tracked_by(mux.lock_all_shared(std::vector<std::string_view>{"x"})) == 1);
    CHECK(tracked_by(mux.lock_all("a", text, std::string("b"), std::string_view("c"))) == 3);
    CHECK(tracked_by(mux.lock_all_shared("a", "a", stop)) == 1);
    CHECK(tracked_by(mux.lock_all(std::vector<std::string>{})) == 0);
    std::istringstream words{"one two two"};
    struct {
        std::istringstream& from;
        auto begin() const { return std::istream_iterator<std::string>{from}; }
        auto end() const { return std::istream_iterator<std::string>{}; }
    } once{words}; // can be walked only once
    CHECK(tracked_by(mux.lock_all(once)) == 2);
    CHECK(lvalue == std::vector<std::string>{"a", "b", "a"});
    CHECK(mux.try_lock_all("a", "b"));
    CHECK(mux.try_lock_all_shared(views));
}

TEST_CASE("asyncmux: an empty set of keys is granted at once and owns nothing to free",
          "[asyncmux][keys]")
{
    amux::manual_event_loop loop;
    const bool detects = GENERATE(false, true);
    asyncmux<> mux{{.prevent_reentrancy = detects, .max_waiters = 0}};
    auto whole = mux.try_lock();
    const std::vector<std::string> none;
    request r{mux.lock_all(none)};
    CHECK(r.state() == "owns");
    CHECK(r.guard().mode() == amux::lock_mode::exclusive);
    r.guard().downgrade();
    CHECK(r.guard().mode() == amux::lock_mode::shared);
    CHECK(r.guard().owns_lock());
    CHECK(r.guard().key() == nullptr);
    r.unlock();
    CHECK_FALSE(r.guard().owns_lock());
    CHECK(mux.try_lock_all_shared(none));
    request timed{mux.try_lock_all_for(none, 1s), {.where = &loop}};
    CHECK(timed.state() == "owns");
}

namespace {

/// Counts its objects, and calls a mux from its destructor, as the last owner of something may.
struct calling_key {
    static inline int alive = 0;
    static inline std::size_t (*on_destruction)() = nullptr;

    explicit calling_key(int i) : id{i} { ++alive; }
    calling_key(const calling_key& other) : id{other.id} { ++alive; }
    calling_key(calling_key&& other) noexcept : id{other.id} { ++alive; }
    calling_key& operator=(const calling_key&) = default;
    ~calling_key()
    {
        --alive;
        if (on_destruction)
            on_destruction();
    }
    bool operator==(const calling_key&) const = default;
    int id;
};
struct id_hash {
    template <class T>
    std::size_t operator()(const T& k) const
    {
        return static_cast<std::size_t>(k.id);
    }
};
using calling_mux = asyncmux<calling_key, amux::multi_threaded, id_hash>;
calling_mux* called = nullptr;

struct calls_mux {
    explicit calls_mux(calling_mux& mux)
    {
        called = &mux;
        calling_key::on_destruction = [] { return called->tracked_keys(); };
    }
    ~calls_mux() { calling_key::on_destruction = nullptr; }
};

} // namespace

// Where a key were destroyed under an internal lock, this would hang.
TEST_CASE("asyncmux: a key is destroyed at once, and may call the mux as it goes",
          "[asyncmux][keys]")
{
    calling_mux mux;
    calling_key::alive = 0;
    {
        const calls_mux calls{mux};
        const calling_key key{1};
        auto g = mux.try_lock(key);
        CHECK(calling_key::alive == 2);
        {
            request waiter{mux.lock(calling_key{1})};
            request shared{mux.lock_shared(key)};
            CHECK_FALSE(mux.try_lock_all(key, calling_key{2}));
            CHECK_FALSE(mux.try_lock_all(std::vector<calling_key>{key, calling_key{3}}));
            CHECK(mux.snapshot().keys.size() == 1);
            g.unlock();
            CHECK(waiter.state() == "owns");
        }
        CHECK(calling_key::alive == 1);
        CHECK(mux.try_lock_all(calling_key{1}, calling_key{2}, calling_key{2}));
        CHECK(calling_key::alive == 1);
        for (int i = 0; i != 5; ++i)
            g = mux.try_lock(calling_key{i});
        g.unlock();
        CHECK(calling_key::alive == 1);
    }
    CHECK(calling_key::alive == 0);
}

TEST_CASE("asyncmux: a snapshot of many keys destroys none of its copies under a lock",
          "[asyncmux][keys]")
{
    calling_mux mux;
    std::vector<calling_mux::guard> held;
    for (int i = 0; i != 100; ++i)
        held.push_back(mux.try_lock(calling_key{i}));
    {
        const calls_mux calls{mux};
        CHECK(mux.snapshot().keys.size() == 100);
    }
    held.clear();
    CHECK(mux.tracked_keys() == 0);
}

namespace {

struct converts_to_calling_key {
    int id;
    operator calling_key() const { return calling_key{id}; }
};

} // namespace

TEST_CASE("asyncmux: what only converts to a key is converted outside every lock",
          "[asyncmux][keys]")
{
    calling_mux mux;
    {
        const calls_mux calls{mux};
        using convertible = converts_to_calling_key;
        const std::vector<convertible> range{{1}, {2}, {1}};
        CHECK(mux.try_lock(convertible{1}));
        CHECK(mux.try_lock_all(range));
        request listed{mux.lock_all(convertible{1}, convertible{2})};
        CHECK(mux.tracked_keys() == 2);
        CHECK_FALSE(mux.try_lock_all(std::vector(range)));
    }
    CHECK(mux.tracked_keys() == 0);
}

TEST_CASE("asyncmux: the buffer of a string key is kept up to 256 characters, and no further",
          "[asyncmux][keys]")
{
    asyncmux<> mux;
    const std::string longest(256, 'l');
    const std::string too_long(257, 't');
    mux.try_lock(longest).unlock();
    {
        auto reuses = mux.try_lock("short");
        CHECK(reuses.key()->capacity() >= 256);
    }
    mux.try_lock(too_long).unlock();
    {
        auto starts_anew = mux.try_lock("short");
        CHECK(starts_anew.key()->capacity() < 257);
    }
}

namespace {

/// Throws at the n-th step of what a key does: copy, hash, equality.
struct fused_key {
    static inline int fuse = -1; // negative: never
    static void burn()
    {
        if (fuse > 0 && --fuse == 0)
            throw std::runtime_error{"fuse"};
    }

    explicit fused_key(int i) noexcept : id{i} {}
    fused_key(const fused_key& other) : id{other.id} { burn(); }
    fused_key(fused_key&& other) noexcept = default;
    int id;
};
struct fused_hash {
    std::size_t operator()(const fused_key& k) const
    {
        fused_key::burn();
        return static_cast<std::size_t>(k.id % 2);
    }
};
struct fused_equal {
    bool operator()(const fused_key& a, const fused_key& b) const
    {
        fused_key::burn();
        return a.id == b.id;
    }
};
using fused_mux = asyncmux<fused_key, amux::multi_threaded, fused_hash, fused_equal>;

} // namespace

TEST_CASE("asyncmux: a copy, hash or equality that throws leaves everything as it was",
          "[asyncmux][keys][exceptions]")
{
    const int which = GENERATE(0, 1, 2, 3, 4, 5, 6, 7);
    const bool held = GENERATE(false, true);
    const bool detects = GENERATE(false, true);
    amux::manual_event_loop loop;
    amux::context me;
    fused_mux mux{{.prevent_reentrancy = detects, .max_waiters = 2}};
    const fused_key key{1};
    const std::vector<fused_key> keys{fused_key{3}, fused_key{1}, fused_key{2}, fused_key{1}};
    const auto ask = [&](support::requests<fused_mux>& to, std::stop_token stop) {
        const support::asker as{.where = &loop, .who = &me};
        switch (which) {
            case 0:
                return void(to.emplace_back(mux.lock(key, stop), as));
            case 1:
                return void(to.emplace_back(mux.lock_shared(fused_key{1}, stop), as));
            case 2:
                return void(to.emplace_back(mux.lock_all(keys, stop), as));
            case 3:
                return void(to.emplace_back(mux.lock_all(key, fused_key{2}, stop), as));
            case 4:
                return void(to.emplace_back(mux.try_lock_for(key, 1s, stop), as));
            case 5:
                return void(to.emplace_back(mux.try_lock_all_shared_for(keys, 0s, stop), as));
            case 6:
                return void(mux.try_lock(key));
            default:
                return void(mux.try_lock_all(keys));
        }
    };
    request holder{mux.lock(fused_key{5})}; // collides with some of them
    request blocker{mux.lock(held ? fused_key{1} : fused_key{7})};

    int fuse = 0;
    for (bool threw = true; threw;) {
        std::stop_source stop;
        support::requests<fused_mux> asks;
        fused_key::fuse = ++fuse;
        threw = false;
        try {
            ask(asks, stop.get_token());
            threw = !asks.empty() && asks.back().state() == "threw";
        } catch (const std::runtime_error&) {
            threw = true;
        }
        fused_key::fuse = -1;
        if (!threw)
            continue;
        stop.request_stop(); // no callback was left behind
        REQUIRE(mux.tracked_keys() == 2);
        for (const auto& k : mux.snapshot().keys)
            REQUIRE((k.holders == 1 && k.waiters == 0));
        REQUIRE(mux.try_lock_all(fused_key{2}, fused_key{3}));
        request a{mux.lock(fused_key{5})}; // the limit of two waiters was not touched
        request b{mux.lock(fused_key{5})};
        REQUIRE(a.state() + b.state() == "waitswaits");
    }
    CHECK(fuse > 1);
}

namespace {

/// A key that does something when it dies, as a user's may.
struct nosy_key {
    int value;
    inline static void (*at_death)() = nullptr;

    explicit nosy_key(int v) noexcept : value{v} {}
    nosy_key(const nosy_key&) = default;
    nosy_key& operator=(const nosy_key&) = default;
    ~nosy_key()
    {
        if (at_death)
            at_death();
    }
    friend bool operator==(const nosy_key&, const nosy_key&) = default;
};

} // namespace

template <>
struct std::hash<nosy_key> {
    std::size_t operator()(const nosy_key& k) const noexcept
    {
        return static_cast<std::size_t>(k.value);
    }
};

TEST_CASE("asyncmux: keys that a range makes as it is walked die under no lock", "[asyncmux][keys]")
{
    static asyncmux<nosy_key> mux;
    nosy_key::at_death = [] { static_cast<void>(mux.tracked_keys()); };
    const std::vector<int> numbers{3, 1, 2};
    {
        request all{mux.lock_all(
            numbers | std::views::transform([](int n) noexcept { return nosy_key{n}; }))};
        CHECK(all.state() == "owns");
        CHECK(mux.tracked_keys() == 3);
    }
    CHECK(mux.tracked_keys() == 0);
    nosy_key::at_death = nullptr;
}

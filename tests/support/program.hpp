// SPDX-License-Identifier: BSL-1.0
// Without this file the programs that model and mux run have no common language.
#pragma once

#include <amux/lock_mode.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace walks {

using amux::lock_mode;

/// What a lock is on: the whole mux, or the keys whose bits are set.
struct wanted {
    lock_mode mode = lock_mode::exclusive;
    bool whole = false;
    unsigned keys = 0;
};

inline constexpr int most_keys = 4; // k0, k1, ...
inline constexpr int loops = 2;
inline constexpr int contexts = 4; // 0 and 1 are roots, 2 is a child of 0, 3 a child of 2
inline constexpr int nowhere = -1;
inline constexpr int not_said = -2;
inline constexpr int for_ever = 1'000'000'000; // milliseconds

enum class verb : std::uint8_t {
    nothing,
    ask, // a coroutine awaits a lock
    attempt, // try_lock: nobody waits
    release,
    stop,
    destroy, // the frame, wherever it is suspended
    downgrade,
    move, // the guard, to another place
    close,
    run, // a loop
    advance, // the time of all loops
    collide, // the next lock of an internal mutex looks contended
};
enum class scope : std::uint8_t { whole, key, range, listed };
enum class limit : std::uint8_t { forever, time, moment };
enum class token : std::uint8_t { none, live, stopped };
enum class coroutine : std::uint8_t {
    plain, // says nothing of itself
    hooked, // tells its scheduler and its context
    task, // awaited by a hooked one
    spawned, // a task that begins when its loop runs
};

struct step {
    verb what = verb::nothing;
    int id = 0; // the request, new or not; of `run`, the loop; of `advance`, milliseconds
    // Of a new request:
    lock_mode mode = lock_mode::exclusive;
    walks::scope scope = walks::scope::whole;
    std::array<std::uint8_t, 4> keys{};
    std::uint8_t key_count = 0;
    walks::limit limit = walks::limit::forever;
    int time = 0; // milliseconds
    walks::token token = walks::token::none;
    walks::coroutine coroutine = walks::coroutine::plain;
    int loop = nowhere; // told by the coroutine
    int resume_on = not_said;
    int context = nowhere;
    bool in_frame = false; // the guard stays in the coroutine, else it is handed out
    verb then = verb::nothing; // what the coroutine does when it resumes
    int then_id = 0;
    // Of several ways to write the same:
    std::uint8_t variant = 0;

    wanted wants() const
    {
        wanted w{mode, scope == walks::scope::whole, 0};
        for (std::size_t i = 0; i < key_count; ++i)
            w.keys |= 1u << keys[i];
        return w;
    }
    bool timed() const { return limit != walks::limit::forever; }
    int resumes_on() const
    {
        if (resume_on >= 0)
            return resume_on;
        return coroutine == walks::coroutine::plain ? nowhere : loop;
    }
};

struct program {
    bool prevent_reentrancy = false;
    std::size_t max_waiters = static_cast<std::size_t>(-1);
    std::vector<step> steps;
};

/// What a coroutine, or who called `try_lock`, has got.
enum class outcome : std::uint8_t {
    granted,
    empty, // an empty guard
    cancelled,
    closed,
    full,
    reentrant,
    no_scheduler,
};

struct event {
    int id;
    outcome what;
    bool operator==(const event&) const = default;
};

/// What an observer of the mux sees.
struct seen {
    char what; // wait, grant, release: w, g, r
    lock_mode mode;
    bool whole;
    std::size_t keys;
    int key; // its number when it is the only one
    bool operator==(const seen&) const = default;
};

struct counts {
    std::optional<lock_mode> mode;
    std::size_t holders = 0;
    std::size_t waiters = 0;
    std::size_t granted_not_resumed = 0;
    bool operator==(const counts&) const = default;
};

} // namespace walks

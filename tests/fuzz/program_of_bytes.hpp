// SPDX-License-Identifier: BSL-1.0
// Without this file a fuzzer cannot write programs for the model and the locks.
#pragma once

#include "support/program.hpp"
#include "support/reality.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace walks {

/// Decisions that follow from bytes. When they are used up, each is the first of its alternatives.
class byte_source {
public:
    byte_source(const std::uint8_t* data, std::size_t size) : next_{data}, end_{data + size} {}

    bool empty() const { return next_ == end_; }
    int below(int n) { return empty() ? 0 : *next_++ % n; }
    bool yes() { return below(2) == 1; }
    template <class T, std::size_t N>
    T any(const T (&of)[N])
    {
        return of[below(static_cast<int>(N))];
    }

private:
    const std::uint8_t* next_;
    const std::uint8_t* end_;
};

/// Every string of bytes is a program that is legal in these forms. What follows the last step is not read.
class program_of_bytes {
public:
    static constexpr std::size_t most_steps = 64;

    program_of_bytes(byte_source& from, forms ways) : from_{from}, all_{ways == forms::all} {}

    program make()
    {
        program_.prevent_reentrancy = from_.yes();
        if (const int room = from_.below(6); room != 0)
            program_.max_waiters = static_cast<std::size_t>(room - 1);
        while (!from_.empty() && program_.steps.size() != most_steps)
            program_.steps.push_back(next());
        return std::move(program_);
    }

private:
    step next()
    {
        step s;
        s.what = from_.any({verb::ask, verb::ask, verb::ask, verb::ask, verb::release,
                            verb::release, verb::release, verb::attempt, verb::stop, verb::destroy,
                            verb::run, verb::run, verb::advance, verb::downgrade, verb::move,
                            verb::collide, verb::close});
        switch (s.what) {
            case verb::ask:
            case verb::attempt:
                request(s);
                break;
            case verb::run:
                s.id = from_.below(loops);
                break;
            case verb::advance:
                s.id = 1 + from_.below(8);
                break;
            default:
                s.id = somebody();
        }
        return s;
    }

    /// Counted back from the newest, so that an insertion before them leaves the steps that follow as they are.
    int somebody() { return std::max(0, requests_ - 1 - from_.below(12)); }

    void request(step& s)
    {
        s.id = requests_++;
        s.mode = from_.yes() ? lock_mode::shared : lock_mode::exclusive;
        s.variant = static_cast<std::uint8_t>(from_.below(6));
        choose_keys(s);
        if (s.what == verb::attempt)
            return;
        choose_time(s);
        choose_coroutine(s);
        s.token = from_.any({token::none, token::live, token::live, token::stopped});
        s.in_frame = from_.yes();
        s.then = from_.any({verb::nothing, verb::nothing, verb::release, verb::stop, verb::destroy,
                            verb::downgrade, verb::close});
        if (s.then != verb::nothing)
            s.then_id = from_.yes() ? s.id : somebody();
    }

    void choose_keys(step& s)
    {
        s.scope = from_.any({scope::key, scope::key, scope::whole, scope::range, scope::listed});
        switch (s.scope) {
            case scope::whole:
                return;
            case scope::key:
                s.key_count = 1;
                break;
            case scope::range:
                s.key_count = static_cast<std::uint8_t>(from_.below(5));
                break;
            case scope::listed:
                s.key_count = static_cast<std::uint8_t>(all_ ? 2 + from_.below(2) : 2);
        }
        for (std::size_t i = 0; i != s.key_count; ++i)
            s.keys[i] = static_cast<std::uint8_t>(from_.below(most_keys));
    }

    void choose_time(step& s)
    {
        const bool may_be_timed = all_ ? s.scope != scope::listed : s.scope == scope::key;
        if (!may_be_timed || from_.below(3) != 2)
            return;
        s.limit = all_ && from_.yes() ? limit::moment : limit::time;
        s.time = from_.any({1, 2, 3, 5, 8, 0, -1, for_ever});
    }

    int some_loop() { return from_.any({0, 1, nowhere}); }

    void choose_coroutine(step& s)
    {
        s.coroutine = all_ ? from_.any({coroutine::plain, coroutine::hooked, coroutine::task,
                                        coroutine::spawned})
                           : from_.any({coroutine::plain, coroutine::hooked});
        const bool needs_scheduler = s.timed() && s.coroutine == coroutine::plain;
        if (needs_scheduler && !all_)
            s.coroutine = coroutine::hooked;
        switch (s.coroutine) {
            case coroutine::plain:
                if (all_ && (needs_scheduler || from_.yes()))
                    s.resume_on = some_loop();
                return;
            case coroutine::spawned:
                s.loop = from_.below(loops);
                return;
            case coroutine::hooked:
                if (all_ && from_.yes())
                    s.resume_on = some_loop();
                break;
            case coroutine::task:
                break;
        }
        s.loop = some_loop();
        s.context = from_.any({nowhere, 0, 1, 2, 3});
    }

    byte_source& from_;
    bool all_;
    program program_;
    int requests_ = 0;
};

} // namespace walks

// SPDX-License-Identifier: BSL-1.0
// Without this file nothing says, apart from the code under test, what a lock has to do.
#pragma once

#include <amux/lock_mode.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace walks {

using amux::lock_mode;

/// What a lock is on: the whole mux, or the keys whose bits are set.
struct wanted {
    lock_mode mode = lock_mode::exclusive;
    bool whole = false;
    unsigned keys = 0;
};

/// The table of conflicts.
inline bool conflict(const wanted& a, const wanted& b)
{
    const bool a_is_nothing = !a.whole && a.keys == 0;
    const bool b_is_nothing = !b.whole && b.keys == 0;
    if (a_is_nothing || b_is_nothing)
        return false;
    if (a.mode == lock_mode::shared && b.mode == lock_mode::shared)
        return false;
    return a.whole || b.whole || (a.keys & b.keys) != 0;
}

/// The rule of admission, as it is written: a request is granted at the first moment when it conflicts with no lock that
/// is held and with no earlier request that still waits. Everything is looked at again after each step.
class lock_rule {
public:
    struct entry {
        int id;
        wanted what;
        bool held;
    };

    bool admits(const wanted& what) const
    {
        return std::none_of(all_.begin(), all_.end(),
                            [&](const entry& e) { return conflict(e.what, what); });
    }

    std::size_t waiting() const
    {
        return static_cast<std::size_t>(
            std::count_if(all_.begin(), all_.end(), [](const entry& e) { return !e.held; }));
    }

    /// Comes last. It is held at once when it is admitted.
    void arrive(int id, const wanted& what) { all_.push_back({id, what, admits(what)}); }

    /// Leaves, held or waiting. Gives those who are granted by that, in order of arrival.
    std::vector<int> leave(int id)
    {
        std::erase_if(all_, [id](const entry& e) { return e.id == id; });
        return settle();
    }

    std::vector<int> downgrade(int id)
    {
        for (entry& e : all_) {
            if (e.id == id)
                e.what.mode = lock_mode::shared;
        }
        return settle();
    }

    /// Nobody waits any more. Gives those who did, in order of arrival.
    std::vector<int> drop_waiting()
    {
        std::vector<int> gone;
        for (const entry& e : all_) {
            if (!e.held)
                gone.push_back(e.id);
        }
        std::erase_if(all_, [](const entry& e) { return !e.held; });
        return gone;
    }

    const std::vector<entry>& all() const { return all_; }

private:
    std::vector<int> settle()
    {
        std::vector<int> granted;
        for (std::size_t i = 0; i < all_.size(); ++i) {
            if (all_[i].held)
                continue;
            bool clear = true;
            for (std::size_t k = 0; k < all_.size(); ++k)
                clear = clear && !((all_[k].held || k < i) && conflict(all_[k].what, all_[i].what));
            if (clear) {
                all_[i].held = true;
                granted.push_back(all_[i].id);
            }
        }
        return granted;
    }

    std::vector<entry> all_; // in order of arrival
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

/// Every lock of a mux, and the loops on which its coroutines resume.
class model {
public:
    model(bool prevent_reentrancy, std::size_t max_waiters)
        : prevent_reentrancy_{prevent_reentrancy}, max_waiters_{max_waiters}
    {}

    enum class phase : std::uint8_t { absent, not_begun, waiting, posted, held, ended };

    /// Whether the step would do anything now; if not, a program goes on without it.
    bool applies(verb what, int id) const
    {
        const request* const r = find(id);
        const phase p = r ? r->at : phase::absent;
        switch (what) {
            case verb::ask:
            case verb::attempt:
                return p == phase::absent;
            case verb::release:
            case verb::downgrade:
            case verb::move:
                return p == phase::held;
            case verb::stop:
                return r && r->asked.token == token::live && !r->stopped;
            case verb::destroy:
                return r && r->asked.what == verb::ask &&
                       r->asked.coroutine != coroutine::spawned &&
                       (p == phase::waiting || p == phase::posted ||
                        (p == phase::held && r->asked.in_frame && !r->busy));
            case verb::run:
                return id < loops;
            default:
                return true;
        }
    }

    void apply(const step& s)
    {
        switch (s.what) {
            case verb::ask:
                ask(s);
                break;
            case verb::attempt:
                attempt(s);
                break;
            case verb::move:
                at(s.id).asked.in_frame = false;
                break;
            case verb::run:
                run(static_cast<std::size_t>(s.id));
                break;
            case verb::advance:
                now_ += s.id;
                break;
            default:
                act(s.what, s.id);
        }
    }

    const std::vector<event>& log() const { return log_; }
    const std::vector<seen>& observed() const { return observed_; }
    bool closed() const { return closed_; }
    std::int64_t now() const { return now_; }
    bool admits(const wanted& w) const { return !closed_ && rule_.admits(w); }
    int requests() const { return static_cast<int>(all_.size()); }
    phase phase_of(int id) const { return at(id).at; }
    lock_mode mode_of(int id) const { return at(id).mode; }
    const step& asked(int id) const { return at(id).asked; }

    bool loops_idle() const
    {
        return std::all_of(loops_.begin(), loops_.end(),
                           [](const loop& l) { return l.ready.empty(); });
    }

    /// Of the whole mux (-1) or of one key.
    counts count(int key) const
    {
        counts c;
        for (const lock_rule::entry& e : rule_.all()) {
            if (key < 0 ? !e.what.whole : (e.what.keys >> key & 1) == 0)
                continue;
            ++(e.held ? c.holders : c.waiters);
            if (e.held && at(e.id).at == phase::posted)
                ++c.granted_not_resumed;
            if (e.held)
                c.mode = e.what.mode;
        }
        return c;
    }

private:
    struct request {
        step asked{};
        phase at = phase::absent;
        lock_mode mode = lock_mode::exclusive; // as it is held
        outcome due = outcome::granted; // while posted
        std::int64_t deadline = 0;
        bool stopped = false;
        bool registered = false; // its context is known to hold it
        bool busy = false; // runs what it does on resuming
    };
    struct loop {
        std::vector<int> ready;
        std::vector<int> timers; // in order of arming
    };

    const request* find(int id) const
    {
        return static_cast<std::size_t>(id) < all_.size() ? &all_[static_cast<std::size_t>(id)]
                                                          : nullptr;
    }
    const request& at(int id) const { return all_[static_cast<std::size_t>(id)]; }
    request& at(int id) { return all_[static_cast<std::size_t>(id)]; }

    request& add(const step& s)
    {
        if (static_cast<std::size_t>(s.id) >= all_.size())
            all_.resize(static_cast<std::size_t>(s.id) + 1);
        request& r = at(s.id);
        r.asked = s;
        r.mode = s.mode;
        r.stopped = s.token == token::stopped;
        return r;
    }

    void ask(const step& s)
    {
        request& r = add(s);
        if (s.coroutine == coroutine::spawned) {
            r.at = phase::not_begun;
            loops_[static_cast<std::size_t>(s.loop)].ready.push_back(s.id);
        } else {
            begin(s.id);
        }
    }

    void attempt(const step& s)
    {
        request& r = add(s);
        r.asked.in_frame = false;
        const bool granted = admits(s.wants());
        if (granted) {
            rule_.arrive(s.id, s.wants());
            watch('g', r);
        }
        r.at = granted ? phase::held : phase::ended;
        log_.push_back({s.id, closed_   ? outcome::closed
                              : granted ? outcome::granted
                                        : outcome::empty});
    }

    /// The coroutine awaits.
    void begin(int id)
    {
        request& r = at(id);
        const wanted w = r.asked.wants();
        const bool timed = r.asked.timed();
        if (timed && r.asked.resumes_on() < 0)
            return resume(id, outcome::no_scheduler);
        if (!timed && r.stopped)
            return resume(id, outcome::cancelled);
        if (closed_)
            return resume(id, outcome::closed);
        if (timed && r.stopped)
            return resume(id, outcome::empty);
        if (is_reentrant(r.asked.context, w))
            return resume(id, outcome::reentrant);
        if (rule_.admits(w)) {
            rule_.arrive(id, w);
            watch('g', r);
            return resume(id, outcome::granted);
        }
        const bool has_deadline = timed && r.asked.time != for_ever;
        r.deadline = r.asked.limit == limit::moment ? r.asked.time : now_ + r.asked.time;
        if (has_deadline && r.deadline <= now_)
            return resume(id, outcome::empty);
        if (rule_.waiting() >= max_waiters_)
            return resume(id, outcome::full);
        r.at = phase::waiting;
        rule_.arrive(id, w);
        watch('w', r);
        if (has_deadline)
            loops_[static_cast<std::size_t>(r.asked.resumes_on())].timers.push_back(id);
    }

    /// The coroutine goes on, with this answer.
    void resume(int id, outcome what)
    {
        request& r = at(id);
        log_.push_back({id, what});
        r.at = what == outcome::granted ? phase::held : phase::ended;
        r.registered = what == outcome::granted && prevent_reentrancy_ && r.asked.context >= 0;
        if (r.asked.then == verb::nothing)
            return;
        r.busy = true;
        const verb then = r.asked.then;
        if (applies(then, r.asked.then_id))
            act(then, r.asked.then_id);
        at(id).busy = false;
    }

    void act(verb what, int id)
    {
        switch (what) {
            case verb::release:
                give_back(id);
                break;
            case verb::stop:
                stop(id);
                break;
            case verb::destroy:
                destroy(id);
                break;
            case verb::downgrade:
                downgrade(id);
                break;
            case verb::close:
                close();
                break;
            default:
                break;
        }
        run_inline();
    }

    void give_back(int id)
    {
        request& r = at(id);
        r.at = phase::ended;
        r.registered = false;
        watch('r', r);
        post_granted(rule_.leave(id));
    }

    void stop(int id)
    {
        at(id).stopped = true;
        if (at(id).at == phase::waiting)
            give_up(id);
    }

    /// Who waits leaves, and resumes before those whom it held back.
    void give_up(int id)
    {
        const std::vector<int> granted = rule_.leave(id);
        post(id, at(id).asked.timed() ? outcome::empty : outcome::cancelled);
        post_granted(granted);
    }

    void destroy(int id)
    {
        request& r = at(id);
        const phase was = std::exchange(r.at, phase::ended);
        if (was == phase::posted) {
            auto& queue = queue_of(r);
            queue.erase(std::find(queue.begin(), queue.end(), id));
            if (r.due != outcome::granted)
                return;
        }
        if (was != phase::waiting)
            watch('r', r);
        r.registered = false;
        post_granted(rule_.leave(id));
    }

    void downgrade(int id)
    {
        if (at(id).mode == lock_mode::shared)
            return;
        at(id).mode = lock_mode::shared;
        post_granted(rule_.downgrade(id));
    }

    void close()
    {
        closed_ = true;
        for (const int id : rule_.drop_waiting())
            post(id, outcome::closed);
    }

    void post_granted(const std::vector<int>& granted)
    {
        for (const int id : granted) {
            watch('g', at(id));
            post(id, outcome::granted);
        }
    }

    std::vector<int>& queue_of(const request& r)
    {
        const int where = r.asked.resumes_on();
        return where < 0 ? inline_ : loops_[static_cast<std::size_t>(where)].ready;
    }

    static int take_front(std::vector<int>& queue)
    {
        const int id = queue.front();
        queue.erase(queue.begin());
        return id;
    }

    void post(int id, outcome due)
    {
        request& r = at(id);
        r.at = phase::posted;
        r.due = due;
        queue_of(r).push_back(id);
    }

    /// Who has no scheduler resumes in the call that lets it go on; one after the other, never nested.
    void run_inline()
    {
        if (draining_)
            return;
        draining_ = true;
        while (!inline_.empty()) {
            const int id = take_front(inline_);
            resume(id, at(id).due);
        }
        draining_ = false;
    }

    void run(std::size_t where)
    {
        loop& l = loops_[where];
        for (;;) {
            while (!l.ready.empty()) {
                const int id = take_front(l.ready);
                if (at(id).at == phase::not_begun)
                    begin(id);
                else
                    resume(id, at(id).due);
            }
            std::erase_if(l.timers, [this](int id) { return at(id).at != phase::waiting; });
            std::vector<int> due;
            for (const int id : l.timers) {
                if (at(id).deadline > now_)
                    continue;
                if (!due.empty() && at(id).deadline < at(due.front()).deadline)
                    due.clear();
                if (due.empty() || at(id).deadline == at(due.front()).deadline)
                    due.push_back(id);
            }
            if (due.empty())
                return;
            for (const int id : due) {
                if (at(id).at == phase::waiting) {
                    give_up(id);
                    run_inline();
                }
            }
        }
    }

    bool is_reentrant(int context, const wanted& w) const
    {
        constexpr int parents[contexts] = {nowhere, nowhere, 0, 2};
        if (!prevent_reentrancy_ || (!w.whole && w.keys == 0))
            return false;
        for (int c = context; c >= 0; c = parents[c]) {
            for (const request& r : all_) {
                if (r.at != phase::held || !r.registered || r.asked.context != c)
                    continue;
                const wanted held = r.asked.wants();
                if (held.whole || (w.whole && held.keys != 0) || (w.keys & held.keys) != 0)
                    return true;
            }
        }
        return false;
    }

    void watch(char what, const request& r)
    {
        const wanted w = r.asked.wants();
        if (!w.whole && w.keys == 0)
            return; // nothing is taken
        seen s{what, r.mode, w.whole, 0, -1};
        for (int k = 0; k < most_keys; ++k) {
            if (w.keys >> k & 1) {
                ++s.keys;
                s.key = k;
            }
        }
        if (r.asked.scope != scope::key)
            s.key = -1;
        observed_.push_back(s);
    }

    bool prevent_reentrancy_;
    std::size_t max_waiters_;
    bool closed_ = false;
    bool draining_ = false;
    std::int64_t now_ = 0;
    lock_rule rule_;
    std::vector<request> all_; // by id
    std::vector<int> inline_;
    std::array<loop, loops> loops_;
    std::vector<event> log_;
    std::vector<seen> observed_;
};

inline std::string text(const wanted& w)
{
    std::string t = w.mode == lock_mode::exclusive ? "X(" : "S(";
    if (w.whole)
        t += "whole";
    for (int k = 0; k < most_keys; ++k) {
        if (w.keys >> k & 1)
            t += (t.back() == '(' ? "k" : ",k") + std::to_string(k);
    }
    return t + ")";
}

inline const char* text(outcome o)
{
    constexpr const char* names[] = {"granted", "empty",     "cancelled",   "closed",
                                     "full",    "reentrant", "no_scheduler"};
    return names[static_cast<int>(o)];
}

inline std::string text(const std::vector<event>& log)
{
    std::string t;
    for (const event& e : log)
        t += " " + std::to_string(e.id) + " " + text(e.what) + ",";
    return t;
}

inline std::string text(const std::vector<seen>& observed)
{
    std::string t;
    for (const seen& s : observed) {
        t += s.what == 'w' ? " wait " : s.what == 'g' ? " grant " : " release ";
        t += s.mode == lock_mode::exclusive ? "X(" : "S(";
        t += s.whole ? "whole" : s.key >= 0 ? "k" + std::to_string(s.key) : std::to_string(s.keys);
        t += "),";
    }
    return t;
}

inline std::string text(const counts& c)
{
    return std::string{c.mode ? to_string(*c.mode) : "not held"} + ", " +
           std::to_string(c.holders) + " holders, " + std::to_string(c.waiters) + " waiters, " +
           std::to_string(c.granted_not_resumed) + " not resumed";
}

inline const char* text(verb v)
{
    constexpr const char* names[] = {"nothing",   "ask",  "try",   "release", "stop",    "destroy",
                                     "downgrade", "move", "close", "run",     "advance", "collide"};
    return names[static_cast<int>(v)];
}

inline std::string text(const step& s)
{
    std::string t = text(s.what);
    if (s.what == verb::close || s.what == verb::collide)
        return t;
    t += " " + std::to_string(s.id);
    if (s.what != verb::ask && s.what != verb::attempt)
        return t;
    t += ": " + std::string{s.mode == lock_mode::exclusive ? "X(" : "S("};
    if (s.scope == scope::whole)
        t += "whole";
    for (std::size_t i = 0; i < s.key_count; ++i)
        t += (i == 0 ? "k" : ",k") + std::to_string(s.keys[i]);
    t += s.scope == scope::range ? "; range)" : ")";
    if (s.what == verb::attempt)
        return t;
    if (s.timed()) {
        t += s.limit == limit::time ? " for " : " until ";
        t += s.time == for_ever ? "ever" : std::to_string(s.time) + " ms";
    }
    if (s.token != token::none)
        t += s.token == token::live ? ", with a stop token" : ", stopped beforehand";
    constexpr const char* kinds[] = {", plain", ", hooked", ", task", ", spawned"};
    t += kinds[static_cast<int>(s.coroutine)];
    if (s.loop >= 0)
        t += " on loop " + std::to_string(s.loop);
    if (s.resume_on >= 0)
        t += ", resume_on loop " + std::to_string(s.resume_on);
    if (s.resume_on == nowhere)
        t += ", resume_on null";
    if (s.context >= 0)
        t += ", context " + std::to_string(s.context);
    if (s.in_frame)
        t += ", guard in the frame";
    if (s.then != verb::nothing)
        t += std::string{", then "} + text(s.then) + " " + std::to_string(s.then_id);
    if (s.variant != 0)
        t += ", variant " + std::to_string(s.variant);
    return t;
}

inline std::string text(const program& p)
{
    std::string t;
    if (p.prevent_reentrancy)
        t += "    prevent_reentrancy\n";
    if (p.max_waiters != static_cast<std::size_t>(-1))
        t += "    max_waiters " + std::to_string(p.max_waiters) + "\n";
    int n = 0;
    for (const step& s : p.steps)
        t += "    " + std::to_string(++n) + ". " + text(s) + "\n";
    return t;
}

} // namespace walks

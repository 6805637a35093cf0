// SPDX-License-Identifier: BSL-1.0
// Without this file nothing says, apart from the code under test, what a lock has to do.
#pragma once

#include "support/program.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace walks {

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
        seen s{what, r.mode, w.whole, 0, -1};
        if (!w.whole && w.keys == 0) { // nothing is taken: it is over at once
            if (what == 'g')
                observed_.insert(observed_.end(), {s, {'r', r.mode, false, 0, -1}});
            return;
        }
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

} // namespace walks

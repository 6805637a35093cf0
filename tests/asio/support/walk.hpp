// SPDX-License-Identifier: BSL-1.0
// Without this file nothing says, apart from the code under test, what an operation of Asio has to do.
#pragma once

#include "support/model.hpp"
#include "support/program.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace walks {

inline constexpr int contexts_of_asio = 2;
inline constexpr int asio_keys = 3;

enum class asio_verb : std::uint8_t {
    nothing,
    ask,
    attempt, // try_lock
    release,
    downgrade,
    cancel, // by the slot
    stop, // by the token of the description
    close,
    run, // a context, until it has nothing to do
    drop, // a context, and begin a new one
};
enum class asio_limit : std::uint8_t { forever, long_one, none_at_all };

struct asio_step {
    asio_verb what = asio_verb::nothing;
    int id = 0; // the request, new or not; of `run` and `drop`, the context
    // Of a new request:
    wanted lock;
    int context = 0;
    asio_limit limit = asio_limit::forever;
    bool has_slot = false;
    bool has_token = false;
    bool is_stopped = false; // by its token, beforehand
    asio_verb then = asio_verb::nothing; // what its handler does
    int then_id = 0;
};

/// What locks and handlers have to do, in steps that can be looked through: each context is a queue, each request is granted
/// by `lock_rule`. Without a limit a request goes from the grant straight to its handler; with one its timer and its
/// end take a turn of the queue each.
class asio_model {
public:
    explicit asio_model(std::size_t max_waiters) : max_waiters_{max_waiters} {}

    enum class phase : std::uint8_t { waiting, on_its_way, held, ended };

    struct request {
        asio_step asked;
        phase at = phase::ended;
        outcome due = outcome::granted;
        lock_mode mode = lock_mode::exclusive;
        bool in_line = false; // has waited, and not ended since
        bool turns = false; // a turn of its own is queued
        bool then_done = false;
        bool dropped = false;
    };

    bool applies(asio_verb what, int id) const
    {
        const bool known = static_cast<std::size_t>(id) < all_.size();
        switch (what) {
            case asio_verb::nothing:
                return false;
            case asio_verb::release:
            case asio_verb::downgrade:
                return known && at(id).at == phase::held;
            case asio_verb::cancel:
                return known && at(id).asked.has_slot;
            case asio_verb::stop:
                return known && at(id).asked.has_token;
            default:
                return true;
        }
    }

    void apply(const asio_step& s)
    {
        switch (s.what) {
            case asio_verb::ask:
                ask(s);
                break;
            case asio_verb::attempt:
                attempt(s);
                break;
            case asio_verb::run:
                run(contexts_[static_cast<std::size_t>(s.id)]);
                break;
            case asio_verb::drop:
                drop(contexts_[static_cast<std::size_t>(s.id)]);
                break;
            default:
                act(s.what, s.id);
        }
    }

    const std::vector<event>& log() const { return log_; }
    int requests() const { return static_cast<int>(all_.size()); }
    const request& at(int id) const { return all_[static_cast<std::size_t>(id)]; }
    /// Whether the slot of a request is filled. It stays so with one that was dropped: the signal may be gone.
    bool listens(int id) const
    {
        const request& r = at(id);
        return r.asked.has_slot &&
               (r.at == phase::waiting || r.at == phase::on_its_way || r.dropped);
    }

    /// Of the whole mux (-1) or of one key.
    counts count(int key) const
    {
        counts c;
        for (const lock_rule::entry& e : rule_.all()) {
            if (key < 0 ? !e.what.whole : (e.what.keys >> key & 1) == 0)
                continue;
            ++(e.held ? c.holders : c.waiters);
            if (e.held && at(e.id).in_line)
                ++c.granted_not_resumed;
            if (e.held)
                c.mode = e.what.mode;
        }
        return c;
    }

private:
    enum class turn : std::uint8_t { of_its_scheduler, to_its_handler };
    struct context {
        std::deque<std::pair<int, turn>> queue;
        std::vector<int> in_line; // goes first when the context is dropped
    };

    request& at(int id) { return all_[static_cast<std::size_t>(id)]; }
    context& context_of(int id)
    {
        return contexts_[static_cast<std::size_t>(at(id).asked.context)];
    }

    request& add(const asio_step& s)
    {
        all_.push_back({.asked = s, .mode = s.lock.mode});
        return all_.back();
    }

    void attempt(const asio_step& s)
    {
        request& r = add(s);
        const bool granted = !closed_ && rule_.admits(s.lock);
        if (granted)
            rule_.arrive(s.id, s.lock);
        r.at = granted ? phase::held : phase::ended;
        log_.push_back({s.id, closed_   ? outcome::closed
                              : granted ? outcome::granted
                                        : outcome::empty});
    }

    void ask(const asio_step& s)
    {
        add(s);
        if (const std::optional<outcome> at_once = answer(s)) {
            if (*at_once == outcome::granted)
                rule_.arrive(s.id, s.lock);
            at(s.id).at = phase::on_its_way;
            at(s.id).due = *at_once;
            context_of(s.id).queue.emplace_back(s.id, turn::to_its_handler);
            return;
        }
        rule_.arrive(s.id, s.lock);
        at(s.id).at = phase::waiting;
        at(s.id).in_line = true;
        context_of(s.id).in_line.push_back(s.id);
        if (s.limit != asio_limit::forever)
            take_turn(s.id); // it arms its timer
    }

    std::optional<outcome> answer(const asio_step& s) const
    {
        const bool has_limit = s.limit != asio_limit::forever;
        if (s.is_stopped && !has_limit)
            return outcome::cancelled;
        if (closed_)
            return outcome::closed;
        if (s.is_stopped)
            return outcome::empty;
        if (rule_.admits(s.lock))
            return outcome::granted;
        if (s.limit == asio_limit::none_at_all)
            return outcome::empty;
        if (rule_.waiting() >= max_waiters_)
            return outcome::full;
        return std::nullopt;
    }

    void act(asio_verb what, int id)
    {
        switch (what) {
            case asio_verb::release:
                at(id).at = phase::ended;
                grant(rule_.leave(id));
                break;
            case asio_verb::downgrade:
                if (std::exchange(at(id).mode, lock_mode::shared) == lock_mode::exclusive)
                    grant(rule_.downgrade(id));
                break;
            case asio_verb::cancel:
            case asio_verb::stop:
                if (at(id).at == phase::waiting) {
                    const std::vector<int> granted = rule_.leave(id);
                    end(id, at(id).asked.limit == asio_limit::forever ? outcome::cancelled
                                                                      : outcome::empty);
                    grant(granted);
                }
                break;
            case asio_verb::close:
                closed_ = true;
                for (const int waiting : rule_.drop_waiting())
                    end(waiting, outcome::closed);
                break;
            default:
                break;
        }
    }

    void grant(const std::vector<int>& granted)
    {
        for (const int id : granted)
            end(id, outcome::granted);
    }

    /// Who waits does so no more.
    void end(int id, outcome what)
    {
        at(id).at = phase::on_its_way;
        at(id).due = what;
        if (at(id).asked.limit == asio_limit::forever)
            context_of(id).queue.emplace_back(id, turn::to_its_handler);
        else
            take_turn(id);
    }

    void take_turn(int id)
    {
        if (!std::exchange(at(id).turns, true))
            context_of(id).queue.emplace_back(id, turn::of_its_scheduler);
    }

    void leave_line(int id)
    {
        at(id).in_line = false;
        std::erase(context_of(id).in_line, id);
    }

    void run(context& c)
    {
        while (!c.queue.empty()) {
            const auto [id, why] = c.queue.front();
            c.queue.pop_front();
            if (why == turn::of_its_scheduler) {
                at(id).turns = false;
                if (at(id).at != phase::on_its_way)
                    continue;
                leave_line(id);
                c.queue.emplace_back(id, turn::to_its_handler);
                continue;
            }
            leave_line(id);
            const outcome what = at(id).due;
            at(id).at = what == outcome::granted ? phase::held : phase::ended;
            log_.push_back({id, what});
            const asio_step& asked = at(id).asked;
            at(id).then_done = applies(asked.then, asked.then_id);
            if (at(id).then_done)
                act(asked.then, asked.then_id);
        }
    }

    /// Nobody there is told. First go those in line, then those whose handlers are next.
    void drop(context& c)
    {
        while (!c.in_line.empty()) {
            const int id = c.in_line.front();
            leave_line(id);
            forget(id);
        }
        while (!c.queue.empty()) {
            const int id = c.queue.front().first;
            c.queue.pop_front();
            forget(id);
        }
    }

    void forget(int id)
    {
        const phase was = std::exchange(at(id).at, phase::ended);
        at(id).dropped = at(id).dropped || was != phase::ended;
        const bool has_lock = was == phase::on_its_way && at(id).due == outcome::granted;
        if (was == phase::waiting || has_lock)
            grant(rule_.leave(id));
    }

    std::size_t max_waiters_;
    bool closed_ = false;
    lock_rule rule_;
    std::vector<request> all_; // by id
    std::array<context, contexts_of_asio> contexts_;
    std::vector<event> log_;
};

} // namespace walks

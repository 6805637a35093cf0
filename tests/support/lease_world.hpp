// SPDX-License-Identifier: BSL-1.0
// Without this file the events that may befall a lease cannot be put in any order, beside the model of it.
#pragma once

#include <amux/distributed_lock.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/testing/scripted_backend.hpp>

#include "support/lease_model.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace support {

using amux::testing::course;
using amux::testing::operation;
using std::chrono::milliseconds;
using namespace std::chrono_literals;

enum class lease_event : unsigned char {
    extend_answered, // as the store finds it
    extend_denied, // the store has lost the lease
    extend_fails,
    extend_reply_lost,
    release_answered,
    release_denied,
    release_fails,
    release_reply_lost,
    a_third, // of the ttl passes: a renewal is due
    the_rest, // valid_until passes
    stop,
    release,
    extend_longer,
    extend_shorter,
    destroy,
};
inline constexpr std::size_t lease_events = 15;
inline constexpr std::array<const char*, lease_events> lease_event_names{
    "extend answered",  "extend denied",   "extend fails",  "extend's reply lost",
    "release answered", "release denied",  "release fails", "release's reply lost",
    "a third passes",   "the rest passes", "stop",          "release()",
    "extend(longer)",   "extend(shorter)", "destroy"};

struct lease_variant {
    bool renew;
    milliseconds margin;
    unsigned quiet; // bit n: the loop does not run after event n
};

struct lease_hooks_seen {
    int acquired = 0;
    int released = 0;
    int lost = 0;
    std::size_t renewed = 0;
    std::size_t errors = 0;
    bool renewed_after_end = false;
    std::optional<amux::end_reason> told;
};

inline amux::lock_hooks hooks_into(lease_hooks_seen& s)
{
    const auto end = [&s](const amux::lock_event& e) {
        s.told = e.reason;
        return e.reason == amux::end_reason::released ? ++s.released : ++s.lost;
    };
    amux::lock_hooks hooks;
    hooks.on_acquire = [&s](const amux::lock_event&) { ++s.acquired; };
    hooks.on_release = end;
    hooks.on_lost = end;
    hooks.on_renew = [&s](const amux::lock_event&) {
        ++s.renewed;
        s.renewed_after_end |= s.told.has_value();
    };
    hooks.on_error = [&s](const amux::lock_event&) { ++s.errors; };
    return hooks;
}

template <class Lock>
amux::task<> acquire_into(Lock& locks, lease_variant v, std::stop_token stop,
                          std::optional<amux::acquired_lock>& out)
{
    amux::acquire_options options;
    options.ttl = 1'000ms;
    options.renew = v.renew;
    options.stop_margin = v.margin;
    amux::acquired_lock held = co_await locks.acquire("k", options, stop);
    out.emplace(std::move(held));
}

template <class T>
amux::task<> record(amux::task<T> call, outcome& out)
{
    try {
        const auto value = co_await std::move(call);
        if constexpr (std::is_same_v<T, bool>)
            out = value ? outcome::yes : outcome::no;
        else
            out = outcome::yes;
    } catch (const amux::lock_ended_error&) {
        out = outcome::ended;
    } catch (const amux::backend_error&) {
        out = outcome::trouble;
    } catch (...) {
        out = outcome::other;
    }
}

inline amux::task<> record_end(amux::task<amux::lock_end> call,
                               std::optional<amux::end_reason>& out)
{
    const amux::lock_end end = co_await std::move(call);
    out = end.reason;
}

/// One lease, to which events happen one after the other, and the model of it.
class lease_world {
public:
    static constexpr std::size_t most_events = 16;

    explicit lease_world(lease_variant v)
        : variant_{v}, store_{loop_}, locks_{store_, loop_, {}, hooks_into(seen_)}
    {
        store_.always(operation::extend, course::held());
        store_.always(operation::release, course::held());
        loop_.spawn(acquire_into(locks_, v, stop_.get_token(), handle_));
        loop_.run_ready();
        loop_.spawn(record_end(handle_->ended(), ended_));
        loop_.run_ready();
        lost_token_ = handle_->lost_token();
        token_ = handle_->token();
        store_.forget_calls();
        model_.emplace(1'000ms, v.renew, v.margin, loop_.now());
        releases_.reserve(most_events); // coroutines refer to the elements
        extends_.reserve(most_events);
    }

    lease_world(const lease_world&) = delete;
    lease_world& operator=(const lease_world&) = delete;
    ~lease_world()
    {
        handle_.reset();
        answer_all(); // for who waits for an end
    }

    /// False: it cannot happen now, and nothing has.
    bool happens(lease_event e)
    {
        const bool exact = variant_.quiet == 0;
        if (e < lease_event::a_third && !end_call(e))
            return false;
        switch (e) {
            default:
                break;
            case lease_event::a_third:
                loop_.advance(model_->ttl() / 3 + 1ms);
                break;
            case lease_event::the_rest:
                if (!model_->is_held())
                    return false;
                loop_.advance(model_->valid_until() - loop_.now());
                break;
            case lease_event::stop:
                if (!stop_.request_stop())
                    return false;
                break;
            case lease_event::release:
                if (!handle_)
                    return false;
                releases_.push_back(outcome::pending);
                loop_.spawn(record(handle_->release(), releases_.back()));
                break;
            case lease_event::extend_longer:
            case lease_event::extend_shorter:
                if (!handle_)
                    return false;
                extends_.push_back(outcome::pending);
                loop_.spawn(record(handle_->extend(length(e)), extends_.back()));
                break;
            case lease_event::destroy:
                if (!handle_)
                    return false;
                handle_.reset();
        }
        const bool quiet = (variant_.quiet >> steps_++ & 1) != 0;
        if (!quiet)
            loop_.run_ready();
        if (exact)
            tell_model(e);
        check_always();
        if (exact)
            check_against_model();
        return true;
    }

    /// Everything is answered, and goes.
    void finish()
    {
        handle_.reset();
        for (int round = 0; round < 12 || (doubtful_ && round < 80); ++round) {
            answer_all();
            loop_.advance(60ms);
        }
        require(!store_.holder("k"), "the key is free in the end");
        require(seen_.acquired == 1, "one on_acquire");
        require(seen_.released + seen_.lost == 1, "one of on_release and on_lost");
        require(ended_ == seen_.told, "ended() and the hooks give the same reason");
        require(lost_token_.stop_requested() || seen_.told == amux::end_reason::released,
                "lost_token is stopped when the lease was lost");
        for (const outcome o : releases_)
            require(o != outcome::pending && o != outcome::ended && o != outcome::other,
                    "a release has ended");
        for (const outcome o : extends_)
            require(o != outcome::pending && o != outcome::no && o != outcome::other,
                    "an extend has ended");
        bool all = false;
        loop_.spawn([](auto& locks, bool& out) -> amux::task<> {
            const bool done = co_await locks.drain(5s);
            out = done;
        }(locks_, all));
        loop_.run_ready();
        require(all, "nothing is outstanding: drain gives true");
        require(store_.in_flight() == 0, "no request is in flight");
        require(store_.size() == 0, "the store is empty");
    }

    const std::string& trouble() const { return trouble_; }

private:
    void answer_all()
    {
        loop_.run_ready();
        for (const auto op : {operation::extend, operation::release}) {
            while (const std::size_t n = store_.oldest_in_flight(op))
                store_.answer(n);
        }
        loop_.run_ready();
    }

    static milliseconds length(lease_event e)
    {
        return e == lease_event::extend_longer ? 3'000ms : 200ms;
    }

    void require(bool holds, const char* what)
    {
        if (!holds && trouble_.empty())
            trouble_ = what;
    }

    // What the model is told is what the caller hears.
    bool end_call(lease_event e)
    {
        const operation op =
            e < lease_event::release_answered ? operation::extend : operation::release;
        const int how = static_cast<int>(e) % 4; // answered, denied, fails, reply lost
        const std::size_t n = store_.oldest_in_flight(op);
        if (n == 0)
            return false;
        op_answered_ = n;
        if (how == 1) {
            if (store_.holder("k") != token_)
                return false; // as it is answered anyhow
            store_.drop("k");
            store_has_it_ = false;
        }
        answer_ = how == 3                       ? lease_model::answer::doubt
                  : how == 2                     ? lease_model::answer::trouble
                  : store_.holder("k") == token_ ? lease_model::answer::yes
                                                 : lease_model::answer::no;
        if (how == 3)
            store_.act(n);
        if (how >= 2) {
            doubtful_ = true;
            store_.fail(n, course::trouble(how == 3 ? amux::backend_error_kind::indeterminate
                                                    : amux::backend_error_kind::not_applied,
                                           "trouble"));
        } else {
            store_.answer(n);
        }
        return true;
    }

    void tell_model(lease_event e)
    {
        lease_model& m = *model_;
        const bool was_held = !m.over() && !m.releasing();
        if (e < lease_event::release_answered)
            m.extend_answered(answer_);
        else if (e < lease_event::a_third && op_answered_ == own_release_)
            m.release_answered(answer_);
        else if (e < lease_event::a_third)
            m.background_release_answered(answer_);
        switch (e) {
            default:
                break;
            case lease_event::a_third:
            case lease_event::the_rest:
                m.time_is(loop_.now());
                break;
            case lease_event::stop:
                m.stop();
                break;
            case lease_event::release:
                m.release();
                break;
            case lease_event::extend_longer:
            case lease_event::extend_shorter:
                m.extend(length(e));
                break;
            case lease_event::destroy:
                m.destroy_handle();
        }
        for (const auto& c : store_.calls()) {
            if (c.op == operation::extend)
                m.extend_sent(c.ttl, c.at);
            else if (was_held && m.releasing() && own_release_ == 0)
                own_release_ = c.number;
            require(c.key == "k" && c.token == token_, "requests are for this lease");
        }
        if (was_held && m.over())
            require(gives_back(), "a lease that ends without release() is given back");
        store_.forget_calls();
    }

    // A lease that the store has denied need not be given back.
    bool gives_back() const
    {
        if (answer_ == lease_model::answer::no)
            return true;
        for (const auto& c : store_.calls()) {
            if (c.op == operation::release)
                return true;
        }
        return false;
    }

    void check_always()
    {
        require(seen_.acquired == 1, "one on_acquire");
        require(seen_.released + seen_.lost <= 1, "at most one of on_release and on_lost");
        require(!seen_.renewed_after_end, "no on_renew after the end");
        if (handle_ && handle_->is_held()) {
            require(loop_.now() < handle_->valid_until(), "no belief beyond valid_until");
            require(!seen_.told, "no belief after the end");
            require(releases_.empty(), "no belief after release()");
            require(store_.holder("k") == token_ || denied(), "belief is well founded");
        }
    }
    bool denied() const { return !store_has_it_; }

    void check_against_model()
    {
        const lease_model& m = *model_;
        for (const std::string& c : m.complaints)
            require(false, c.c_str());
        if (handle_) {
            require(handle_->is_held() == m.is_held(), "is_held()");
            require(handle_->valid_until() == m.valid_until() || m.over() || m.releasing(),
                    "valid_until()");
        }
        require(seen_.told == m.end_reason(), "the reason that hooks are told");
        require(ended_ == m.end_reason(), "the reason of ended()");
        require(seen_.renewed == m.renewals, "the number of on_renew");
        require(seen_.errors == m.errors, "the number of on_error");
        require(lost_token_.stop_requested() == m.told_of_loss(), "lost_token");
        require(!m.owes_extend(), "an extend that is due is sent");
        for (std::size_t n = 0; n < releases_.size(); ++n)
            require(releases_[n] == m.release_outcome(n), "what release() gives");
        for (std::size_t n = 0; n < extends_.size(); ++n)
            require(extends_[n] == m.extend_outcome(n), "what extend() gives");
    }

    lease_variant variant_;
    amux::manual_event_loop loop_;
    amux::testing::scripted_backend store_;
    lease_hooks_seen seen_;
    amux::distributed_lock<amux::testing::scripted_backend&> locks_;
    std::stop_source stop_;
    std::optional<amux::acquired_lock> handle_;
    std::optional<amux::end_reason> ended_;
    std::stop_token lost_token_;
    std::string token_;
    std::optional<lease_model> model_;
    std::vector<outcome> releases_;
    std::vector<outcome> extends_;
    unsigned steps_ = 0;
    bool doubtful_ = false; // an error was given
    bool store_has_it_ = true;
    std::size_t op_answered_ = 0;
    std::size_t own_release_ = 0; // the number of the release that ended it
    lease_model::answer answer_{};
    std::string trouble_;
};

} // namespace support

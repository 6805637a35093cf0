// SPDX-License-Identifier: BSL-1.0
// Without this file nothing says, apart from the code under test, what becomes of a lease in every order of events.
#pragma once

#include <amux/clock.hpp>
#include <amux/error.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace support {

/// What a call on a handle has come to.
enum class outcome { pending, yes, no, ended, trouble, other };

inline const char* name_of(outcome o)
{
    constexpr const char* names[] = {"pending",          "true",          "false",
                                     "lock_ended_error", "backend_error", "something else"};
    return names[static_cast<std::size_t>(o)];
}

/// One lease, from its grant on, by the state table of the design: what its holder may believe, what it hears, what its
/// calls come to. The loop runs after each event. It is told which requests were sent, and checks that they may be.
class lease_model {
public:
    using milliseconds = std::chrono::milliseconds;
    using time_point = amux::clock::time_point;

    enum class answer { yes, no, trouble, doubt };

    lease_model(milliseconds ttl, bool renews, milliseconds margin, time_point granted)
        : now_{granted}, ttl_{ttl}, renews_{renews}, margin_{margin}, renewed_{granted}
    {
        valid_ = granted + ttl - drift(ttl);
    }

    // Events.

    void time_is(time_point now)
    {
        now_ = now;
        look();
    }

    void stop()
    {
        if (state_ == state::held)
            end(amux::end_reason::aborted);
    }

    /// Gives the number of the call.
    std::size_t release()
    {
        releases_.push_back(outcome::pending);
        if (state_ == state::held)
            state_ = state::releasing;
        else if (state_ == state::ended)
            releases_.back() = outcome::no;
        return releases_.size() - 1;
    }

    void destroy_handle()
    {
        if (state_ == state::held)
            state_ = state::releasing;
    }

    std::size_t extend(milliseconds ttl)
    {
        extends_.push_back({ttl, state_ == state::ended ? outcome::ended : outcome::pending});
        if (state_ == state::ended)
            return extends_.size() - 1;
        queue_.push_back(extends_.size() - 1);
        go_on();
        return extends_.size() - 1;
    }

    void extend_answered(answer a)
    {
        const request r = *std::exchange(in_flight_, std::nullopt);
        const auto tell = [&](outcome o) {
            if (r.caller)
                extends_[*r.caller].second = o;
        };
        if (state_ == state::held && now_ >= valid_) {
            end(amux::end_reason::expired);
        } else if (state_ == state::held && is_trouble(a)) {
            ++errors;
            const milliseconds in_force = (std::min)(ttl_, r.ttl);
            back_off_ = back_off_ == milliseconds{} ? in_force / 20 : 2 * back_off_;
            back_off_ = (std::clamp)(back_off_, milliseconds{5}, in_force / 4);
            failed_ = now_;
            if (a == answer::doubt)
                doubted_ = (std::min)(doubted_, r.ttl); // it may be carried out at any time
            tell(outcome::trouble);
        } else if (state_ == state::held && a == answer::no) {
            end(amux::end_reason::expired);
        } else if (state_ == state::held) {
            ttl_ = r.ttl;
            renewed_ = r.sent;
            back_off_ = {};
            failed_.reset();
            const milliseconds least = (std::min)(ttl_, doubted_);
            valid_ = r.sent + least - drift(least);
            if (now_ < valid_)
                ++renewals;
            else
                end(amux::end_reason::expired);
            tell(outcome::yes);
        }
        if (state_ != state::held)
            tell(outcome::ended);
        look();
        go_on();
    }

    void release_answered(answer a)
    {
        const bool lost = a == answer::no;
        errors += is_trouble(a) ? 1 : 0;
        end(lost ? amux::end_reason::expired : amux::end_reason::released);
        for (outcome& o : releases_) {
            if (o == outcome::pending)
                o = a == answer::yes ? outcome::yes : lost ? outcome::no : outcome::trouble;
        }
    }

    void background_release_answered(answer a) { errors += is_trouble(a) ? 1 : 0; }

    // What was sent.

    void extend_sent(milliseconds ttl, time_point at)
    {
        if (in_flight_)
            complain("a second extend is sent while one is in flight");
        if (state_ != state::held || at >= valid_)
            complain("an extend is sent for a lease that is over");
        request r{ttl, at, {}};
        if (!queue_.empty()) {
            r.caller = queue_.front();
            queue_.pop_front();
            if (extends_[*r.caller].first != ttl)
                complain("an extend is sent with another ttl than was asked for");
        } else if (!renews_) {
            complain("a lease is renewed that was not to be");
        } else if (ttl != ttl_) {
            complain("a renewal changes the ttl");
        } else if (at < (failed_ ? *failed_ + back_off_ / 2 : renewed_ + interval() * 3 / 4)) {
            complain("a renewal comes early");
        }
        in_flight_ = r;
        valid_ = (std::min)(valid_, at + ttl - drift(ttl));
        look();
    }

    // What is to be seen, once the loop has run.

    bool is_held() const { return state_ == state::held && now_ < valid_; }
    time_point valid_until() const { return valid_; }
    bool over() const { return state_ == state::ended; }
    bool releasing() const { return state_ == state::releasing; }
    std::optional<amux::end_reason> end_reason() const { return reason_; }
    bool told_of_loss() const
    {
        return warned_ || (reason_ && *reason_ != amux::end_reason::released);
    }
    bool extend_in_flight() const { return in_flight_.has_value(); }
    milliseconds ttl() const { return ttl_; }
    outcome release_outcome(std::size_t n) const { return releases_[n]; }
    outcome extend_outcome(std::size_t n) const { return extends_[n].second; }
    /// A renewal, or an extend that somebody waits for, should be in flight and is not.
    bool owes_extend() const
    {
        if (!is_held() || in_flight_)
            return false;
        const auto due = failed_ ? *failed_ + back_off_ + back_off_ / 4 : renewed_ + interval();
        return !queue_.empty() || (renews_ && now_ >= due);
    }

    std::size_t renewals = 0;
    std::size_t errors = 0;
    std::vector<std::string> complaints;

private:
    enum class state { held, releasing, ended };
    struct request {
        milliseconds ttl;
        time_point sent;
        std::optional<std::size_t> caller; // none: a renewal
    };

    static amux::clock::duration drift(milliseconds ttl)
    {
        return amux::clock::duration{ttl} / 100 + milliseconds{2};
    }

    static bool is_trouble(answer a) { return a == answer::trouble || a == answer::doubt; }
    milliseconds interval() const { return (std::min)(ttl_, doubted_) / 3; }

    void look()
    {
        if (state_ != state::held)
            return;
        if (now_ >= valid_)
            end(amux::end_reason::expired);
        else if (now_ >= valid_ - (std::min)(margin_, ttl_))
            warned_ = true;
    }

    void end(amux::end_reason why)
    {
        state_ = state::ended;
        reason_ = why;
        for (auto& [ttl, o] : extends_)
            o = o == outcome::pending ? outcome::ended : o;
        queue_.clear();
    }

    // Who waits to extend finds the lease over, or will be seen to send.
    void go_on()
    {
        if (in_flight_ || state_ == state::held)
            return;
        for (const std::size_t n : queue_)
            extends_[n].second = outcome::ended;
        queue_.clear();
    }

    void complain(std::string what) { complaints.push_back(std::move(what)); }

    time_point now_;
    milliseconds ttl_;
    bool renews_;
    milliseconds margin_;
    time_point renewed_;
    time_point valid_;
    state state_ = state::held;
    std::optional<amux::end_reason> reason_;
    bool warned_ = false;
    milliseconds doubted_ = (milliseconds::max)(); // the least that a request in doubt may set
    milliseconds back_off_{};
    std::optional<time_point> failed_; // the last extend
    std::optional<request> in_flight_;
    std::deque<std::size_t> queue_; // calls of extend that are not sent
    std::vector<std::pair<milliseconds, outcome>> extends_;
    std::vector<outcome> releases_;
};

} // namespace support

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/detail/background_release.hpp>
#include <amux/detail/lease_terms.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace amux::detail {

/// A lease that was granted, from the grant to its end.
///
///   phase      event                         what happens
///   held       extend answers yes            new `valid_until`, from the request's start; `on_renew`
///              extend answers no             -> ended (expired); lost for certain
///              extend in trouble             `on_error`; a renewal is tried again; belief as if a shorter ttl were in force,
///                                            from now on: in doubt, it may be carried out after those that follow
///              `valid_until` passes          -> ended (expired); one release, in the background
///              `stop_margin` before it       `lost_token` stops
///              release, or handle destroyed  -> releasing; the release is sent
///              release by token              -> taken; `lost_token` stops, and the release is sent
///              the same, after its time      -> overdue; what its timer has not seen yet happens now
///              stop token                    -> ended (aborted); released in the background
///   releasing, release answers yes           -> ended (released)
///   taken      release answers no            -> ended (expired)
///              release in trouble            -> ended (released), with a cause; released in the background
///              anything else                 nothing
///   overdue    the loop runs                 -> ended (expired), as if the timer had been in time
///   ended      extend answers yes            released in the background: it cannot be revived
///              anything else                 nothing
///
/// `phase_` leaves `held` by compare-exchange, on any thread: who makes it drop owns the end. All the rest happens on the
/// loop. Belief ends with the phase, or with `valid_until`, whatever is late on the loop.
class lease : public core_event, public std::enable_shared_from_this<lease> {
public:
    /// `in_doubt`: another request for it, before this one, may still be carried out.
    lease(std::shared_ptr<lock_core> c, const backend_request& granted, lease_terms t,
          bool in_doubt)
        : core_event{std::move(c)},
          key{granted.key},
          token{granted.token},
          metadata{t.metadata},
          fence{granted.grant.fence},
          terms_{std::move(t)},
          ttl_{terms_.ttl},
          sure_ttl_{in_doubt ? terms_.ttl : (milliseconds::max)()},
          begun_{granted.started},
          renewed_{granted.started},
          over_{granted.started + terms_.ttl},
          valid_until_{(granted.started + terms_.ttl - drift_of(terms_.ttl))},
          ender_{*this}
    {}

    const std::string key;
    const std::string token;
    const std::string metadata;
    const std::optional<fencing_token> fence;

    // On any thread:

    clock::time_point valid_until() const noexcept
    {
        return valid_until_.load(std::memory_order_acquire);
    }
    bool believes() const noexcept
    {
        return phase_.load(std::memory_order_acquire) == phase::held && mine() &&
               core().now() < valid_until();
    }
    clock::duration remaining() const noexcept
    {
        return believes() ? (std::max)(valid_until() - core().now(), clock::duration{})
                          : clock::duration{};
    }
    /// Its holder has ended it, and nobody has taken it away.
    bool given_back() const noexcept
    {
        return phase_.load(std::memory_order_acquire) == phase::releasing ||
               given_back_.load(std::memory_order_acquire);
    }
    /// Whether it is over, or about to be, whatever the clock says.
    bool has_left() const noexcept { return phase_.load(std::memory_order_acquire) != phase::held; }
    /// Why it is over, or about to be. Requires: it is not held.
    end_reason reason() const noexcept
    {
        switch (phase_.load(std::memory_order_acquire)) {
            case phase::releasing:
            case phase::taken:
            case phase::released:
                return end_reason::released;
            case phase::aborted:
                return end_reason::aborted;
            default:
                return end_reason::
                    expired; // `held`: its time is up, or it is the parent's of this process
        }
    }
    std::stop_token lost_token() const noexcept { return lost_.get_token(); }
    bool renews() const noexcept { return terms_.renew; }

    /// Drops belief and sends the release, if this is the first to end the lease. For its holder.
    ///
    /// Returns: whether a release is in flight now.
    bool begin_release() noexcept
    {
        if (!leave_for_release(phase::releasing))
            return mine() && release_in_flight();
        given_back_.store(true, std::memory_order_release);
        send_release();
        return true;
    }

    // On the loop:

    /// Begins to keep it. `stop` ends it.
    void begin(const std::stop_token& stop)
    {
        core().tell(core().hooks().on_acquire, event());
        if (stop.stop_possible())
            on_stop_.emplace(stop, on_stop{this});
        plan();
    }

    /// Looks at the clock: a lease that has run out ends here, if its timer is late.
    void look() noexcept
    {
        if (core().now() >= valid_until())
            expire();
    }
    /// As `begin_release`, but for somebody who has no more than its token: the holder is told as of a loss, and before the
    /// key is free.
    bool take_away() noexcept
    {
        if (!leave_for_release(phase::taken))
            return mine() && release_in_flight();
        lost_.request_stop();
        send_release();
        return true;
    }
    /// The store has said that it is somebody else's, or nobody's.
    void lost() noexcept
    {
        if (leave_held(phase::expired))
            finish(phase::expired);
    }

    const std::optional<lock_end>& end() const noexcept { return end_; }
    /// Whether the release that ended it was answered yes; and the trouble that it met.
    bool released() const noexcept { return released_; }
    std::exception_ptr release_trouble() const noexcept { return release_trouble_; }

    /// Waiters of `ended()` and of answers: told on every change.
    wake_list watchers;

    /// At most one extend is in flight. Requires: none is.
    bool extending() const noexcept { return extending_; }
    lock_core::request_ptr extend(milliseconds ttl);

    lock_event event() const
    {
        lock_event e;
        e.key = key;
        e.token = token;
        e.fence = fence;
        e.ttl = ttl_;
        e.expires_at = wall_time(valid_until());
        e.metadata = metadata;
        return e;
    }
    milliseconds ttl() const noexcept { return ttl_; }
    std::chrono::system_clock::time_point wall_time(clock::time_point t) const noexcept
    {
        return std::chrono::system_clock::now() +
               std::chrono::duration_cast<std::chrono::system_clock::duration>(t - core().now());
    }

private:
    enum class phase : unsigned char {
        held,
        releasing,
        taken,
        overdue,
        released,
        expired,
        aborted
    };

    /// An end that is asked for on any thread: by a stop token, or by a holder who is too late.
    struct end_event : core_event {
        explicit end_event(lease& l) noexcept : core_event{l.core().self()}, self{l} {}
        using core_event::post;
        void happens() noexcept override { self.end_now(); }
        lease& self;
    };
    struct on_stop {
        lease* self;
        void operator()() const noexcept
        {
            // The lease owns the event, so what keeps the one keeps the other. None: the lock is being destroyed.
            if (auto owner = self->weak_from_this().lock())
                self->ender_.post({std::move(owner), &self->ender_});
        }
    };

    /// It is not when this process is a child that was forked since: the lease is its parent's.
    bool mine() const noexcept { return process_ == process_id(); }

    bool leave_held(phase next) noexcept
    {
        phase held = phase::held;
        return phase_.compare_exchange_strong(held, next, std::memory_order_acq_rel);
    }

    /// Whether it was the first to end it, and in time.
    bool leave_for_release(phase next) noexcept
    {
        if (!mine())
            return false;
        const bool overdue = core().now() >= valid_until();
        if (!leave_held(overdue ? phase::overdue : next))
            return false;
        if (overdue)
            ender_.post({shared_from_this(), &ender_});
        return !overdue;
    }
    bool release_in_flight() const noexcept
    {
        const phase now = phase_.load(std::memory_order_acquire);
        return now == phase::releasing || now == phase::taken;
    }
    void send_release() noexcept
    {
        auto r = core().make_request(lock_core::operation::release, key, token, {});
        r->receiver_tells = true;
        r->on_answer = [self = shared_from_this()](backend_request& answer) {
            self->release_answered(answer);
        };
        core().send(r);
    }

    void happens() noexcept override;
    void plan() noexcept;
    clock::time_point renewal_due() const noexcept;
    /// When `lost_token` stops, unless the lease ends before.
    clock::time_point warning_due() const noexcept
    {
        return valid_until() - (std::min)(terms_.stop_margin, ttl_);
    }
    void extend_answered(backend_request& r);
    void release_answered(backend_request& r);
    void end_now() noexcept;
    void expire() noexcept;
    void finish(phase last, std::exception_ptr cause = nullptr) noexcept;
    /// Frees the key in the background; a forked child leaves that to its parent.
    void give_back(clock::time_point over) noexcept
    {
        if (mine())
            core().give_back(event(), over);
    }

    const lease_terms terms_;
    milliseconds ttl_;
    milliseconds sure_ttl_; // the least that a request in doubt may still set
    const clock::time_point begun_;
    clock::time_point renewed_; // the start of the last request that set the ttl
    std::optional<clock::time_point> retry_; // of a renewal that met trouble
    milliseconds back_off_{};
    clock::time_point over_; // the store may still have it until then
    bool extending_ = false;
    bool released_ = false;
    std::exception_ptr release_trouble_;
    std::optional<lock_end> end_;
    const double spread_ = core().random(0.8, 1.0);

    std::atomic<phase> phase_{phase::held};
    std::atomic<bool> given_back_{false};
    std::atomic<clock::time_point> valid_until_;
    std::stop_source lost_;
    const long process_ = process_id();
    end_event ender_;
    std::optional<std::stop_callback<on_stop>> on_stop_;
};

/// The clock comes first: after a pause nothing is believed that has run out meanwhile.
inline void lease::happens() noexcept
{
    const clock::time_point now = core().now();
    if (release_in_flight()) {
        // The release hangs, and the lease is over by itself: those who wait here need not wait for it as well.
        if (now >= over_)
            core().remove_lease(*this);
        else
            arm(shared_from_this(), over_);
        return;
    }
    if (now >= valid_until())
        return expire();
    if (now >= warning_due())
        lost_.request_stop(); // what that calls may end the lease
    if (phase_.load(std::memory_order_acquire) == phase::held && terms_.renew && mine() &&
        !extending_ && now >= renewal_due())
        core().send(extend(ttl_));
    else
        plan();
}

/// Arms the timer for whatever comes next.
inline void lease::plan() noexcept
{
    if (phase_.load(std::memory_order_acquire) != phase::held)
        return;
    clock::time_point due = valid_until();
    if (!lost_.stop_requested())
        due = warning_due();
    if (terms_.renew && mine() && !extending_)
        due = (std::min)(due, renewal_due());
    arm(shared_from_this(), due);
}

inline clock::time_point lease::renewal_due() const noexcept
{
    constexpr auto never = (clock::time_point::max)();
    const milliseconds ttl = (std::min)(ttl_, sure_ttl_);
    // Never so late that a renewal, and a second one, would not fit in.
    const clock::duration interval =
        terms_.renew_interval ? clock::duration{(std::min)(*terms_.renew_interval, ttl / 2)}
                              : clock::duration{ttl} / 3;
    const auto spread =
        std::chrono::duration_cast<clock::duration>(interval * spread_); // leases begun together
    const clock::time_point due = retry_.value_or(renewed_ + spread);
    return terms_.max_hold && due >= deadline_after(begun_, *terms_.max_hold) ? never : due;
}

inline lock_core::request_ptr lease::extend(milliseconds ttl)
{
    auto r = core().make_request(lock_core::operation::extend, key, token, ttl);
    r->receiver_tells = true;
    r->on_answer = [self = shared_from_this()](backend_request& answer) {
        self->extend_answered(answer);
    };
    extending_ = true;
    over_ = (std::max)(over_, r->started + ttl);
    // A shorter ttl may be in force from now on, whether we hear of it or not.
    const clock::time_point at_least = r->started + ttl - drift_of(ttl);
    if (at_least < valid_until())
        valid_until_.store(at_least, std::memory_order_release);
    plan();
    return r;
}

inline void lease::extend_answered(backend_request& r)
{
    extending_ = false;
    const bool held = phase_.load(std::memory_order_acquire) == phase::held;
    const clock::time_point now = core().now();
    if (now >= valid_until()) {
        expire();
    } else if (held && r.error) {
        if (kind_of(r.error) == backend_error_kind::indeterminate)
            sure_ttl_ = (std::min)(sure_ttl_, r.ttl);
        lock_event e = event();
        e.cause = r.error;
        // A shorter ttl may be in force: the next try comes in its time.
        const milliseconds in_force = (std::min)(ttl_, r.ttl);
        back_off_ = back_off_ == milliseconds{} ? in_force / 20 : 2 * back_off_;
        back_off_ =
            (std::clamp)(back_off_, milliseconds{5}, (std::max)(milliseconds{5}, in_force / 4));
        // Leases that met trouble together do not all come back together.
        retry_ = now +
                 std::chrono::duration_cast<clock::duration>(back_off_ * core().random(0.75, 1.25));
        core().tell(core().hooks().on_error, e);
    } else if (!r.yes) {
        lost(); // if it is held yet
    } else if (held) {
        ttl_ = r.ttl;
        renewed_ = r.started;
        retry_.reset();
        back_off_ = {};
        const milliseconds sure = (std::min)(ttl_, sure_ttl_);
        valid_until_.store(r.started + sure - drift_of(sure), std::memory_order_release);
        core().tell(core().hooks().on_renew, event());
    }
    if (r.yes && end_ && !released_)
        give_back(over_);
    plan();
    notify_all(watchers);
}

inline void lease::release_answered(backend_request& r)
{
    released_ = r.yes;
    release_trouble_ = r.error;
    if (r.error) {
        lock_event e = event();
        e.cause = r.error;
        core().tell(core().hooks().on_error, e);
        give_back(over_);
    }
    finish(released_ || r.error ? phase::released : phase::expired, r.error);
}

inline void lease::end_now() noexcept
{
    if (core().now() >= valid_until()) // so it is when the phase is `overdue`
        return expire();
    if (!leave_held(phase::aborted))
        return;
    give_back(over_);
    finish(phase::aborted);
}

inline void lease::expire() noexcept
{
    if (!leave_held(phase::expired) && phase_.load(std::memory_order_acquire) != phase::overdue)
        return;
    finish(phase::expired);
    give_back(core().now()); // once: its time is over anyhow
}

/// The one end: everybody is told, once.
inline void lease::finish(phase last, std::exception_ptr cause) noexcept
{
    const auto self = shared_from_this(); // what is told may drop the last handle
    phase_.store(last, std::memory_order_release);
    disarm();
    on_stop_.reset();
    end_ = lock_end{reason(), cause, std::chrono::system_clock::now()};
    if (last != phase::released)
        lost_.request_stop();
    lock_event e = event();
    e.reason = reason();
    e.cause = std::move(cause);
    core().tell(last == phase::released ? core().hooks().on_release : core().hooks().on_lost, e);
    core().remove_lease(*this);
    notify_all(watchers);
}

inline std::shared_ptr<lease> lock_core::find_lease(const std::string& key,
                                                    const std::string& token) noexcept
{
    if (const line* l = find_line(key)) {
        for (const auto& held : l->held) {
            if (held->token == token)
                return held;
        }
    }
    return nullptr;
}

inline void lock_core::add_lease(std::shared_ptr<lease> l)
{
    line_of(l->key).held.push_back(std::move(l));
}

inline void lock_core::remove_lease(const lease& ended) noexcept
{
    line* const l = find_line(ended.key);
    if (!l)
        return;
    std::erase_if(l->held, [&ended](const auto& held) { return held.get() == &ended; });
    if (wake_point* next = l->waiting.front())
        next->notify();
    else
        forget_if_unused(ended.key);
}

} // namespace amux::detail

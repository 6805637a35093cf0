// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/acquired_lock.hpp>
#include <amux/detail/lease_calls.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace amux::detail {

/// A place in the local line for a key: only who stands first talks to the backend.
class line_place {
public:
    line_place(lock_core& core, const std::string& key) : news{core}, core_{core}, key_{key}
    {
        core_.line_of(key_).waiting.push_back(news);
    }
    line_place(const line_place&) = delete;
    line_place& operator=(const line_place&) = delete;
    ~line_place()
    {
        lock_core::line* const l = core_.find_line(key_);
        if (!l)
            return; // the lock is gone
        const bool led = leads();
        l->waiting.erase(news);
        if (wake_point* next = l->waiting.front(); next && led)
            next->notify();
        core_.forget_if_unused(key_);
    }

    bool leads() noexcept { return line().waiting.front() == &news; }
    lock_core::line& line() noexcept { return *core_.find_line(key_); }

    wake_point news;

private:
    lock_core& core_;
    const std::string& key_;
};

/// One call of `acquire` or `try_acquire`, on the loop.
class acquisition {
public:
    /// `stop` ends a lease that it gets, `stop_wait` the wait.
    acquisition(lock_core& core, const std::string& key, const lease_terms& terms,
                const std::stop_token& stop, std::stop_token stop_wait)
        : core_{core},
          key_{key},
          terms_{terms},
          stop_lease_{stop},
          stop_{std::move(stop_wait)},
          begun_{core.now()},
          deadline_{terms.max_wait == forever ? never : deadline_after(begun_, terms.max_wait)}
    {
        ++core_.acquisitions;
    }
    acquisition(const acquisition&) = delete;
    acquisition& operator=(const acquisition&) = delete;
    ~acquisition()
    {
        if (unsure_ && process_ == process_id())
            core_.give_back(event_of(*unsure_), core_.now() + unsure_->ttl, true);
        --core_.acquisitions;
        core_.tell_drainers();
    }

    /// In line, until there is a lease. It throws for every other end; `insists`: no trouble of the store is one.
    task<std::optional<acquired_lock>> wait_in_line(bool insists);
    /// One attempt, outside the line: null for "not now".
    task<std::optional<acquired_lock>> try_once();

private:
    using reason = wake_point::reason;

    /// The store is asked to tell when the key is free: once for as many polls as that takes.
    struct hint {
        lock_core::request_ptr request;
        clock::time_point since{};

        hint() = default;
        hint(const hint&) = delete;
        hint& operator=(const hint&) = delete;
        ~hint()
        {
            if (!request)
                return;
            request->on_answer = nullptr;
            request->give_up.request_stop();
        }
        bool waits() const noexcept { return request && !request->answered; }
    };

    /// Asks once, until `until`. Null: not granted; `trouble_`, `hangs_` or, of a refusal, `holder_ttl_` says why.
    task<std::optional<acquired_lock>> ask_once(clock::time_point until);
    std::optional<acquired_lock> take_answer(const lock_core::request_ptr& r);
    std::optional<acquired_lock> granted(const backend_request& r);
    task<> wait_until_maybe_free(wake_point& news, hint& watch);
    bool one_attempt() const noexcept { return terms_.max_wait == milliseconds{}; }
    /// Whether a refusal is by the lease that refused before, as far as its time tells.
    bool still_held(clock::time_point now) const noexcept
    {
        return !holder_ttl_ || now + *holder_ttl_ <= held_until_ + milliseconds{2};
    }

    void throw_if_over() const
    {
        if (stop_.stop_requested())
            throw lock_cancelled_error{lock_message("the wait for a lease was stopped", {}, key_)};
        if (core_.closed())
            throw lock_closed_error{lock_message("the lock takes no new calls", {}, key_)};
    }
    milliseconds waited() const
    {
        return std::chrono::duration_cast<milliseconds>(core_.now() - begun_);
    }
    [[noreturn]] void throw_timeout(const store_state& store) const
    {
        const clock::time_point now = core_.now();
        std::string text = "no lease after " + std::to_string(waited().count()) + " ms";
        if (store.hangs(now))
            text += "; the store has not answered";
        // What was answered to a call before, which had no more time, tells of this one too.
        const std::exception_ptr& trouble = store.trouble() ? store.trouble() : last_trouble_;
        text = trouble ? "amux: " + text + "; last trouble of the store: " + what_of(trouble)
                       : lock_message(text, {}, key_);
        throw lock_wait_timeout_error{text, key_, waited(), store.in_trouble(now)};
    }
    void note(lock_event about, std::exception_ptr trouble);

    lock_core& core_;
    const std::string& key_;
    const lease_terms& terms_;
    const std::stop_token& stop_lease_;
    const std::stop_token stop_;
    const clock::time_point begun_;
    const clock::time_point deadline_;
    std::string token_ = make_token();
    std::exception_ptr trouble_; // of the last attempt
    bool permanent_ = false;
    std::exception_ptr last_trouble_; // that there was
    bool hangs_ = false; // the last attempt was not answered
    long process_ = process_id(); // whose token it is
    lock_core::request_ptr
        unsure_; // the last attempt that met trouble, and may have left a lease behind
    std::optional<milliseconds> holder_ttl_; // of the last refusal
    bool ran_out_ = false; // by the last refusal the holder had no time left
    clock::time_point held_until_{}; // by what the last refusal said
    bool told_ = false; // the last wait ended with a hint, sooner than with a poll
    int false_hints_ = 0; // in a row
};

inline void acquisition::note(lock_event about, std::exception_ptr trouble)
{
    trouble_ = trouble;
    permanent_ = kind_of(trouble) == backend_error_kind::permanent;
    last_trouble_ = trouble;
    core_.tell_error(std::move(about), std::move(trouble));
}

inline std::exception_ptr late_grant(const std::string& key)
{
    return std::make_exception_ptr(
        backend_error{backend_error_kind::indeterminate,
                      lock_message("a lease was granted too late, and given back", {}, key)});
}

/// Those who wait for the key learn that the store has answered.
inline void tell_line(lock_core& core, const backend_request& r,
                      std::exception_ptr trouble) noexcept
{
    if (lock_core::line* const l = core.find_line(r.key))
        l->store.answers(r.started, core.now(), std::move(trouble));
}

/// What comes of a request for a lease when nobody waits for its answer any more: whatever it obtains is given back.
struct orphan {
    backend_request& request;
    long process;

    ~orphan()
    {
        if (request.answered)
            return;
        request.receiver_tells = false;
        request.on_answer = [p = process](const backend_request& late) { answered(late, p); };
    }

    static void answered(const backend_request& late, long process) noexcept
    {
        lock_core& core = late.core();
        tell_line(core, late, late.error);
        const bool granted = !late.error && late.yes;
        const bool unsure = late.error && kind_of(late.error) == backend_error_kind::indeterminate;
        if ((!granted && !unsure) || process != process_id())
            return;
        core.give_back(event_of(late), core.now() + late.ttl, unsure);
        if (granted)
            core.tell_error(event_of(late), late_grant(late.key));
    }
};

inline task<std::optional<acquired_lock>> acquisition::ask_once(clock::time_point until)
{
    trouble_ = nullptr;
    holder_ttl_.reset();
    if (process_ !=
        process_id()) { // forked: the token, and what was asked for with it, are the parent's
        token_ = make_token();
        process_ = process_id();
        unsure_ = nullptr;
    }
    auto r = core_.make_request(lock_core::operation::acquire, key_, token_, terms_.ttl);
    r->metadata = terms_.metadata;
    r->receiver_tells = true;
    if (lock_core::line* const l = core_.find_line(key_))
        l->store.asks(r->started);
    const orphan detach{*r, process_};
    answer_wait answer{r};
    const listed told_of_close{core_.asking, answer.news};
    while (!r->answered) {
        const reason why = co_await answer.news.wait(until, stop_);
        if (r->answered)
            break;
        hangs_ = why == reason::deadline;
        if (hangs_)
            co_return std::nullopt;
        throw_if_over();
    }
    auto held = take_answer(r);
    tell_line(core_, *r, trouble_);
    co_return std::move(held);
}

inline std::optional<acquired_lock> acquisition::take_answer(const lock_core::request_ptr& r)
{
    if (process_ != process_id()) // the answer is the parent's
        return std::nullopt;
    if (r->error && kind_of(r->error) == backend_error_kind::indeterminate)
        unsure_ = r;
    // What has left nothing is over. A store that is made of several may still be undoing it, which must not meet the next
    // question.
    if (!r->yes && !unsure_)
        token_ = make_token();
    if (r->error) {
        note(event_of(*r), r->error);
        return std::nullopt;
    }
    if (!r->yes) {
        // What no lease can have left says nothing: of a key without an end a store may say -1.
        const auto left = r->grant.holder_ttl;
        if (left && *left >= milliseconds{} && *left <= longest_time)
            holder_ttl_ = left;
        return std::nullopt;
    }
    return granted(*r);
}

/// The clock comes first: a grant that has run out, or that is not wanted any more, is given back.
inline std::optional<acquired_lock> acquisition::granted(const backend_request& r)
{
    const clock::time_point now = core_.now();
    const bool late = now >= r.started + r.ttl - drift_of(r.ttl);
    const bool in_doubt = unsure_ != nullptr; // an attempt before may be carried out yet
    unsure_ = nullptr;
    if (late || stop_.stop_requested() || core_.closed()) {
        core_.give_back(event_of(r), now + r.ttl);
        token_ = make_token();
        note(event_of(r), late_grant(key_));
        throw_if_over();
        return std::nullopt;
    }
    auto l = std::make_shared<lease>(core_.self(), r, terms_, in_doubt);
    core_.add_lease(l);
    std::optional<acquired_lock> held{std::in_place, l};
    l->begin(stop_lease_);
    return held;
}

inline task<std::optional<acquired_lock>> acquisition::try_once()
{
    throw_if_over();
    auto held = co_await ask_once(one_attempt() ? never : deadline_);
    if (held)
        co_return std::move(held);
    if (trouble_)
        std::rethrow_exception(trouble_);
    if (hangs_)
        throw backend_error{backend_error_kind::indeterminate,
                            lock_message("the backend has not answered in " +
                                             std::to_string(waited().count()) + " ms",
                                         {}, key_)};
    co_return std::nullopt;
}

inline task<std::optional<acquired_lock>> acquisition::wait_in_line(bool insists)
{
    line_place place{core_, key_};
    hint watch;
    for (;;) {
        throw_if_over();
        lock_core::line& line = place.line();
        // No question whose answer would not be waited for.
        if (!one_attempt() && core_.now() >= deadline_)
            throw_timeout(line.store);
        // Whoever stands ahead, or holds it in this process, tells us; nobody asks the store meanwhile.
        if (!place.leads() || !line.held.empty()) {
            if (co_await place.news.wait(deadline_, stop_) == reason::deadline)
                throw_timeout(line.store);
            continue;
        }
        // Whoever leads stays away then, also when the one who led before has given up.
        if (line.turns >= (std::max)(core_.options().local_turns, 1u)) {
            line.turns = 0;
            line.away = core_.now() + lock_core::longest_poll(terms_.poll_interval);
        }
        if (!one_attempt() && core_.now() < line.away) {
            co_await place.news.wait((std::min)(line.away, deadline_), stop_);
            continue;
        }
        auto held = co_await ask_once(one_attempt() ? never : deadline_);
        if (held) {
            ++line.turns;
            co_return std::move(held);
        }
        if (trouble_ && !insists && (permanent_ || one_attempt()))
            std::rethrow_exception(trouble_);
        if (core_.now() >= deadline_)
            throw_timeout(line.store);
        if (!trouble_)
            line.turns = 0; // another process has it
        co_await wait_until_maybe_free(place.news, watch);
    }
}

/// Until the store says that the key may be free, its holder's time is up, or the next poll is due.
inline task<> acquisition::wait_until_maybe_free(wake_point& news, hint& watch)
{
    const clock::time_point start = core_.now();
    clock::duration pause = core_.poll_after(terms_.poll_interval);
    // A store that counts in seconds says 0 for a whole one: it is believed once.
    const bool ran_out_before = std::exchange(ran_out_, holder_ttl_ == milliseconds{});
    if (holder_ttl_ && !(ran_out_ && ran_out_before))
        pause = (std::min)(pause, clock::duration{(std::max)(*holder_ttl_, milliseconds{1})});
    // A hint that was none costs a question. After a few in a row that came sooner than a poll, it polls, and takes one
    // hint a poll.
    if (told_ && still_held(start))
        ++false_hints_;
    else if (told_)
        false_hints_ = 0;
    if (core_.notifies() && !trouble_ && !watch.waits() && !(told_ && false_hints_ >= 3)) {
        watch.since = start;
        watch.request = core_.make_request(lock_core::operation::wait, key_, token_, {});
        watch.request->on_answer = [this, &news](const backend_request& r) {
            if (!r.error) // trouble is no hint
                news.notify();
            else
                core_.tell_error(event_of(r), r.error);
        };
        core_.send(watch.request);
    }
    held_until_ = start + holder_ttl_.value_or(milliseconds{});
    told_ = co_await news.wait((std::min)(start + pause, deadline_), stop_) == reason::news &&
            core_.now() < watch.since + terms_.poll_interval;
}

} // namespace amux::detail

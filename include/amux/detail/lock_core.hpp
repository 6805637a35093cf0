// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/backend_request.hpp>
#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/store_state.hpp>
#include <amux/detail/token.hpp>
#include <amux/detail/wake_point.hpp>
#include <amux/lock_backend.hpp>
#include <amux/lock_hooks.hpp>
#include <amux/lock_options.hpp>
#include <amux/scheduler.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace amux::detail {

class background_release;
class lease;

/// The shared state of a `distributed_lock`, whatever its backend.
class lock_core : public event_gate {
public:
    using operation = backend_request::operation;
    using request_ptr = std::shared_ptr<backend_request>;

    /// Who waits for one key in this process, in order of arrival, and who holds it.
    struct line {
        wake_list waiting;
        std::vector<std::shared_ptr<lease>> held;
        unsigned turns = 0; // grants in a row to this line
        store_state store; // as those who waited here have found it
        clock::time_point
            away{}; // until then it stays away, so that other processes get their turn
        bool unused() const noexcept { return waiting.empty() && held.empty(); }
    };

    lock_core(scheduler& loop, const distributed_lock_options& options, lock_hooks hooks)
        : event_gate{loop}, options_{options}, hooks_{std::move(hooks)}
    {}

    std::shared_ptr<lock_core> self() noexcept
    {
        return std::static_pointer_cast<lock_core>(shared_from_this());
    }
    clock::time_point now() const noexcept { return loop().now(); }
    const distributed_lock_options& options() const noexcept { return options_; }
    virtual bool notifies() const noexcept = 0;
    virtual bool inspects() const noexcept = 0;

    /// A request, to be completed with `on_answer` and sent.
    request_ptr make_request(operation op, std::string key, std::string token, milliseconds ttl);
    /// Hands it to the backend. Any thread.
    void send(const request_ptr& r) noexcept;

    /// Frees the key of a lease that nobody here believes to hold, in the background: asks until the store has answered
    /// or `over`, when the lease is over by itself. `in_doubt`: the request for it may still be on its way, so that one
    /// answer that there is none is not enough. On the loop.
    void give_back(lock_event about, clock::time_point over, bool in_doubt = false) noexcept;

    // On the loop, all below.

    void end_background(const background_release& r) noexcept;
    void tell(const std::function<void(const lock_event&)>& hook, const lock_event& e) noexcept;
    const lock_hooks& hooks() const noexcept { return hooks_; }
    void tell_error(lock_event about, std::exception_ptr cause) noexcept;

    line& line_of(const std::string& key) { return lines_[key]; }
    line* find_line(const std::string& key) noexcept;
    void forget_if_unused(const std::string& key) noexcept;
    std::shared_ptr<lease> find_lease(const std::string& key, const std::string& token) noexcept;
    void add_lease(std::shared_ptr<lease> l);
    /// It has ended: the next one in line may ask.
    void remove_lease(const lease& ended) noexcept;

    clock::duration poll_after(milliseconds interval) noexcept;
    static milliseconds longest_poll(milliseconds interval) noexcept;
    double random(double low, double high) noexcept { return jitter_.between(low, high); }

    /// No new calls from now on; those that wait are told.
    void close() noexcept;
    bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }
    bool nothing_outstanding() noexcept;
    /// Drops what is outstanding, and names it through `on_error`; to who waits for an answer that is an error.
    void give_up_outstanding() noexcept;
    int given_up() const noexcept { return given_up_; }
    /// Requests are answered, calls have ended: whoever drains looks again.
    void tell_drainers() noexcept { notify_all(drainers); }
    wake_list drainers;
    wake_list asking; // told of `close` too
    std::size_t acquisitions = 0; // calls that want a lease

    /// The lock is destroyed: what is on its way to the loop is dropped; what happens there at this moment is waited for,
    /// unless this call is a part of it.
    void shut_down() noexcept;

    std::atomic<std::size_t> live_calls{0};
    std::atomic<std::size_t> live_handles{0};

protected:
    /// Asks the backend and completes the request, whose answer it fills in.
    virtual void ask(request_ptr r) noexcept = 0;

private:
    friend backend_request;
    friend background_release;

    void answered(backend_request& r) noexcept;
    bool forget(backend_request& r) noexcept;

    const distributed_lock_options options_;
    const lock_hooks hooks_;
    std::unordered_map<std::string, line> lines_;
    jitter jitter_;
    std::atomic<bool> closed_{false};
    std::vector<std::shared_ptr<background_release>> background_; // on the loop
    int given_up_ = 0; // how often, by `drain`
    bool giving_up_ = false;
    bool gone_ = false; // shut, and nothing happens any more

    intrusive_list<backend_request, &backend_request::sent_before, &backend_request::sent_behind>
        outstanding_; // sent, and not answered on the loop
};

inline lock_core& core_event::core() const noexcept
{
    return static_cast<lock_core&>(*gate_);
}

inline backend_request::backend_request(std::shared_ptr<lock_core> c, operation what,
                                        std::string for_key, std::string with_token,
                                        milliseconds with_ttl)
    : core_event{std::move(c)},
      op{what},
      key{std::move(for_key)},
      token{std::move(with_token)},
      ttl{with_ttl},
      started{core().now()}
{}

inline void backend_request::happens() noexcept
{
    core().answered(*this);
}

inline lock_core::request_ptr lock_core::make_request(operation op, std::string key,
                                                      std::string token, milliseconds ttl)
{
    return std::make_shared<backend_request>(self(), op, std::move(key), std::move(token), ttl);
}

inline backend_request::~backend_request()
{
    core().forget(*this);
}

inline void lock_core::send(const request_ptr& r) noexcept
{
    {
        const std::lock_guard lock{mutex_};
        if (gone_)
            return;
        outstanding_.push_back(*r);
        r->outstanding = true;
    }
    ask(r);
}

inline bool lock_core::forget(backend_request& r) noexcept
{
    const std::lock_guard lock{mutex_};
    if (!r.outstanding)
        return false;
    outstanding_.erase(r);
    r.outstanding = false;
    return true;
}

inline void lock_core::answered(backend_request& r) noexcept
{
    if (!forget(r)) // given up by `drain`
        return;
    static_cast<backend_answer&>(r) = std::move(r.reply);
    r.answered = true;
    if (r.on_answer)
        std::exchange(r.on_answer, nullptr)(r);
    tell_drainers();
}

inline void lock_core::shut_down() noexcept
{
    std::vector<std::shared_ptr<core_event>> dropped; // their destructors may want the mutex
    std::unordered_map<std::string, line> lines;
    std::vector<std::shared_ptr<background_release>> background;
    std::unique_lock lock{mutex_};
    shut_ = true;
    dropped = drop_coming();
    wait_until_empty(lock); // what happens there still sends: a release, say, that nobody else will
    gone_ = true;
    lines.swap(lines_);
    background.swap(background_);
    lock.unlock();
}

inline void lock_core::tell(const std::function<void(const lock_event&)>& hook,
                            const lock_event& e) noexcept
{
    {
        const std::lock_guard lock{mutex_};
        if (!hook || shut_)
            return;
    }
    try {
        hook(e);
    } catch (...) { // NOLINT(bugprone-empty-catch): what a hook throws is not the lock's trouble
    }
}

inline void lock_core::tell_error(lock_event about, std::exception_ptr cause) noexcept
{
    about.cause = std::move(cause);
    tell(hooks_.on_error, about);
}

inline lock_core::line* lock_core::find_line(const std::string& key) noexcept
{
    const auto found = lines_.find(key);
    return found == lines_.end() ? nullptr : &found->second;
}

inline void lock_core::forget_if_unused(const std::string& key) noexcept
{
    const auto found = lines_.find(key);
    if (found != lines_.end() && found->second.unused())
        lines_.erase(found);
}

inline clock::duration lock_core::poll_after(milliseconds interval) noexcept
{
    return std::chrono::duration_cast<clock::duration>(interval * random(0.75, 1.25));
}

inline milliseconds lock_core::longest_poll(milliseconds interval) noexcept
{
    return interval + interval / 4;
}

inline void lock_core::close() noexcept
{
    closed_.store(true, std::memory_order_release);
    for (auto& [key, l] : lines_)
        notify_all(l.waiting);
    notify_all(asking);
}

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/clock.hpp>
#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/loop_gate.hpp>
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

using std::chrono::milliseconds;

class background_release;
class lease;
class lock_core;

/// Something that happens on a lock's loop: posted, or armed for a time. It is kept alive until then.
///
/// The one crossing between the loop and the other threads: whether the lock still is, and what is on its way to the
/// loop, stands under the core's mutex. Everything else of a lock is touched on its loop alone.
class core_event {
public:
    explicit core_event(std::shared_ptr<lock_core> core) noexcept
        : core_{std::move(core)}, node_{*this}
    {}
    core_event(const core_event&) = delete;
    core_event& operator=(const core_event&) = delete;
    virtual ~core_event() = default;

    lock_core& core() const noexcept { return *core_; }

    // For the core's list of those on their way.
    core_event* before = nullptr;
    core_event* behind = nullptr;

protected:
    /// `self` owns this. Any thread. An event that is on its way already stays so.
    void post(std::shared_ptr<core_event> self) noexcept;
    /// On the loop: replaces an earlier time.
    void arm(std::shared_ptr<core_event> self, clock::time_point when) noexcept;
    void disarm() noexcept;

    /// On the loop, unless the lock is gone by then.
    virtual void happens() noexcept = 0;

private:
    friend lock_core;

    struct event_node : scheduler::node {
        explicit event_node(core_event& e) noexcept : node{&fire}, self{e} {}
        core_event& self;
    };

    static void fire(scheduler::node& n) noexcept;

    std::shared_ptr<lock_core> core_;
    std::shared_ptr<core_event> self_; // while on its way
    event_node node_;
};

/// What the backend has answered: an error, or what the operation gives.
struct backend_answer {
    std::exception_ptr error;
    bool yes = false;
    acquire_result grant;
    std::optional<std::string> holder;
    std::optional<lease_info> info;
};

/// A question to the backend, and its answer. Made and sent on any thread; answered on the loop.
struct backend_request : core_event, backend_answer, std::enable_shared_from_this<backend_request> {
    enum class operation : unsigned char { acquire, extend, release, get, inspect, wait };

    backend_request(std::shared_ptr<lock_core> c, operation what, std::string for_key,
                    std::string with_token, milliseconds with_ttl);
    ~backend_request() override;

    const operation op;
    const std::string key;
    const std::string token;
    const milliseconds ttl;
    std::string metadata;
    std::stop_source give_up; // of a `wait`
    const clock::time_point started; // read before the request was queued

    bool receiver_tells = false; // who gets the answer tells `on_error` of trouble
    backend_answer reply; // the backend's until `complete`; `drain` may have given up by then
    bool answered = false; // on the loop

    /// Called once, on the loop, when the answer is there; not after the lock is gone, or `drain` has given it up.
    std::function<void(backend_request&)> on_answer;

    /// The backend has answered. Any thread.
    void complete() noexcept { post(shared_from_this()); }

    // For the core's list of those that are sent and not answered.
    backend_request* sent_before = nullptr;
    backend_request* sent_behind = nullptr;
    bool outstanding = false;

private:
    void happens() noexcept override;
};

/// The shared state of a `distributed_lock`, whatever its backend.
class lock_core : public loop_gate {
public:
    using operation = backend_request::operation;
    using request_ptr = std::shared_ptr<backend_request>;

    /// Who waits for one key in this process, in order of arrival, and who holds it.
    struct line {
        wake_list waiting;
        std::vector<std::shared_ptr<lease>> held;
        unsigned turns = 0; // grants in a row to this line
        clock::time_point
            away{}; // until then it stays away, so that other processes get their turn
        bool unused() const noexcept { return waiting.empty() && held.empty(); }
    };

    lock_core(scheduler& loop, const distributed_lock_options& options, lock_hooks hooks)
        : loop_gate{loop}, options_{options}, hooks_{std::move(hooks)}
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
    friend core_event;
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

    intrusive_list<core_event, &core_event::before, &core_event::behind> coming_;
    intrusive_list<backend_request, &backend_request::sent_before, &backend_request::sent_behind>
        outstanding_; // sent, and not answered on the loop
};

inline void core_event::post(std::shared_ptr<core_event> self) noexcept
{
    const std::lock_guard lock{core_->mutex_};
    if (core_->shut_ || self_)
        return;
    self_ = std::move(self);
    core_->coming_.push_back(*this);
    core_->loop().post(node_);
}

inline void core_event::arm(std::shared_ptr<core_event> self, clock::time_point when) noexcept
{
    disarm();
    const std::lock_guard lock{core_->mutex_};
    if (core_->shut_)
        return;
    self_ = std::move(self);
    core_->coming_.push_back(*this);
    core_->loop().schedule_at(when, node_);
}

inline void core_event::disarm() noexcept
{
    std::shared_ptr<core_event> self; // released after the mutex
    const std::lock_guard lock{core_->mutex_};
    if (!self_)
        return;
    core_->loop().cancel(node_);
    core_->coming_.erase(*this);
    self = std::move(self_);
}

inline void core_event::fire(scheduler::node& n) noexcept
{
    core_event& e = static_cast<event_node&>(n).self;
    const auto core = e.core_; // outlives the mutex, whatever `happens` drops
    std::shared_ptr<core_event> self;
    const loop_gate::visit now{*core, [&](bool shut) {
                                   self = std::move(e.self_);
                                   if (!shut)
                                       core->coming_.erase(e);
                               }};
    if (now)
        e.happens();
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

/// What a hook is told of a request, as long as there is no lease.
inline lock_event event_of(const backend_request& r)
{
    lock_event e;
    e.key = r.key;
    e.token = r.token;
    e.fence = r.grant.fence;
    e.ttl = r.ttl;
    e.metadata = r.metadata;
    return e;
}

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

/// Asks the store to free a key, again and again while it is in trouble and the lease may still be alive.
class background_release : public core_event,
                           public std::enable_shared_from_this<background_release> {
public:
    background_release(std::shared_ptr<lock_core> c, lock_event of, clock::time_point over,
                       bool in_doubt)
        : core_event{std::move(c)}, about{std::move(of)}, over_{over}, in_doubt_{in_doubt}
    {}

    /// The store has said that there is nothing to free; it asks again, in case that changes, but nobody waits for it.
    bool idles() const noexcept { return idles_; }

    const lock_event about;

    void start()
    {
        request_ = core().make_request(lock_core::operation::release, about.key, about.token, {});
        request_->on_answer = [this](const backend_request& r) { answered(r); };
        core().send(request_);
    }

    /// The request, if it is in flight, is none of ours any more.
    void give_up() noexcept
    {
        disarm();
        if (request_)
            request_->on_answer = nullptr;
    }

private:
    void answered(const backend_request& r)
    {
        const clock::time_point again = core().now() + wait_;
        if (r.error)
            core().tell_error(about, r.error);
        if ((!r.error && (r.yes || !in_doubt_)) || again >= over_)
            return core().end_background(*this);
        if (!r.error) {
            idles_ = true;
            core().tell_drainers();
        }
        wait_ = (std::min)(2 * wait_, milliseconds{5'000});
        arm(shared_from_this(), again);
    }

    /// A forked child leaves its parent's leases alone.
    void happens() noexcept override
    {
        if (process_ == process_id())
            start();
        else
            core().end_background(*this);
    }

    const clock::time_point over_;
    const bool in_doubt_;
    bool idles_ = false;
    const long process_ = process_id();
    milliseconds wait_{50};
    lock_core::request_ptr request_;
};

inline void lock_core::give_back(lock_event about, clock::time_point over, bool in_doubt) noexcept
{
    {
        const std::lock_guard lock{mutex_};
        if (giving_up_ || gone_)
            return;
    }
    background_.push_back(
        std::make_shared<background_release>(self(), std::move(about), over, in_doubt));
    background_.back()->start();
}

inline void lock_core::end_background(const background_release& r) noexcept
{
    std::erase_if(background_, [&r](const auto& b) { return b.get() == &r; });
    tell_drainers();
}

inline bool lock_core::nothing_outstanding() noexcept
{
    const std::lock_guard lock{mutex_};
    return outstanding_.empty() && std::all_of(background_.begin(), background_.end(),
                                               [](const auto& b) { return b->idles(); });
}

inline void lock_core::give_up_outstanding() noexcept
{
    const auto error_for = [](const std::string& key) {
        return std::make_exception_ptr(backend_error{
            backend_error_kind::indeterminate,
            "amux: given up by drain before the backend has answered: key '" + key + "'"});
    };
    ++given_up_;
    giving_up_ = true; // what the answers below would start is given up as well
    const auto background = std::exchange(background_, {});
    for (const auto& b : background) {
        b->give_up();
        tell_error(b->about, error_for(b->about.key));
    }
    const auto first = [this] {
        const std::lock_guard lock{mutex_};
        // What drives a request holds it; one that is being destroyed is on its way to this mutex.
        while (backend_request* r = outstanding_.pop_front()) {
            r->outstanding = false;
            if (auto held = r->weak_from_this().lock())
                return held;
        }
        return request_ptr{};
    };
    while (const request_ptr r = first()) {
        if (!r->on_answer)
            continue;
        r->error = error_for(r->key);
        r->answered = true;
        if (!r->receiver_tells)
            tell_error(event_of(*r), r->error);
        std::exchange(r->on_answer, nullptr)(*r);
    }
    giving_up_ = false;
    tell_drainers();
}

inline void lock_core::shut_down() noexcept
{
    std::vector<std::shared_ptr<core_event>> dropped; // their destructors may want the mutex
    std::unordered_map<std::string, line> lines;
    std::vector<std::shared_ptr<background_release>> background;
    std::unique_lock lock{mutex_};
    shut_ = true;
    while (core_event* e = coming_.pop_front()) {
        // One that is not queued any more is about to run, on the loop's thread, and sees that the lock is gone.
        if (loop().cancel(e->node_))
            dropped.push_back(std::move(e->self_));
    }
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

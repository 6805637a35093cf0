// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/clock.hpp>
#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/home_of.hpp>
#include <amux/detail/resume_queue.hpp>
#include <amux/detail/suspension.hpp>
#include <amux/lock_backend.hpp>
#include <amux/scheduler.hpp>

#include <chrono>
#include <coroutine>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace amux {

/// Leases in the memory of one process: for tests, for development, and for locks with a time to live within a process.
///
/// Fences, keeps metadata, wakes waiters, and answers every operation at once. Movable: what refers to it is its state.
/// Complexity: O(log leases) for an operation; memory for the leases that are alive, and those that expired
/// since the last `acquire`s. Thread-safety: any thread.
class memory_backend {
    template <class T>
    struct ready;
    class store;

public:
    class release_awaiter;

    /// Time from `amux::clock`.
    memory_backend();
    /// Time from `time.now()`: a `manual_event_loop` then rules when leases expire. Lifetime: `time` outlives the store.
    explicit memory_backend(const scheduler& time);
    memory_backend(memory_backend&&) noexcept;
    memory_backend& operator=(memory_backend&&) noexcept;
    ~memory_backend();

    /// As `lock_backend` says; gives a fence. A ttl that is not above zero is `permanent` trouble.
    ready<acquire_result> acquire(std::string_view key, std::string_view token,
                                  std::chrono::milliseconds ttl, std::string_view metadata = {});
    /// As `lock_backend` says.
    ready<bool> extend(std::string_view key, std::string_view token, std::chrono::milliseconds ttl);
    /// As `lock_backend` says. Resumes: who waits for the release of this key, at its own place.
    ready<bool> release(std::string_view key, std::string_view token);
    /// As `lock_backend` says.
    ready<std::optional<std::string>> get(std::string_view key) const;
    /// Who holds the key, and all that is known of the lease; none for a free key.
    ready<std::optional<lease_info>> inspect(std::string_view key) const;

    /// Waits until the key is released, at once when it is free, or until it is stopped.
    ///
    /// Resumes: at the coroutine's own place; without one on the thread that releases or stops, after the internal lock is
    ///   dropped.
    release_awaiter wait_for_release(std::string_view key, std::stop_token stop = {});

    /// How many leases are alive.
    std::size_t size() const;

private:
    std::unique_ptr<store> store_;
};

/// A result that is there already.
template <class T>
struct memory_backend::ready {
    T value;
    bool await_ready() const noexcept { return true; }
    void await_suspend(std::coroutine_handle<>) const noexcept {}
    T await_resume() { return std::move(value); }
};

/// What `wait_for_release` gives to `co_await`: in the frame of who waits, under the store's lock while it is in a list.
class memory_backend::release_awaiter : detail::suspension {
public:
    /// For `memory_backend`.
    release_awaiter(store& s, std::string_view key, std::stop_token stop)
        : store_{s}, key_{key}, stop_{std::move(stop)}
    {}
    release_awaiter(const release_awaiter&) = delete;
    release_awaiter& operator=(const release_awaiter&) = delete;
    ~release_awaiter();

    bool await_ready() const noexcept { return false; }

    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> handle)
    {
        return suspend(handle, detail::home_of(handle));
    }

    void await_resume() noexcept { on_stop_.reset(); }

private:
    friend store;
    struct on_stop {
        release_awaiter* self;
        void operator()() const noexcept;
    };

    // Out of line: inside a coroutine, clang before 19 may keep values in the frame that is given away here.
    [[gnu::noinline]] bool suspend(std::coroutine_handle<> handle, scheduler* home)
    {
        suspended(handle, home);
        return enlist();
    }
    bool enlist();

    store& store_;
    const std::string key_;
    const std::stop_token stop_;
    release_awaiter* before_ = nullptr;
    release_awaiter* behind_ = nullptr;
    bool listed_ = false; // the store knows it
    std::optional<std::stop_callback<on_stop>> on_stop_;
};

class memory_backend::store {
public:
    explicit store(const scheduler* time) noexcept : time_{time} {}

    acquire_result acquire(std::string_view key, std::string_view token,
                           std::chrono::milliseconds ttl, std::string_view metadata)
    {
        require_ttl(key, ttl);
        const std::lock_guard lock{mutex_};
        const auto now = this->now();
        forget_expired(now);
        auto found = leases_.find(key);
        if (found != leases_.end() && found->second.token != token)
            return {false, std::nullopt, remaining(found->second, now)};
        if (found == leases_.end()) {
            found = leases_.emplace(std::string{key}, lease{}).first;
            try {
                found->second.token = token;
                found->second.metadata = metadata;
                found->second.expiry =
                    expiries_.emplace(detail::deadline_after(now, ttl), found->first);
            } catch (...) {
                leases_.erase(found);
                throw;
            }
            found->second.fence = ++last_fence_;
        } else {
            expire_at(found->second, detail::deadline_after(now, ttl));
        }
        return {true, found->second.fence, std::nullopt};
    }

    bool extend(std::string_view key, std::string_view token, std::chrono::milliseconds ttl)
    {
        require_ttl(key, ttl);
        const std::lock_guard lock{mutex_};
        const auto now = this->now();
        const auto found = alive(key, now);
        if (found == leases_.end() || found->second.token != token)
            return false;
        expire_at(found->second, detail::deadline_after(now, ttl));
        return true;
    }

    bool release(std::string_view key, std::string_view token)
    {
        {
            const std::lock_guard lock{mutex_};
            const auto found = alive(key, now());
            if (found == leases_.end() || found->second.token != token)
                return false;
            forget(found);
            wake(key);
        }
        detail::resume_queue::drain();
        return true;
    }

    std::optional<std::string> get(std::string_view key)
    {
        const std::lock_guard lock{mutex_};
        const auto found = alive(key, now());
        if (found == leases_.end())
            return std::nullopt;
        return found->second.token;
    }

    std::optional<lease_info> inspect(std::string_view key)
    {
        const std::lock_guard lock{mutex_};
        const auto now = this->now();
        const auto found = alive(key, now);
        if (found == leases_.end())
            return std::nullopt;
        const lease& l = found->second;
        return lease_info{l.token, l.fence, remaining(l, now), l.metadata};
    }

    std::size_t size()
    {
        const std::lock_guard lock{mutex_};
        forget_expired(now());
        return leases_.size();
    }

private:
    friend release_awaiter;

    struct text_hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view s) const noexcept
        {
            return std::hash<std::string_view>{}(s);
        }
    };

    struct lease {
        std::string token;
        std::string metadata;
        fencing_token fence = 0;
        std::multimap<clock::time_point, std::string_view>::iterator expiry;
    };
    using lease_map = std::unordered_map<std::string, lease, text_hash, std::equal_to<>>;

    static void require_ttl(std::string_view key, std::chrono::milliseconds ttl)
    {
        if (ttl <= std::chrono::milliseconds::zero())
            throw backend_error{
                backend_error_kind::permanent,
                detail::lock_message("a lease needs a time to live above zero", {}, key)};
    }

    clock::time_point now() const noexcept { return time_ ? time_->now() : clock::now(); }

    // Called with the lock held, all below.

    static std::chrono::milliseconds remaining(const lease& l, clock::time_point now) noexcept
    {
        return std::chrono::ceil<std::chrono::milliseconds>(l.expiry->first - now);
    }

    lease_map::iterator alive(std::string_view key, clock::time_point now)
    {
        const auto found = leases_.find(key);
        if (found == leases_.end() || found->second.expiry->first > now)
            return found;
        forget(found);
        return leases_.end();
    }

    void forget(release_awaiter& w) noexcept;

    void forget(lease_map::iterator l)
    {
        expiries_.erase(l->second.expiry);
        leases_.erase(l);
    }

    void forget_expired(clock::time_point now)
    {
        while (!expiries_.empty() && expiries_.begin()->first <= now)
            forget(leases_.find(expiries_.begin()->second));
    }

    void expire_at(lease& l, clock::time_point at)
    {
        auto node = expiries_.extract(l.expiry);
        node.key() = at;
        l.expiry = expiries_.insert(std::move(node));
    }

    void wake(std::string_view key) noexcept;

    using waiter_list = detail::intrusive_list<release_awaiter, &release_awaiter::before_,
                                               &release_awaiter::behind_>;

    const scheduler* const time_;
    std::mutex mutex_;
    lease_map leases_;
    std::multimap<clock::time_point, std::string_view> expiries_; // of the keys in `leases_`
    std::unordered_map<std::string, waiter_list, text_hash, std::equal_to<>> waiters_;
    fencing_token last_fence_ = 0;
};

/// All who wait for the key are told: each then asks, and one of them gets it.
inline void memory_backend::store::wake(std::string_view key) noexcept
{
    const auto found = waiters_.find(key);
    if (found == waiters_.end())
        return;
    while (release_awaiter* w = found->second.pop_front()) {
        w->listed_ = false;
        w->finish();
    }
    waiters_.erase(found);
}

inline bool memory_backend::release_awaiter::enlist()
{
    if (stop_.stop_possible())
        on_stop_.emplace(stop_, on_stop{this});
    const std::lock_guard lock{store_.mutex_};
    // A stop that came before finds nothing listed; it is seen here.
    if (stop_.stop_requested() || store_.alive(key_, store_.now()) == store_.leases_.end())
        return false;
    store_.waiters_[key_].push_back(*this);
    listed_ = true;
    return true;
}

inline void memory_backend::release_awaiter::on_stop::operator()() const noexcept
{
    {
        const std::lock_guard lock{self->store_.mutex_};
        if (!self->listed_)
            return;
        self->store_.forget(*self);
        self->finish();
    }
    detail::resume_queue::drain();
}

inline void memory_backend::store::forget(release_awaiter& w) noexcept
{
    const auto found = waiters_.find(w.key_);
    found->second.erase(w);
    if (found->second.empty())
        waiters_.erase(found);
    w.listed_ = false;
}

inline memory_backend::release_awaiter::~release_awaiter()
{
    on_stop_.reset();
    {
        const std::lock_guard lock{store_.mutex_};
        if (listed_)
            store_.forget(*this);
    }
    withdraw();
}

inline memory_backend::memory_backend() : store_{new store{nullptr}} {}
inline memory_backend::memory_backend(const scheduler& time) : store_{new store{&time}} {}
inline memory_backend::memory_backend(memory_backend&&) noexcept = default;
inline memory_backend& memory_backend::operator=(memory_backend&&) noexcept = default;
inline memory_backend::~memory_backend() = default;

inline auto memory_backend::acquire(std::string_view key, std::string_view token,
                                    std::chrono::milliseconds ttl, std::string_view metadata)
    -> ready<acquire_result>
{
    return {store_->acquire(key, token, ttl, metadata)};
}

inline auto memory_backend::extend(std::string_view key, std::string_view token,
                                   std::chrono::milliseconds ttl) -> ready<bool>
{
    return {store_->extend(key, token, ttl)};
}

inline auto memory_backend::release(std::string_view key, std::string_view token) -> ready<bool>
{
    return {store_->release(key, token)};
}

inline auto memory_backend::get(std::string_view key) const -> ready<std::optional<std::string>>
{
    return {store_->get(key)};
}

inline auto memory_backend::inspect(std::string_view key) const -> ready<std::optional<lease_info>>
{
    return {store_->inspect(key)};
}

inline auto memory_backend::wait_for_release(std::string_view key, std::stop_token stop)
    -> release_awaiter
{
    return {*store_, key, std::move(stop)};
}

inline std::size_t memory_backend::size() const
{
    return store_->size();
}

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/lock_core.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace amux::detail {

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
            lock_message("given up by drain before the backend has answered", {}, key)});
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

} // namespace amux::detail

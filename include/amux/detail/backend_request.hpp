// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/clock.hpp>
#include <amux/detail/core_event.hpp>
#include <amux/lock_backend.hpp>
#include <amux/lock_hooks.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>

namespace amux::detail {

using std::chrono::milliseconds;

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

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
// Without this file each test of a lock needs a coroutine, a flag and a loop to say "it waits".
#pragma once

#include "support/foreign_coroutine.hpp"

#include <amux/asyncmux.hpp>
#include <amux/context.hpp>
#include <amux/scheduler.hpp>

#include <deque>
#include <exception>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace support {

/// What happened, by name, in order.
using journal = std::vector<std::string>;

/// Who asks: where its coroutine is resumed (null: by the thread that releases), its context, and the journal in which
/// it writes its name once it has an answer.
struct asker {
    amux::scheduler* where = nullptr;
    const amux::context* who = nullptr;
    journal* log = nullptr;
    const char* name = "";
};

/// A coroutine that awaits a lock, from construction on, and keeps what it gets.
///
/// Destroying it destroys the coroutine, which may wait, and then releases the lock.
template <class Guard>
class request {
public:
    template <class Operation>
    explicit request(Operation asked, asker as = {})
        : as_{as}, coroutine_{run(*this, std::move(asked))}
    {
        coroutine_.start(as.where, as.who);
    }
    request(const request&) = delete;
    request& operator=(const request&) = delete;

    /// "waits", "owns", "empty" (an empty guard), "released", or the error: "stopped", "closed", "full", "reentrant",
    /// "threw".
    const std::string& state() const noexcept { return state_; }
    const std::string& message() const noexcept { return message_; }

    Guard& guard() noexcept { return guard_; }
    void unlock()
    {
        state_ = "released";
        guard_.unlock();
    }

    /// Destroys the coroutine, wherever it stands.
    void destroy()
    {
        state_ = "destroyed";
        coroutine_.destroy();
    }

private:
    template <class Operation>
    static hooked_coroutine run(request& self, Operation asked)
    {
        const char* state = "empty";
        try {
            Guard got = co_await std::move(asked);
            if (got)
                state = "owns";
            self.guard_ = std::move(got);
        } catch (const amux::lock_cancelled_error& e) {
            state = "stopped";
            self.message_ = e.what();
        } catch (const amux::lock_closed_error& e) {
            state = "closed";
            self.message_ = e.what();
        } catch (const amux::lock_queue_full_error& e) {
            state = "full";
            self.message_ = e.what();
        } catch (const amux::reentrant_lock_error& e) {
            state = "reentrant";
            self.message_ = e.what();
        } catch (const std::exception& e) {
            state = "threw";
            self.message_ = e.what();
        }
        self.state_ = state;
        if (self.as_.log)
            self.as_.log->push_back(self.as_.name);
    }

    asker as_;
    std::string state_ = "waits";
    std::string message_;
    Guard guard_;
    hooked_coroutine coroutine_; // goes first: a coroutine that waits refers to the rest
};

template <class Operation>
request(Operation) -> request<typename Operation::guard>;
template <class Operation>
request(Operation, asker) -> request<typename Operation::guard>;

/// Any number of them: `emplace_back(mux.lock("k"))`.
template <class Mux>
using requests = std::deque<request<typename Mux::guard>>;

/// The forms in which a lock that covers the key "k" can be asked for.
enum class form { key, key_shared, whole, whole_shared, several, several_shared };

/// Asks for it, in that form; `Mux` has keys that are strings.
template <class Mux>
void ask(requests<Mux>& to, Mux& mux, form f, std::stop_token stop = {}, asker as = {})
{
    switch (f) {
        case form::key:
            to.emplace_back(mux.lock("k", stop), as);
            return;
        case form::key_shared:
            to.emplace_back(mux.lock_shared("k", stop), as);
            return;
        case form::whole:
            to.emplace_back(mux.lock(stop), as);
            return;
        case form::whole_shared:
            to.emplace_back(mux.lock_shared(stop), as);
            return;
        case form::several:
            to.emplace_back(mux.lock_all("k", "l", stop), as);
            return;
        case form::several_shared:
            to.emplace_back(mux.lock_all_shared("k", "l", stop), as);
            return;
    }
}

} // namespace support

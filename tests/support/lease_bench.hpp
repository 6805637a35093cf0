// SPDX-License-Identifier: BSL-1.0
// Without this file each test of a lease needs a coroutine, a try block and five hooks to say what has happened.
#pragma once

#include <amux/distributed_lock.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/spawn.hpp>
#include <amux/task.hpp>
#include <amux/testing/scripted_backend.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace support {

/// The name of an error: "stopped", "closed", "timeout", "ended", "trouble", "invalid" or "threw".
inline std::string error_name(const std::exception_ptr& error)
{
    try {
        std::rethrow_exception(error);
    } catch (const amux::lock_cancelled_error&) {
        return "stopped";
    } catch (const amux::lock_closed_error&) {
        return "closed";
    } catch (const amux::lock_wait_timeout_error&) {
        return "timeout";
    } catch (const amux::lock_ended_error&) {
        return "ended";
    } catch (const amux::backend_error&) {
        return "trouble";
    } catch (const std::invalid_argument&) {
        return "invalid";
    } catch (...) {
        return "threw";
    }
}

inline std::string error_text(const std::exception_ptr& error)
{
    try {
        std::rethrow_exception(error);
    } catch (const std::exception& e) {
        return e.what();
    } catch (...) {
        return "not a std::exception";
    }
}

/// Time passes, a little at a time, and everything that is due happens.
inline void let_pass(amux::manual_event_loop& loop, std::chrono::milliseconds d)
{
    constexpr std::chrono::milliseconds step{10};
    for (loop.run_ready(); d > d.zero(); d -= step) {
        loop.advance(step);
        loop.run_ready();
    }
}

/// A task that runs on a scheduler, from the scheduler's next turn on, and what it has given.
template <class T>
class asked {
    using kept = std::conditional_t<std::is_void_v<T>, bool, T>;

public:
    asked(amux::scheduler& where, amux::task<T> work)
    {
        amux::spawn(where, keep(out_, std::move(work)));
    }

    /// "waits", "done", or the name of the error.
    std::string state() const
    {
        if (!out_->ended)
            return "waits";
        return out_->error ? error_name(out_->error) : "done";
    }
    std::string message() const { return error_text(out_->error); }
    const std::exception_ptr& error() const { return out_->error; }

    /// Requires: it is done.
    kept& value() { return out_->value.value(); }
    /// Destroys the value.
    void drop() { out_->value.reset(); }

private:
    struct outcome {
        std::optional<kept> value;
        std::exception_ptr error;
        bool ended = false;
    };

    static amux::task<> keep(std::shared_ptr<outcome> out, amux::task<T> work)
    {
        try {
            if constexpr (std::is_void_v<T>) {
                co_await std::move(work);
                out->value = true;
            } else {
                out->value.emplace(co_await std::move(work));
            }
        } catch (...) {
            out->error = std::current_exception();
        }
        out->ended = true;
    }

    std::shared_ptr<outcome> out_ = std::make_shared<outcome>();
};

/// What the hooks were told, in order.
struct hook_log {
    struct entry {
        std::string hook;
        amux::lock_event event;
    };
    std::vector<entry> told;

    /// The names of the hooks that were called, with a space between.
    std::string names() const
    {
        std::string text;
        for (const entry& e : told)
            text += (text.empty() ? "" : " ") + e.hook;
        return text;
    }
    std::ptrdiff_t count(std::string_view hook) const
    {
        return std::count_if(told.begin(), told.end(),
                             [hook](const entry& e) { return e.hook == hook; });
    }
    const amux::lock_event& last(std::string_view hook) const
    {
        const auto found = std::find_if(told.rbegin(), told.rend(),
                                        [hook](const entry& e) { return e.hook == hook; });
        if (found == told.rend())
            throw std::logic_error{"that hook was not called"};
        return found->event;
    }

    amux::lock_hooks hooks()
    {
        amux::lock_hooks h;
        h.on_acquire = [this](const amux::lock_event& e) { told.push_back({"acquire", e}); };
        h.on_release = [this](const amux::lock_event& e) { told.push_back({"release", e}); };
        h.on_renew = [this](const amux::lock_event& e) { told.push_back({"renew", e}); };
        h.on_lost = [this](const amux::lock_event& e) { told.push_back({"lost", e}); };
        h.on_error = [this](const amux::lock_event& e) { told.push_back({"error", e}); };
        return h;
    }
};

/// A loop whose time stands still, a store that goes by a script, and a lock whose hooks are written down.
struct lease_bench {
    using course = amux::testing::course;
    using operation = amux::testing::operation;
    using lock_type = amux::distributed_lock<amux::testing::scripted_backend&>;

    explicit lease_bench(amux::distributed_lock_options options = {})
        : locks{store, loop, options, log.hooks()}
    {}

    /// Runs what is ready, after `d`.
    void pass(std::chrono::nanoseconds d = {})
    {
        loop.advance(d);
        loop.run_ready();
    }
    /// The same in small steps, as time passes in the world.
    void pass_slowly(std::chrono::milliseconds d,
                     std::chrono::milliseconds step = std::chrono::milliseconds{1})
    {
        for (; d > d.zero(); d -= step)
            pass((std::min)(d, step));
    }

    template <class T>
    asked<T> ask(amux::task<T> work)
    {
        return {loop, std::move(work)};
    }
    /// A lease, at once. Requires: the store grants it so.
    amux::acquired_lock hold(std::string_view key, amux::acquire_options options = {},
                             std::stop_token stop = {})
    {
        auto lease = ask(locks.acquire(key, options, std::move(stop)));
        pass();
        return std::move(lease.value());
    }
    /// Time since the beginning.
    std::chrono::milliseconds now() const
    {
        return std::chrono::duration_cast<std::chrono::milliseconds>(loop.now().time_since_epoch());
    }
    std::size_t count(operation op) const { return store.count(op); }

    amux::manual_event_loop loop;
    amux::testing::scripted_backend store{loop};
    hook_log log;
    lock_type locks;
};

} // namespace support

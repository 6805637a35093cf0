// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/error.hpp>

#include <coroutine>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

namespace amux::detail {

/// Asks a backend, on behalf of nobody: nothing waits for the coroutine, and it owns itself. It has no scheduler: the
/// backend resumes it on any thread, also when the loop is gone already.
struct backend_driver {
    struct promise_type {
        backend_driver get_return_object() const noexcept { return {}; }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }
    };
};

/// The error that `make` gives; what it throws, such as for want of memory for a text.
template <class Make>
std::exception_ptr error_of(Make make) noexcept
{
    try {
        return std::make_exception_ptr(make());
    } catch (...) {
        return std::current_exception();
    }
}

/// What is being handled, thrown by `who` though it is no `backend_error`, as one: nobody knows what was done.
inline std::exception_ptr odd_error(std::string_view who, std::string_view key) noexcept
{
    return error_of([&] {
        std::string what{who};
        try {
            throw;
        } catch (const std::exception& e) {
            what.append(" threw: ").append(e.what());
        } catch (...) {
            what += " threw something";
        }
        return backend_error{backend_error_kind::indeterminate, lock_message(what, {}, key)};
    });
}

/// Lets go of what such a coroutine has kept. Whoever drops an owner of backends last in here may be on the thread of one of
/// them, which that could not join: then it ends on another one.
template <class Owner>
class backend_burial {
public:
    template <class Request>
    static void bury(std::shared_ptr<Owner> owner, std::shared_ptr<Request> r) noexcept
    {
        burying() = true;
        r.reset();
        owner.reset();
        burying() = false;
    }

    /// How the owner is destroyed, wherever that is.
    static void destroy(Owner* owner) noexcept
    {
        if (burying())
            std::thread{[owner] { delete owner; }}.detach();
        else
            delete owner;
    }

private:
    static bool& burying() noexcept
    {
        static thread_local bool on_this_thread = false;
        return on_this_thread;
    }
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/asio_config.hpp>
#include <amux/detail/asio_frame_memory.hpp>
#include <amux/detail/asio_place.hpp>
#include <amux/detail/asio_slot.hpp>
#include <amux/detail/asio_waiting.hpp>
#include <amux/scheduler.hpp>
#include <amux/source_location.hpp>

#if defined(AMUX_STANDALONE_ASIO)
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#else
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#endif

#include <coroutine>
#include <exception>
#include <type_traits>
#include <utility>

namespace amux::detail {

/// What an operation has ended with.
template <class T>
struct asio_result {
    std::exception_ptr error;
    T value{};

    void return_value(T v) { value = std::move(v); }
    void unhandled_exception() noexcept { error = std::current_exception(); }
    template <class Handler>
    void give_to(Handler& handler)
    {
        std::move(handler)(std::move(error), std::move(value));
    }
};
template <>
struct asio_result<void> {
    std::exception_ptr error;

    void return_void() const noexcept {}
    void unhandled_exception() noexcept { error = std::current_exception(); }
    template <class Handler>
    void give_to(Handler& handler)
    {
        std::move(handler)(std::move(error));
    }
};

/// An operation of Asio that awaits something of amux, its `Work`: a coroutine that ends suspended, so that what came of it
/// is taken out, and its memory given back, before the handler is called.
///
/// Its frame is owned, while it waits, by the context of the handler's executor (`asio_waiting`); when it has ended, by
/// the `asio_finish` that is on its way to that executor. There, and in the initiation, is the only place where the
/// handler's cancellation slot is touched.
template <class Work, class Handler>
class asio_operation {
public:
    class promise_type;

    /// Begins it. The handler is not called inside.
    static void start(Work work, Handler handler)
    {
        bool ended = false;
        const auto frame = run(std::move(work), handler, ended).frame_;
        frame.resume();
        if (ended) // else it may be gone
            frame.promise().post_finish();
    }

private:
    explicit asio_operation(std::coroutine_handle<promise_type> frame) noexcept : frame_{frame} {}

    static asio_operation run(Work work, Handler& /*handler*/, bool& /*ended*/)
    {
        co_return co_await std::move(work);
    }

    std::coroutine_handle<promise_type> frame_;
};

/// Gives the result to the handler. Dropped, it destroys both: a lock goes on to the next who waits.
template <class Promise>
class asio_finish {
public:
    explicit asio_finish(Promise& p) noexcept : promise_{&p} {}
    asio_finish(asio_finish&& other) noexcept : promise_{std::exchange(other.promise_, nullptr)} {}
    asio_finish& operator=(asio_finish&&) = delete;
    ~asio_finish()
    {
        if (promise_)
            promise_->frame().destroy();
    }
    void operator()() { std::exchange(promise_, nullptr)->finish(); }

private:
    Promise* promise_;
};

/// What a promise of `asio_operation` awaits: the work, and whether it has to wait.
template <class Awaiter, class Promise>
class asio_watched {
public:
    template <class Work>
    asio_watched(Work&& work, Promise& p)
        : promise_{p}, awaiter_{std::forward<Work>(work).operator co_await()}
    {}
    bool await_ready() { return awaiter_.await_ready(); }
    [[gnu::noinline]] bool await_suspend(std::coroutine_handle<Promise> h)
    {
        if (!promise_.begin_wait()) {
            h.destroy(); // the handler, too: it would not be called any more
            return true;
        }
        bool waits = false;
        try {
            waits = suspend(h); // when it waits, all may be gone
        } catch (...) {
            promise_.no_wait();
            throw;
        }
        if (!waits)
            promise_.no_wait();
        return waits;
    }
    decltype(auto) await_resume() { return awaiter_.await_resume(); }

private:
    bool suspend(std::coroutine_handle<Promise> h)
    {
        if constexpr (requires { awaiter_.await_suspend(h, source_location{}); })
            return awaiter_.await_suspend(
                h, source_location{}); // of the user's place nothing is known
        else
            return awaiter_.await_suspend(h);
    }

    Promise& promise_;
    Awaiter awaiter_;
};

template <class Work, class Handler>
class asio_operation<Work, Handler>::promise_type final
    : public std::conditional_t<Work::posts_once, asio_place_once<promise_type>,
                                asio_place<asio_executor_of<Handler>>>,
      public asio_result<typename Work::result>,
      public asio_frame_memory<Work, Handler>,
      asio_waiting::entry {
    using result = asio_result<typename Work::result>;
    using place_base = std::conditional_t<Work::posts_once, asio_place_once<promise_type>,
                                          asio_place<asio_executor_of<Handler>>>;
    using executor_type = asio_executor_of<Handler>;

public:
    promise_type(Work& work, Handler& handler, bool& ended)
        : place_base{asio_executor(handler)},
          handler_{std::move(handler)},
          guard_{asio_executor(handler_)},
          ended_at_once_{&ended},
          slot_{work, handler_}
    {}
    promise_type(const promise_type&) = delete;
    promise_type& operator=(const promise_type&) = delete;
    ~promise_type() // NOLINT(modernize-use-override): one of the two bases has no virtual one
    {
        if (list_)
            list_->remove(*this);
        // What it has ended with goes before the handler, which may own what that needs, such as the mux.
        const result dropped{std::move(static_cast<result&>(*this))};
    }

    asio_operation get_return_object() noexcept { return asio_operation{frame()}; }
    std::suspend_always initial_suspend() const noexcept { return {}; }

    struct final_awaiter {
        bool await_ready() const noexcept { return false; }
        [[gnu::noinline]] void await_suspend(std::coroutine_handle<promise_type> h) const noexcept
        {
            // Who goes on: `start`, when it has not waited; who has run its node, when that is its one post; else a post.
            promise_type& p = h.promise();
            if (!p.waits_)
                *p.ended_at_once_ = true;
            else if constexpr (!Work::posts_once)
                p.post_finish();
        }
        void await_resume() const noexcept {}
    };
    final_awaiter final_suspend() const noexcept { return {}; }

    auto await_transform(Work&& work)
    {
        using awaiter = decltype(std::move(work).operator co_await());
        return asio_watched<awaiter, promise_type>{std::move(work), *this};
    }
    friend scheduler* amux_scheduler(promise_type& p) noexcept { return p.place(); }

    std::coroutine_handle<promise_type> frame() noexcept
    {
        return std::coroutine_handle<promise_type>::from_promise(*this);
    }
    executor_type executor() const noexcept { return guard_.get_executor(); }

    /// Returns: false when there is nothing to wait for, since the context goes.
    bool begin_wait()
    {
        asio_waiting& list = asio_waiting_of(guard_.get_executor());
        if (!list.add(*this))
            return false;
        list_ = &list;
        waits_ = true;
        return true;
    }
    void no_wait() noexcept
    {
        waits_ = false;
        leave_list();
    }
    template <class F>
    void visit_list(F f) noexcept
    {
        list_->visit(f);
    }

    void post_finish()
    {
        if (list_)
            leave_list(); // the frame is the finish's from now on, and nobody else's
        asio::post(executor(), asio_finish{*this});
    }
    void run_and_finish()
    {
        this->run_node(); // to the end of the coroutine
        finish();
    }
    /// On the handler's executor, the coroutine has ended.
    void finish()
    {
        slot_.leave(handler_, static_cast<result&>(*this));
        const auto guard = std::move(guard_); // work until the handler has run
        Handler handler{std::move(handler_)};
        result r{std::move(static_cast<result&>(*this))};
        frame().destroy();
        r.give_to(handler);
    }

private:
    void leave_list() noexcept { std::exchange(list_, nullptr)->remove(*this); }
    void destroy() noexcept override { frame().destroy(); }

    Handler handler_;
    asio::executor_work_guard<executor_type> guard_;
    bool* ended_at_once_; // where `start` looks; not to be touched after a wait
    bool waits_ = false;
    asio_waiting* list_ = nullptr; // while it waits
    [[no_unique_address]] asio_slot<typename Work::stopper> slot_;
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/asio_scheduler.hpp>
#include <amux/clock.hpp>
#include <amux/detail/asio_config.hpp>
#include <amux/detail/asio_waiting.hpp>
#include <amux/detail/stop_token.hpp>
#include <amux/scheduler.hpp>

#if defined(AMUX_STANDALONE_ASIO)
#include <asio/associated_allocator.hpp>
#include <asio/associated_cancellation_slot.hpp>
#include <asio/associated_executor.hpp>
#include <asio/cancellation_type.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/recycling_allocator.hpp>
#include <asio/system_executor.hpp>
#else
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/recycling_allocator.hpp>
#include <boost/asio/system_executor.hpp>
#endif

#include <coroutine>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

namespace amux::detail {

/// Where an operation goes on that needs one post and no timer: on the handler's executor, and from there straight to the
/// handler.
template <class Promise>
class asio_place_once : public scheduler {
public:
    explicit asio_place_once(const auto& /*executor*/) noexcept {}

    /// Without memory for the post the program ends.
    void post(node& n) noexcept final
    {
        auto& self = static_cast<Promise&>(*this);
        const auto executor = self.executor();
        self.visit_list([&](bool shut) {
            node_ = &n;
            if (!shut)
                asio::post(executor, [&self] { self.run_and_finish(); });
        });
    }
    bool cancel(node& /*n*/) noexcept final
    {
        bool was_posted = false;
        static_cast<Promise&>(*this).visit_list(
            [&](bool) { was_posted = std::exchange(node_, nullptr) != nullptr; });
        return was_posted;
    }
    void schedule_at(time_point /*due*/, node& /*n*/) noexcept final {}
    time_point now() const noexcept final { return clock::now(); }

protected:
    scheduler* place() noexcept { return this; }
    void run_node() noexcept { node_->run(); }

private:
    node* node_ = nullptr;
};

/// Where an operation goes on that may need timers, or several posts.
template <class Executor>
class asio_place {
protected:
    explicit asio_place(const Executor& ex) : scheduler_{ex} {}
    scheduler* place() noexcept { return &scheduler_; }

private:
    asio_scheduler<Executor> scheduler_;
};

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
        promise_.begin_wait();
        bool waits = false;
        try {
            waits = awaiter_.await_suspend(h); // when it waits, all may be gone
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
    Promise& promise_;
    Awaiter awaiter_;
};

/// Where a handler is called. One that says nothing is called by Asio's own threads: newer versions would call it in the
/// place, which may be inside `unlock()`.
template <class Handler>
using asio_executor_of = asio::associated_executor_t<Handler, asio::system_executor>;
template <class Handler>
asio_executor_of<Handler> asio_executor(const Handler& handler)
{
    return asio::get_associated_executor(handler, asio::system_executor{});
}

template <class Work, class Handler>
class asio_operation<Work, Handler>::promise_type final
    : public std::conditional_t<Work::posts_once, asio_place_once<promise_type>,
                                asio_place<asio_executor_of<Handler>>>,
      public asio_result<typename Work::result>,
      asio_waiting::entry {
    using result = asio_result<typename Work::result>;
    using place_base = std::conditional_t<Work::posts_once, asio_place_once<promise_type>,
                                          asio_place<asio_executor_of<Handler>>>;
    using executor_type = asio_executor_of<Handler>;
    using stopper = typename Work::stopper;

public:
    promise_type(Work& work, Handler& handler, bool& ended)
        : place_base{asio_executor(handler)},
          handler_{std::move(handler)},
          guard_{asio_executor(handler_)},
          ended_at_once_{&ended}
    {
        if constexpr (!std::is_void_v<stopper>) {
            auto slot = asio::get_associated_cancellation_slot(handler_);
            if (!slot.is_connected())
                return;
            stopper_.emplace(work);
            slot.template emplace<on_cancel>(stopper_->source);
        }
    }
    promise_type(const promise_type&) = delete;
    promise_type& operator=(const promise_type&) = delete;
    ~promise_type() // NOLINT(modernize-use-override): one of the two bases has no virtual one
    {
        if (list_)
            list_->remove(*this);
    }

    // The frame lies in memory of the handler's allocator, a copy of which stands behind it.
    static void* operator new(std::size_t size, Work& /*work*/, Handler& handler, bool& /*ended*/)
    {
        allocator a{asio::get_associated_allocator(handler, asio::recycling_allocator<void>{})};
        block* const p = std::allocator_traits<allocator>::allocate(a, blocks(size) + extra);
        new (p + blocks(size)) allocator(std::move(a));
        return p;
    }
    static void operator delete(void* p, std::size_t size) noexcept
    {
        auto* const first = static_cast<block*>(p);
        auto* const kept = std::launder(reinterpret_cast<allocator*>(first + blocks(size)));
        allocator a{std::move(*kept)};
        kept->~allocator();
        std::allocator_traits<allocator>::deallocate(a, first, blocks(size) + extra);
    }

    asio_operation get_return_object() noexcept { return asio_operation{frame()}; }
    std::suspend_always initial_suspend() const noexcept { return {}; }

    struct final_awaiter {
        bool await_ready() const noexcept { return false; }
        [[gnu::noinline]] void await_suspend(std::coroutine_handle<promise_type> h) const noexcept
        {
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

    void begin_wait()
    {
        list_ = asio_waiting_of(guard_.get_executor());
        waits_ = true;
        if (list_)
            list_->add(*this);
    }
    void no_wait() noexcept
    {
        waits_ = false;
        if (list_)
            list_->remove(*this);
    }
    template <class F>
    void visit_list(F f) noexcept
    {
        if (list_)
            list_->visit(f);
        else
            f(false);
    }

    void post_finish()
    {
        if (list_)
            list_->remove(*this); // the frame is the finish's from now on, and nobody else's
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
        if constexpr (!std::is_void_v<stopper>) {
            if (stopper_) {
                asio::get_associated_cancellation_slot(handler_).clear();
                stopper_->look_again(static_cast<result&>(*this));
            }
        }
        const auto guard = std::move(guard_); // work until the handler has run
        Handler handler{std::move(handler_)};
        result r{std::move(static_cast<result&>(*this))};
        frame().destroy();
        r.give_to(handler);
    }

private:
    struct alignas(std::max_align_t) block {
        std::byte bytes[alignof(std::max_align_t)];
    };
    using allocator = typename std::allocator_traits<asio::associated_allocator_t<
        Handler, asio::recycling_allocator<void>>>::template rebind_alloc<block>;
    static_assert(alignof(allocator) <= alignof(block));
    static constexpr std::size_t blocks(std::size_t size) noexcept
    {
        return (size + sizeof(block) - 1) / sizeof(block);
    }
    static constexpr std::size_t extra = (sizeof(allocator) + sizeof(block) - 1) / sizeof(block);

    struct on_cancel {
        explicit on_cancel(std::stop_source s) noexcept : source{std::move(s)} {}
        void operator()(asio::cancellation_type_t type)
        {
            if (type != asio::cancellation_type_t::none)
                source.request_stop();
        }
        std::stop_source source;
    };
    struct nothing {};

    void destroy() noexcept override { frame().destroy(); }

    Handler handler_;
    asio::executor_work_guard<executor_type> guard_;
    bool* ended_at_once_; // where `start` looks; not to be touched after a wait
    bool waits_ = false;
    asio_waiting* list_ = nullptr;
    [[no_unique_address]] std::conditional_t<
        std::is_void_v<stopper>, nothing,
        std::optional<std::conditional_t<std::is_void_v<stopper>, nothing, stopper>>> stopper_;
};

} // namespace amux::detail

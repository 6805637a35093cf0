// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/asio_config.hpp>
#include <amux/detail/intrusive_list.hpp>

#if defined(AMUX_STANDALONE_ASIO)
#include <asio/execution.hpp>
#include <asio/execution_context.hpp>
#include <asio/query.hpp>
#include <asio/strand.hpp>
#else
#include <boost/asio/execution.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/query.hpp>
#include <boost/asio/strand.hpp>
#endif

#include <concepts>
#include <mutex>

namespace amux::detail {

/// The operations that wait for something of amux on behalf of one context of Asio. With the context go those that are
/// left: their requests are taken back, and their handlers destroyed.
class asio_waiting : public asio::execution_context::service {
public:
    /// One of them.
    class entry {
    public:
        entry() = default;
        entry(const entry&) = delete;
        entry& operator=(const entry&) = delete;

        entry* prev = nullptr;
        entry* next = nullptr;
        bool listed = false;

    protected:
        ~entry() = default;

    private:
        friend asio_waiting;
        virtual void destroy() noexcept = 0;
    };

    inline static asio::execution_context::id id;

    // Services are shut down youngest first. Those of strands must not be shut while a thread that releases posts to one;
    // so they are made before this one, by making a strand.
    explicit asio_waiting(asio::execution_context& context) : service{context}
    {
        const asio::strand<context_alone> older{context_alone{&context}};
    }
    // One that was made while its context went is not shut down.
    ~asio_waiting() override { take_back(); }

    /// Returns: false when its context goes; then nobody would take it back.
    bool add(entry& e) noexcept
    {
        const std::lock_guard lock{mutex_};
        if (shut_)
            return false;
        entries_.push_back(e);
        e.listed = true;
        return true;
    }

    void remove(entry& e) noexcept
    {
        const std::lock_guard lock{mutex_};
        if (e.listed)
            entries_.erase(e);
        e.listed = false;
    }

    /// Calls `f(shut)`: with true, the context must not be used any more. Until `f` returns, it is not destroyed, and no
    /// entry is removed.
    template <class F>
    void visit(F f) noexcept
    {
        const std::lock_guard lock{mutex_};
        f(shut_);
    }

private:
    /// An executor, as far as a strand asks for it when it is made.
    struct context_alone {
        asio::execution_context& query(asio::execution::context_t) const noexcept
        {
            return *context;
        }
        template <class F>
        void execute(F&& /*f*/) const noexcept
        {}
        bool operator==(const context_alone&) const noexcept = default;
        asio::execution_context* context;
    };

    void shutdown() noexcept final { take_back(); }

    void take_back() noexcept
    {
        visit([this](bool) { shut_ = true; });
        while (entry* const e = pop())
            e->destroy(); // may end more of them
        visit([](bool) {}); // who came too late is out
    }

    entry* pop() noexcept
    {
        const std::lock_guard lock{mutex_};
        entry* const e = entries_.pop_front();
        if (e)
            e->listed = false;
        return e;
    }

    std::mutex mutex_;
    intrusive_list<entry, &entry::prev, &entry::next> entries_;
    bool shut_ = false;
};

/// The same for executors of one type that Asio had before its properties. A strand among them has a service of its own,
/// which is older than this one: it is made with the strand, and this one with the first operation that has it.
template <class Executor>
class asio_waiting_on final : public asio_waiting {
public:
    using asio_waiting::asio_waiting;

    inline static asio::execution_context::id id;
};

template <class Executor>
concept asio_tells_context = requires(const Executor& ex) {
    { asio::query(ex, asio::execution::context) } -> std::convertible_to<asio::execution_context&>;
};
/// One such as `io_context::strand`.
template <class Executor>
concept asio_old_executor = !asio_tells_context<Executor> && requires(const Executor& ex) {
    { ex.context() } -> std::convertible_to<asio::execution_context&>;
};

/// The operations of the context that an executor runs on.
template <class Executor>
asio_waiting& asio_waiting_of(const Executor& ex)
{
    static_assert(asio_tells_context<Executor> || asio_old_executor<Executor>,
                  "this executor does not tell its context, with which the requests that wait "
                  "there have to go: bind the handler to one that does, as that of an io_context");
    if constexpr (asio_tells_context<Executor>) {
        asio::execution_context& context = asio::query(ex, asio::execution::context);
        return asio::use_service<asio_waiting>(context);
    } else {
        asio::execution_context& context = ex.context();
        return asio::use_service<asio_waiting_on<Executor>>(context);
    }
}

} // namespace amux::detail

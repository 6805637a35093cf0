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
class asio_waiting final : public asio::execution_context::service {
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

    void add(entry& e) noexcept
    {
        const std::lock_guard lock{mutex_};
        entries_.push_back(e);
        e.listed = true;
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

    void shutdown() noexcept override
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

/// The operations of the context that an executor runs on; null when it does not tell.
template <class Executor>
asio_waiting* asio_waiting_of(const Executor& ex)
{
    if constexpr (requires {
                      {
                          asio::query(ex, asio::execution::context)
                      } -> std::convertible_to<asio::execution_context&>;
                  })
        return &asio::use_service<asio_waiting>(
            static_cast<asio::execution_context&>(asio::query(ex, asio::execution::context)));
    else
        return nullptr;
}

} // namespace amux::detail

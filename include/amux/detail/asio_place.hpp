// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/asio_scheduler.hpp>
#include <amux/clock.hpp>
#include <amux/detail/asio_config.hpp>
#include <amux/scheduler.hpp>

#if defined(AMUX_STANDALONE_ASIO)
#include <asio/associated_executor.hpp>
#include <asio/post.hpp>
#include <asio/system_executor.hpp>
#else
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/system_executor.hpp>
#endif

#include <utility>

namespace amux::detail {

/// Where a handler is called. One that says nothing is called by Asio's own threads: newer versions would call it in the
/// place, which may be inside `unlock()`.
template <class Handler>
using asio_executor_of = asio::associated_executor_t<Handler, asio::system_executor>;
template <class Handler>
asio_executor_of<Handler> asio_executor(const Handler& handler)
{
    return asio::get_associated_executor(handler, asio::system_executor{});
}

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

} // namespace amux::detail

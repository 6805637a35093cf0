// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/detail/home_of.hpp>
#include <amux/detail/redlock_core.hpp>
#include <amux/detail/redlock_round.hpp>
#include <amux/detail/redlock_vote.hpp>
#include <amux/detail/suspension.hpp>
#include <amux/lock_backend.hpp>
#include <amux/scheduler.hpp>

#include <chrono>
#include <coroutine>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace amux::detail {

/// An operation of a `redlock` that is awaited: `T` is what it gives.
template <class T>
class redlock_call final : suspension {
    using operation = redlock_round::operation;

public:
    redlock_call(std::shared_ptr<redlock_core> core, operation what, std::string_view key,
                 std::string_view token = {}, std::chrono::milliseconds ttl = {},
                 std::string_view metadata = {}, std::stop_token stop = {})
        : core_{std::move(core)},
          round_{std::make_shared<redlock_round>(what, key, token, ttl, metadata, core_->size(),
                                                 core_->loop().now())},
          stop_{std::move(stop)}
    {}
    ~redlock_call()
    {
        on_stop_.reset();
        if (waits_)
            core_->abandon(round_, *this);
    }

    bool await_ready() const noexcept { return false; }

    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> handle)
    {
        return suspend(handle, home_of(handle));
    }

    T await_resume()
    {
        waits_ = false;
        on_stop_.reset();
        const redlock_round& r = *round_;
        if (r.end == verdict::none)
            r.throw_trouble();
        const bool yes = r.end == verdict::yes;
        if constexpr (std::is_same_v<T, bool>)
            return yes;
        else if constexpr (std::is_same_v<T, unfenced_result>)
            return {yes, yes ? std::nullopt : time_until_free(r.answers)};
        else if constexpr (std::is_same_v<T, std::optional<std::string>>)
            return yes ? T{common_lease(r.answers).token} : T{};
        else if constexpr (std::is_same_v<T, std::optional<lease_info>>)
            return yes ? T{common_lease(r.answers)} : T{};
    }

private:
    struct on_stop {
        redlock_call* self;
        void operator()() const noexcept
        {
            const auto core = self->core_; // who is stopped may be gone before this returns
            const auto round = self->round_;
            core->stop(round);
        }
    };

    // Out of line: inside a coroutine, clang before 19 may keep values in the frame that is given away here.
    [[gnu::noinline]] bool suspend(std::coroutine_handle<> handle, scheduler* home)
    {
        suspended(handle, home);
        waits_ = true;
        if (stop_.stop_possible())
            on_stop_.emplace(std::move(stop_), on_stop{this});
        const auto core = core_; // this may be gone when it returns
        const auto round = round_;
        return core->begin(round, *this);
    }

    const std::shared_ptr<redlock_core> core_;
    const std::shared_ptr<redlock_round> round_;
    std::stop_token stop_;
    bool waits_ = false; // on the thread that awaits
    std::optional<std::stop_callback<on_stop>> on_stop_;
};

} // namespace amux::detail

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/asio_config.hpp>
#include <amux/detail/stop_token.hpp>

#if defined(AMUX_STANDALONE_ASIO)
#include <asio/associated_cancellation_slot.hpp>
#include <asio/cancellation_type.hpp>
#else
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/cancellation_type.hpp>
#endif

#include <optional>
#include <utility>

namespace amux::detail {

/// What an operation does about its handler's cancellation slot: from its making to `leave` a signal stops the work, by a
/// `Stopper` of it. Without one the slot is left alone.
template <class Stopper>
class asio_slot {
public:
    template <class Work, class Handler>
    asio_slot(Work& work, const Handler& handler)
    {
        auto slot = asio::get_associated_cancellation_slot(handler);
        if (!slot.is_connected())
            return;
        stopper_.emplace(work);
        slot.template emplace<on_cancel>(stopper_->source);
    }

    /// Before the handler is called, with what it will get.
    template <class Handler, class Result>
    void leave(const Handler& handler, Result& result)
    {
        if (!stopper_)
            return;
        asio::get_associated_cancellation_slot(handler).clear();
        stopper_->look_again(result);
    }

private:
    struct on_cancel {
        explicit on_cancel(std::stop_source s) noexcept : source{std::move(s)} {}
        void operator()(asio::cancellation_type_t type)
        {
            if (type != asio::cancellation_type_t::none)
                source.request_stop();
        }
        std::stop_source source;
    };

    std::optional<Stopper> stopper_;
};
template <>
class asio_slot<void> {
public:
    asio_slot(const auto& /*work*/, const auto& /*handler*/) noexcept {}
    void leave(const auto& /*handler*/, const auto& /*result*/) const noexcept {}
};

} // namespace amux::detail

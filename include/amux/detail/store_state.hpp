// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

namespace amux::detail {

/// Whether the store works, as far as the questions for one key tell.
///
/// What it answered last decides. A question that has no answer counts as trouble when there was no answer before it, or
/// when it takes longer than a store that works would: half a second, or twice as long as the last answer, if that is more.
class store_state {
public:
    /// A question is sent.
    void asks(clock::time_point now) noexcept
    {
        last_sent_ = now;
        silent_since_ = silent_since_.value_or(now);
    }

    /// The question that was sent then is answered, also when nobody waits for that any more; `trouble`: by an error.
    void answers(clock::time_point sent, clock::time_point now, std::exception_ptr trouble) noexcept
    {
        if (sent < last_answered_)
            return; // a younger one has told what is newer
        last_answered_ = sent;
        trouble_ = std::move(trouble);
        patience_ = (std::max)(clock::duration{std::chrono::milliseconds{500}}, 2 * (now - sent));
        // Behind one that was given up there is another in flight.
        if (silent_since_ && sent < last_sent_)
            silent_since_ = last_sent_;
        else
            silent_since_.reset();
    }

    bool hangs(clock::time_point now) const noexcept
    {
        return silent_since_ && now - *silent_since_ >= patience_;
    }
    bool in_trouble(clock::time_point now) const noexcept { return trouble_ || hangs(now); }
    /// Null when the last answer was none.
    const std::exception_ptr& trouble() const noexcept { return trouble_; }

private:
    std::exception_ptr trouble_; // the last answer
    clock::duration patience_{}; // none before the first answer
    std::optional<clock::time_point> silent_since_; // asked then, and no answer since
    clock::time_point last_sent_{};
    clock::time_point last_answered_{}; // when that question was sent
};

} // namespace amux::detail

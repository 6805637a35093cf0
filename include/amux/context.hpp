// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>
#include <cstdint>

namespace amux {

/// The identity of a line of coroutines that await one another: what reentrancy detection goes by.
///
/// A coroutine and the tasks that it awaits share one context; coroutines started side by side have contexts of their
/// own. A child context (of a `when_all`) sees its parent's locks. Lifetime: a parent outlives its children.
/// Thread-safety: immutable once made.
class context {
public:
    /// A new root.
    context() noexcept : context{nullptr} {}
    /// A child of `parent`; a root when that is null.
    explicit context(const context* parent) noexcept
        : id_{next_id().fetch_add(1, std::memory_order_relaxed)}, parent_{parent}
    {}
    context(const context&) = delete;
    context& operator=(const context&) = delete;

    /// A number that no other context of the process ever has; never 0.
    std::uint64_t id() const noexcept { return id_; }
    /// The context that this one is a child of; null for a root.
    const context* parent() const noexcept { return parent_; }

private:
    static std::atomic<std::uint64_t>& next_id() noexcept
    {
        static constinit std::atomic<std::uint64_t> next{1};
        return next;
    }

    std::uint64_t id_;
    const context* parent_;
};

} // namespace amux

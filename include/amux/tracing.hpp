// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/trace_event.hpp>
#include <amux/detail/trace_json.hpp>
#include <amux/threading.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace amux {

/// The threading policy `Threading` with an observer that records who waits and who holds, when it is told to, and gives
/// that as a trace for Perfetto or chrome://tracing.
///
/// `Key` is that of the mux. A key is named by its text, when it is a string or an integer, else by a number. It reads
/// `Clock` (a `now()` that gives an `amux::clock::time_point`) for every event. An observer that `Threading` has already
/// is called too: `tracing<std::string, counting<>>` does both.
template <class Key, class Threading = multi_threaded, class Clock = clock>
struct tracing : Threading {
    /// Records, and calls the observer of `Threading`.
    class observer : public Threading::observer {
        using base = typename Threading::observer;
        using kind = detail::trace_kind;
        template <class T>
        using atomic = typename Threading::template atomic<T>;

    public:
        /// A mux with other keys does not compile.
        using key_type = Key;

        /// Records from now on, until there are so many events, 72 bytes each; more are counted, and forgotten. A lock
        /// makes two events, and a wait one more.
        ///
        /// Called again, it begins anew. Throws: `std::bad_alloc`.
        /// Thread-safety: any thread; when it is not the first call, not while others use the mux.
        void start(std::size_t events)
        {
            auto fresh = std::make_unique<buffer>(events);
            current_.store(fresh.get(), std::memory_order_release);
            owned_ = std::move(fresh);
        }

        /// How many events did not fit.
        std::size_t dropped() const noexcept
        {
            const buffer* const b = current_.load(std::memory_order_acquire);
            return b ? b->beyond(b->asked()) : 0;
        }

        /// What was recorded, as a document of Chrome's trace event format; times count from `start`, in microseconds.
        ///
        /// Throws: `std::bad_alloc`. Complexity: O(n log n). Thread-safety: any thread, at any time after `start`.
        std::string chrome_trace(std::string_view mux_name = "mux") const;

        /// For the mux.
        void on_wait(const lock_observation& o) noexcept
        {
            record(kind::wait, o);
            base::on_wait(o);
        }
        /// For the mux.
        void on_leave(const lock_observation& o) noexcept
        {
            record(kind::leave, o);
            if constexpr (requires(base& b) { b.on_leave(o); })
                base::on_leave(o);
        }
        /// For the mux.
        void on_grant(const lock_observation& o) noexcept
        {
            record(kind::grant, o);
            base::on_grant(o);
        }
        /// For the mux.
        void on_downgrade(const lock_observation& o) noexcept
        {
            record(kind::downgrade, o);
            if constexpr (requires(base& b) { b.on_downgrade(o); })
                base::on_downgrade(o);
        }
        /// For the mux.
        void on_release(const lock_observation& o) noexcept
        {
            record(kind::release, o);
            base::on_release(o);
        }

    private:
        struct slot {
            detail::trace_event event;
            atomic<bool> filled{false}; // with release: who reads may come at any time
        };
        struct buffer {
            explicit buffer(std::size_t n) : size{n}, slots{new slot[n]}, begun{Clock::now()} {}

            std::size_t asked() const noexcept { return next.load(std::memory_order_relaxed); }
            /// How many of so many have no place.
            std::size_t beyond(std::size_t n) const noexcept { return n > size ? n - size : 0; }

            const std::size_t size;
            const std::unique_ptr<slot[]> slots;
            const clock::time_point begun;
            atomic<std::size_t> next{0};
        };

        void record(kind what, const lock_observation& o) noexcept
        {
            if (buffer* const b = current_.load(std::memory_order_acquire)) [[unlikely]]
                record(*b, what, o);
        }
        [[gnu::noinline]] static void record(buffer& b, kind what,
                                             const lock_observation& o) noexcept
        {
            if (o.keys == 0 && !o.whole)
                return; // there is nothing to draw
            const std::size_t n = b.next.fetch_add(1, std::memory_order_relaxed);
            if (n >= b.size)
                return;
            slot& s = b.slots[n];
            detail::trace_event& e = s.event;
            e.at = Clock::now();
            e.request = o.request;
            e.thing = o.key ? o.key : o.set;
            e.keys = static_cast<std::uint32_t>(o.keys);
            e.kind = what;
            e.mode = o.mode;
            e.set = !o.whole && !o.key;
            if (o.key)
                e.say_key(*static_cast<const Key*>(o.key));
            s.filled.store(true, std::memory_order_release);
        }

        std::unique_ptr<buffer> owned_;
        atomic<buffer*> current_{nullptr};
    };
};

template <class Key, class Threading, class Clock>
std::string tracing<Key, Threading, Clock>::observer::chrome_trace(std::string_view mux_name) const
{
    const buffer* const b = current_.load(std::memory_order_acquire);
    if (!b)
        return detail::trace_json{mux_name, {}}.finish({}, 0);
    detail::trace_json json{mux_name, b->begun};
    const std::size_t asked = b->asked(); // once: it rises
    const std::size_t lost = b->beyond(asked);
    clock::time_point end = Clock::now();
    for (std::size_t i = 0, n = asked - lost; i != n; ++i) {
        const slot& s = b->slots[i];
        if (!s.filled.load(std::memory_order_acquire))
            continue; // being written just now
        json.add(s.event);
        if (lost != 0)
            end = s.event.at; // of what came after the last one nothing is known
    }
    return std::move(json).finish(end, lost);
}

} // namespace amux

// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/metric.hpp>
#include <amux/threading.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace amux {

/// What a mux has done since it was made. A set of keys counts as one lock; so does the whole mux. An empty set holds
/// nothing: it counts as granted, and as given back at once.
struct mux_counts {
    /// Locks that were to be had when they were asked for; those by `try_lock` too.
    std::uint64_t grants_at_once = 0;
    /// Locks that were waited for.
    std::uint64_t grants_after_wait = 0;
    /// Requests that began to wait.
    std::uint64_t waits = 0;
    /// Waits that ended without a grant: stopped, timed out, closed, or their coroutine destroyed.
    std::uint64_t waits_given_up = 0;
    /// Locks that were given back.
    std::uint64_t releases = 0;
    /// The sum over the waits that are over, with a grant or without.
    clock::duration total_wait{};
    /// The longest of them.
    clock::duration longest_wait{};

    /// Requests that wait now.
    std::uint64_t waiting() const noexcept
    {
        return detail::left_of(waits, grants_after_wait + waits_given_up);
    }
    /// Locks that are held now, of those whose coroutine has not run yet too.
    std::uint64_t held() const noexcept
    {
        return detail::left_of(grants_at_once + grants_after_wait, releases);
    }

    /// All of it for an exporter, always in the same order.
    std::array<metric, 9> metrics() const noexcept;
};

namespace detail {

/// A number for each thread, from 1 on.
inline unsigned thread_number() noexcept
{
    static constinit std::atomic<unsigned> last{0};
    static constinit thread_local unsigned mine = 0;
    if (mine == 0) [[unlikely]]
        mine = last.fetch_add(1, std::memory_order_relaxed) + 1;
    return mine;
}

} // namespace detail

/// The threading policy `Threading` with an observer that counts: `mux.observer().counts()` gives a `mux_counts`.
///
/// It reads `Clock` (a `now()` that gives an `amux::clock::time_point`) when a wait begins and when it ends, and never
/// allocates. It adds 576 bytes to a mux, 56 to one for a single thread. An observer that `Threading` has already is
/// called too.
template <class Threading = multi_threaded, class Clock = clock>
struct counting : Threading {
    static_assert(
        !requires { typename Threading::observer::note; }, "the note of a request has one owner");

    /// Counts, and calls the observer of `Threading`.
    class observer : public Threading::observer {
        using base = typename Threading::observer;

    public:
        /// When the wait began.
        struct note {
            /// By `Clock`.
            clock::time_point since{};
        };

        /// The figures now. Each is exact; they are read one after the other, while others go on.
        /// Thread-safety: any thread, at any time (`single_threaded`: the thread of the mux).
        mux_counts counts() const noexcept;

        /// For the mux.
        void on_wait(const lock_observation& o) noexcept
        {
            static_cast<note*>(o.note)->since = Clock::now();
            add(mine().waits, 1);
            base::on_wait(o);
        }
        /// For the mux.
        void on_leave(const lock_observation& o) noexcept
        {
            stripe& s = mine();
            add(s.given_up, 1);
            end_wait(s, *static_cast<const note*>(o.note));
            if constexpr (requires(base& b) { b.on_leave(o); })
                base::on_leave(o);
        }
        /// For the mux.
        void on_grant(const lock_observation& o) noexcept
        {
            stripe& s = mine();
            if (o.note) {
                add(s.after_wait, 1);
                end_wait(s, *static_cast<const note*>(o.note));
            } else {
                add(s.at_once, 1);
            }
            base::on_grant(o);
        }
        /// For the mux.
        void on_release(const lock_observation& o) noexcept
        {
            add(mine().releases, 1);
            base::on_release(o);
        }

    private:
        using number = typename Threading::template atomic<std::uint64_t>;

        // Locks on different keys are counted by several threads at a time: so atomics, relaxed, since no figure guards
        // another; and so that threads share no line of the cache for it, each counts in a stripe of its own if it can.
        static constexpr std::size_t stripes = (std::min)(Threading::shards, std::size_t{8});
        struct alignas(stripes == 1 ? alignof(number) : 64) stripe {
            number at_once{0};
            number after_wait{0};
            number waits{0};
            number given_up{0};
            number releases{0};
            number total_wait{0}; // in nanoseconds
            number longest_wait{0};
        };

        stripe& mine() noexcept
        {
            if constexpr (stripes == 1)
                return stripes_[0];
            else
                return stripes_[detail::thread_number() % stripes];
        }
        static void add(number& to, std::uint64_t n) noexcept
        {
            to.fetch_add(n, std::memory_order_relaxed);
        }
        static void end_wait(stripe& s, const note& begun) noexcept
        {
            const auto waited = static_cast<std::uint64_t>((Clock::now() - begun.since).count());
            add(s.total_wait, waited);
            std::uint64_t longest = s.longest_wait.load(std::memory_order_relaxed);
            while (waited > longest) {
                if (s.longest_wait.compare_exchange_weak(longest, waited,
                                                         std::memory_order_relaxed))
                    break;
            }
        }
        std::uint64_t sum_of(number stripe::* which) const noexcept
        {
            std::uint64_t sum = 0;
            for (const stripe& s : stripes_)
                sum += (s.*which).load(std::memory_order_relaxed);
            return sum;
        }

        std::array<stripe, stripes> stripes_;
    };
};

inline std::array<metric, 9> mux_counts::metrics() const noexcept
{
    using enum metric_type;
    return {{
        {"amux_mux_grants_total", "Locks that were granted, at once or after a wait.", counter,
         static_cast<double>(grants_at_once + grants_after_wait)},
        {"amux_mux_grants_after_wait_total", "Locks that were granted after a wait.", counter,
         static_cast<double>(grants_after_wait)},
        {"amux_mux_releases_total", "Locks that were given back.", counter,
         static_cast<double>(releases)},
        {"amux_mux_waits_total", "Requests that began to wait.", counter,
         static_cast<double>(waits)},
        {"amux_mux_waits_given_up_total",
         "Waits that ended without a lock: stopped, timed out, closed or destroyed.", counter,
         static_cast<double>(waits_given_up)},
        {"amux_mux_wait_seconds_total", "Time spent in waits that are over.", counter,
         detail::in_seconds(total_wait)},
        {"amux_mux_longest_wait_seconds", "The longest wait that is over.", gauge,
         detail::in_seconds(longest_wait)},
        {"amux_mux_waiting", "Requests that wait now.", gauge, static_cast<double>(waiting())},
        {"amux_mux_held", "Locks that are held now.", gauge, static_cast<double>(held())},
    }};
}

template <class Threading, class Clock>
mux_counts counting<Threading, Clock>::observer::counts() const noexcept
{
    mux_counts c;
    // What ends a thing before what begins it: so nothing seems to have ended that has not begun.
    c.releases = sum_of(&stripe::releases);
    c.waits_given_up = sum_of(&stripe::given_up);
    c.grants_after_wait = sum_of(&stripe::after_wait);
    c.grants_at_once = sum_of(&stripe::at_once);
    c.waits = sum_of(&stripe::waits);
    c.total_wait = clock::duration{sum_of(&stripe::total_wait)};
    for (const stripe& s : stripes_)
        c.longest_wait = (std::max)(
            c.longest_wait, clock::duration{s.longest_wait.load(std::memory_order_relaxed)});
    return c;
}

} // namespace amux

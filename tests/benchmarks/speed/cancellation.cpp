// SPDX-License-Identifier: BSL-1.0
// Without this file a queue that is searched for whom to stop would not be noticed.
#include "rows.hpp"

#include "coroutines.hpp"
#include "floors.hpp"
#include "muxes.hpp"

#include <amux/error.hpp>

#include <algorithm>
#include <coroutine>
#include <optional>
#include <random>
#include <stop_token>

namespace bench {

namespace {

using key = std::int64_t;

/// A queue that is left when a token says so, under a short lock: what a stop cannot do without. Who left goes on inside
/// the callback, or on a loop; that is dearer, since libstdc++ then wakes who might wait for the callback's end.
class stop_line {
    struct link {
        link* next = this;
        link* prev = this;
    };

public:
    class waiter : link, amux::scheduler::node {
    public:
        waiter(stop_line& line, std::stop_token stop, plain_loop* loop)
            : node{&waiter::run}, line_{line}, stop_{std::move(stop)}, loop_{loop}
        {}
        bool await_ready() const noexcept { return false; }
        void await_suspend(std::coroutine_handle<> h)
        {
            handle_ = h;
            line_.lock_.lock();
            link::prev = line_.all_.prev;
            link::next = &line_.all_;
            link::prev->next = link::next->prev = this;
            line_.lock_.unlock();
            on_stop_.emplace(std::move(stop_), leave{*this});
        }
        void await_resume() noexcept { on_stop_.reset(); }

    private:
        struct leave {
            waiter& self;
            void operator()() const
            {
                self.line_.lock_.lock();
                self.link::prev->next = self.link::next;
                self.link::next->prev = self.link::prev;
                self.line_.lock_.unlock();
                self.loop_ ? self.loop_->post(self) : self.handle_.resume();
            }
        };
        static void run(node& n) noexcept { static_cast<waiter&>(n).handle_.resume(); }

        stop_line& line_;
        std::stop_token stop_;
        plain_loop* loop_;
        std::coroutine_handle<> handle_;
        std::optional<std::stop_callback<leave>> on_stop_;
    };

private:
    short_lock lock_;
    link all_;
};

prepared wait_in_line(stop_line& line, std::stop_token stop, plain_loop* loop)
{
    co_await stop_line::waiter{line, std::move(stop), loop};
}

template <class Mux>
prepared wait_and_throw(Mux& mux, std::stop_token stop)
{
    try {
        auto guard = co_await mux.lock(key{1}, stop);
        keep(guard);
    } catch (const amux::lock_cancelled_error&) {
    }
}

/// An end that never comes needs no timer.
template <class Mux>
prepared wait_without_error(Mux& mux, std::stop_token stop, plain_loop& loop)
{
    auto guard =
        co_await mux.try_lock_until(key{1}, amux::clock::time_point::max(), stop).resume_on(loop);
    keep(guard);
}

/// `n` wait, and are stopped in random order. `make(stop)` makes one that waits.
template <class Make>
double stop_all(std::size_t n, plain_loop& loop, Make make)
{
    std::vector<std::stop_source> sources(n);
    const auto waiters = prepare(n, [&](std::size_t i) { return make(sources[i].get_token()); });
    for (const prepared& w : waiters)
        w.start();
    std::shuffle(sources.begin(), sources.end(), std::mt19937{1});
    const stopwatch watch;
    for (const std::stop_source& s : sources) {
        s.request_stop();
        loop.run_ready();
    }
    return watch.each(n);
}

void stopped(row& r, std::size_t n)
{
    static amux::asyncmux<key> mux;
    static amux::unsynchronized_asyncmux<key> single;
    static auto holder = mux.try_lock(1);
    static auto single_holder = single.try_lock(1);
    static stop_line line;
    static plain_loop loop;
    r.rounds(11);
    using stop_token = std::stop_token;
    r.add("asyncmux, try_lock_until", [n] {
        return stop_all(n, loop, [](stop_token s) { return wait_without_error(mux, s, loop); });
    });
    r.add("asyncmux, lock, which throws",
          [n] { return stop_all(n, loop, [](stop_token s) { return wait_and_throw(mux, s); }); });
    r.add("unsynchronized_asyncmux, try_lock_until", [n] {
        return stop_all(n, loop, [](stop_token s) { return wait_without_error(single, s, loop); });
    });
    r.add("floor, on a loop", [n] {
        return stop_all(n, loop, [](stop_token s) { return wait_in_line(line, s, &loop); });
    });
    r.add("floor, inside the stop", [n] {
        return stop_all(n, loop, [](stop_token s) { return wait_in_line(line, s, nullptr); });
    });
    r.at_most(n > 10'000 ? 2.2 : 1.8, "asyncmux, try_lock_until", "floor, on a loop");
}

} // namespace

void add_cancellation(table& t)
{
    for (const std::size_t n : {1'000UL, 100'000UL})
        t.add("stopped in random order, " + short_number(n), [n](row& r) { stopped(r, n); });
}

} // namespace bench

// SPDX-License-Identifier: BSL-1.0
// Without this file the programs over a mux are only written down.
#include "schedules/mux_program.hpp"

#include "schedules/frame.hpp"
#include "schedules/memory.hpp"
#include "schedules/policy.hpp"
#include "schedules/strand.hpp"

#include <amux/asyncmux.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

namespace schedules {
namespace {

using namespace std::chrono_literals;

constexpr int most_requests = history::most;
constexpr auto limit_of_time = 10ms;

int here() noexcept
{
    return thread() < 0 ? 3 : thread();
}

template <std::size_t Shards>
class mux_program final : public program, mux_watcher {
    using mux = amux::asyncmux<int, explored<Shards>>;
    using guard = typename mux::guard;

    enum class outcome : std::uint8_t { none, granted, empty, cancelled, closed, full, destroyed };

    struct request {
        watched_memory frame;
        std::coroutine_handle<> handle; // while it is suspended
        std::optional<std::stop_source> stop;
        guard held;
        const void* waiter = nullptr;
        form how{};
        outcome result = outcome::none;
        bool asked = false;
        bool waited = false;
        bool keeps = true; // the lock, once it has it
        bool timed = false;
    };

public:
    explicit mux_program(const mux_text& t) : text_{t}
    {
        for (const auto& steps : t.threads) {
            for (const step& s : steps) {
                if (s.what == verb::stop)
                    stopped_[at(s.id)] = true;
            }
        }
    }

    int threads() const override { return static_cast<int>(text_.threads.size()); }
    std::string text() const override { return to_string(text_); }

    void begin() override
    {
        mux_watcher::now = this;
        internal_locks::made = internal_locks::held = 0;
        std::fill_n(internal_locks::by_thread, 4, 0);
        std::fill_n(internal_locks::unlocks, 4, 0);
        history_.clear();
        loop_.clear();
        amux::asyncmux_options options;
        if (text_.limited)
            options.max_waiters = 1;
        mux_ = ::new (mux_memory_.take(sizeof(mux))) mux{options};
        for (std::size_t i = 0; i < all_.size(); ++i) {
            request& r = all_[i];
            r.asked = r.waited = r.timed = false;
            r.result = outcome::none;
            r.waiter = nullptr;
            if (stopped_[i])
                r.stop.emplace();
        }
        for (std::size_t t = 0; t < text_.threads.size(); ++t)
            steps_left_[t] = text_.threads[t].size();
        in_call_ = {};
        for (const step& s : text_.before) {
            all_[at(s.id)].keeps = text_.keeps || history_.idle();
            act(s);
        }
    }

    void run(int t) override
    {
        for (const step& s : text_.threads[at(t)]) {
            point("before a step");
            --steps_left_[at(t)];
            busy_[at(t)] = in_call_[at(t)] = uses_mux(s);
            doing_[at(t)] = s;
            act(s);
            busy_[at(t)] = in_call_[at(t)] = false;
            destroy_if_last();
        }
    }

    void end() override
    {
        require(internal_locks::held == 0, "an internal lock is held at the end");
        if (mux_) {
            history_.check_quiet();
            for (bool more = true; more;) {
                more = false;
                if (!loop_.empty()) {
                    loop_.run_ready();
                    more = true;
                }
                for (int id = 0; id < most_requests; ++id)
                    more = release(id) || more;
            }
        }
        loop_.run_ready();
        for (request& r : all_) {
            require(!r.asked || r.result != outcome::none, "a request has no outcome");
            r.stop.reset();
            r.frame.require_untouched("a coroutine that was gone has been written to");
        }
        if (mux_) {
            require(history_.idle(), "a lock is held at the end");
            require(mux_->tracked_keys() == 0, "a key is tracked at the end");
            destroy_mux();
        }
        mux_memory_.require_untouched("a mux that was gone has been written to");
        coverage::divided += internal_locks::made > 1 ? 1 : 0;
        mux_watcher::now = nullptr;
    }

private:
    static std::size_t at(int id) noexcept { return static_cast<std::size_t>(id); }

    /// A stop, or the end, of a request that has been told needs no mux.
    bool uses_mux(const step& s) const noexcept
    {
        return s.what != verb::run && !(ends(s) && history_.has_been_told(s.id));
    }
    static bool ends(const step& s) noexcept
    {
        return s.what == verb::stop || s.what == verb::destroy;
    }

    void act(const step& s)
    {
        switch (s.what) {
            case verb::ask:
            case verb::ask_timed:
                return ask(s);
            case verb::attempt:
                return attempt(s);
            case verb::release:
                release(s.id);
                return;
            case verb::downgrade:
                return downgrade(s.id);
            case verb::stop:
                return stop(s.id);
            case verb::destroy:
                return destroy(s.id);
            case verb::close:
                return mux_->close();
            case verb::run:
                return run_loop();
            case verb::look:
                (void)mux_->tracked_keys();
                (void)mux_->snapshot();
                return;
        }
    }

    void ask(const step& s)
    {
        request& r = all_[at(s.id)];
        r.asked = true;
        r.how = s.how;
        r.timed = s.what == verb::ask_timed;
        std::stop_token token;
        if (r.stop)
            token = r.stop->get_token();
        mux& m = *mux_;
        constexpr int k0 = 0;
        constexpr int k1 = 1;
        if (r.timed)
            return start(s.id, m.try_lock_for(k0, limit_of_time, token));
        switch (s.how) {
            case form::x0:
                return start(s.id, m.lock(k0, token));
            case form::s0:
                return start(s.id, m.lock_shared(k0, token));
            case form::x1:
                return start(s.id, m.lock(k1, token));
            case form::s1:
                return start(s.id, m.lock_shared(k1, token));
            case form::xw:
                return start(s.id, m.lock(token));
            case form::sw:
                return start(s.id, m.lock_shared(token));
            case form::xa:
                return start(s.id, m.lock_all(k0, k1, token));
            case form::sa:
                return start(s.id, m.lock_all_shared(k0, k1, token));
        }
    }

    template <class Operation>
    void start(int id, Operation operation)
    {
        asking_[at(here())] = id;
        request& r = all_[at(id)];
        const coroutine c = wait_for(r, *this, id, std::move(operation));
        r.handle = c.started_on(text_.place == place::loop ? &loop_ : nullptr);
        c.frame.resume();
    }

    template <class Operation>
    static coroutine wait_for(request& self, mux_program& world, int id, Operation operation)
    {
        outcome got = outcome::empty;
        try {
            guard g = co_await std::move(operation);
            point("a coroutine goes on");
            if (g.owns_lock()) {
                got = outcome::granted;
                self.held = std::move(g);
            }
        } catch (const amux::lock_cancelled_error&) {
            got = outcome::cancelled;
        } catch (const amux::lock_closed_error&) {
            got = outcome::closed;
        } catch (const amux::lock_queue_full_error&) {
            got = outcome::full;
        }
        self.handle = nullptr;
        world.has_ended(id, got);
    }

    void has_ended(int id, outcome got)
    {
        request& r = all_[at(id)];
        require(r.result == outcome::none, "a request has two outcomes");
        r.result = got;
        using state = history::state;
        const state s = history_.of(id);
        switch (got) {
            case outcome::granted:
                require(s == state::held, "a coroutine has a lock that was not granted");
                break;
            case outcome::cancelled:
                require(!r.timed && r.stop && r.stop->stop_requested() && s != state::held,
                        "a coroutine is told of a stop that was none");
                break;
            case outcome::empty:
                require(r.timed && s != state::held, "a coroutine has got an empty guard");
                break;
            case outcome::closed:
                require(history_.closed() && s != state::held,
                        "a coroutine is told that the mux is closed, which is not");
                break;
            default:
                require(text_.limited && s == state::absent, "a coroutine is told that it is full");
        }
        require(s != state::waits, "a coroutine goes on that waits");
        require(!r.waited || text_.place == place::thread || loop_.runs_here(),
                "a coroutine goes on elsewhere than on its loop");
        if (!r.keeps)
            release(id);
        destroy_if_last();
    }

    void destroy_if_last()
    {
        if (!text_.destroys || !nobody_uses_it())
            return;
        for (int t = 0; t < threads(); ++t)
            coverage::destroyed += t != thread() && in_call_[at(t)] ? 1 : 0;
        destroy_mux();
    }

    bool nobody_uses_it() const
    {
        if (!mux_ || !history_.idle())
            return false;
        for (std::size_t t = 0; t < text_.threads.size(); ++t) {
            const auto& steps = text_.threads[t];
            if (busy_[t] || std::any_of(steps.end() - static_cast<std::ptrdiff_t>(steps_left_[t]),
                                        steps.end(), [this](const step& s) { return uses_mux(s); }))
                return false;
        }
        return true;
    }

    void destroy_mux()
    {
        std::exchange(mux_, nullptr)->~mux();
        watched_memory::give_back(mux_memory_.address());
    }

    void attempt(const step& s)
    {
        request& r = all_[at(s.id)];
        r.asked = true;
        r.how = s.how;
        asking_[at(here())] = s.id;
        const std::uint64_t changes = history_.changes();
        const bool admitted = history_.admits(wants(s.how));
        constexpr int k0 = 0;
        constexpr int k1 = 1;
        try {
            switch (s.how) {
                case form::x0:
                    r.held = mux_->try_lock(k0);
                    break;
                case form::s0:
                    r.held = mux_->try_lock_shared(k0);
                    break;
                case form::xw:
                    r.held = mux_->try_lock();
                    break;
                case form::sw:
                    r.held = mux_->try_lock_shared();
                    break;
                case form::xa:
                    r.held = mux_->try_lock_all(k0, k1);
                    break;
                default:
                    fail("no such attempt");
            }
            r.result = r.held.owns_lock() ? outcome::granted : outcome::empty;
        } catch (const amux::lock_closed_error&) {
            require(history_.closed(), "an attempt is told that the mux is closed, which is not");
            r.result = outcome::closed;
        }
        require((r.result == outcome::granted) == (history_.of(s.id) == history::state::held),
                "an attempt and its guard disagree");
        require(r.result != outcome::empty || !admitted || changes != history_.changes(),
                "an attempt has failed though nothing was in its way");
    }

    bool release(int id)
    {
        request& r = all_[at(id)];
        if (!r.held.owns_lock())
            return false;
        // The guard goes to this call, as it would in the program of a user: nobody else releases it meanwhile.
        guard g = std::move(r.held);
        releasing_[at(here())] = id;
        g.unlock();
        return true;
    }

    void downgrade(int id)
    {
        request& r = all_[at(id)];
        if (!r.held.owns_lock())
            return;
        guard g = std::move(r.held);
        if (g.mode() == walks::lock_mode::exclusive) {
            history_.begin_change(id);
            g.downgrade();
            history_.end_change(id);
        }
        r.held = std::move(g);
    }

    void stop(int id)
    {
        request& r = all_[at(id)];
        history_.may_leave(id);
        std::stop_source stop = *r.stop; // the request may be gone when it returns
        if (stop.request_stop())
            history_.stop_has_returned(id);
    }

    void destroy(int id)
    {
        request& r = all_[at(id)];
        if (!r.handle)
            return;
        const std::coroutine_handle<> handle = std::exchange(r.handle, nullptr);
        require(r.result == outcome::none, "a coroutine that has ended is suspended");
        r.result = outcome::destroyed;
        releasing_[at(here())] = id;
        history_.begin_change(id);
        coverage::taken_back += history_.has_been_told(id) ? 1 : 0;
        handle.destroy();
        history_.end_change(id);
        releasing_[at(here())] = -1;
        require(history_.of(id) != history::state::held, "a destroyed coroutine keeps its lock");
    }

    void run_loop()
    {
        advance_to(schedules::now() + std::chrono::nanoseconds{limit_of_time}.count());
        for (int id = 0; id < most_requests; ++id) {
            if (all_[at(id)].timed)
                history_.may_leave(id);
        }
        loop_.run_ready();
    }

    void on_wait(const amux::lock_observation& o) override
    {
        const int id = asking_[at(here())];
        request& r = all_[at(id)];
        r.waiter = o.request;
        r.waited = true;
        history_.waits(id, wants(r.how));
    }

    int known(const amux::lock_observation& o) const
    {
        int id = 0;
        while (id < most_requests && all_[at(id)].waiter != o.request)
            ++id;
        require(id < most_requests, "something happens to a request that nobody knows");
        return id;
    }

    void on_leave(const amux::lock_observation& o) override
    {
        const int id = known(o);
        history_.leaves(id);
        is_told(id);
    }

    /// Who is told may destroy the mux, once nobody holds it; who ends it or tells it counts on the mux no more.
    void is_told(int id)
    {
        busy_[at(here())] = false;
        for (int t = 0; t < threads(); ++t) {
            if (ends(doing_[at(t)]) && doing_[at(t)].id == id)
                busy_[at(t)] = false;
        }
    }

    void on_grant(const amux::lock_observation& o) override
    {
        const int id = o.request ? known(o) : asking_[at(here())];
        const walks::wanted w = wants(all_[at(id)].how);
        require(o.mode == w.mode && o.whole == w.whole, "another lock is granted");
        if (!o.request)
            return history_.granted_at_once(id, w);
        history_.granted(id);
        is_told(id);
    }

    void on_release(const amux::lock_observation&) override
    {
        const int id = std::exchange(releasing_[at(here())], -1);
        require(id >= 0, "a lock is released that nobody releases");
        history_.released(id);
        busy_[at(here())] = false; // from now on the mux may be destroyed by who gets it
    }

    void on_close() override
    {
        busy_[at(here())] = false; // who is told may destroy the mux, once nobody holds it
        history_.closes();
    }

    void on_quiet() override { history_.check_quiet(); }

    const mux_text& text_;
    std::array<bool, most_requests> stopped_{};
    strand loop_;
    watched_memory mux_memory_;
    mux* mux_ = nullptr;
    history history_;
    std::array<request, most_requests> all_;
    std::array<int, 4> asking_{};
    std::array<int, 4> releasing_{-1, -1, -1, -1};
    std::array<bool, 4> busy_{}; // is in a call of the mux, and others count on it
    std::array<bool, 4> in_call_{};
    std::array<step, 4> doing_{};
    std::array<std::size_t, 4> steps_left_{};
};

} // namespace

walks::wanted wants(form f) noexcept
{
    using walks::lock_mode;
    const auto number = static_cast<unsigned>(f);
    const lock_mode mode = number % 2 == 0 ? lock_mode::exclusive : lock_mode::shared;
    if (f == form::xw || f == form::sw)
        return {mode, true, 0};
    constexpr unsigned keys[] = {1, 2, 0, 3};
    return {mode, false, keys[number / 2]};
}

std::unique_ptr<program> make_mux_program(const mux_text& t)
{
    switch (t.shards) {
        case 1:
            return std::make_unique<mux_program<1>>(t);
        case 2:
            return std::make_unique<mux_program<2>>(t);
        default:
            fail("no such number of shards");
    }
}

std::string to_string(const mux_text& t)
{
    constexpr const char* verbs[] = {"lock", "lock_for", "try",   "release", "downgrade",
                                     "stop", "destroy",  "close", "run",     "look"};
    constexpr const char* forms[] = {"X0", "S0", "X1", "S1", "Xwhole", "Swhole", "X01", "S01"};
    const auto write = [&](const std::vector<step>& steps) {
        std::string text;
        for (const step& s : steps) {
            text += text.empty() ? "" : ", ";
            text += verbs[static_cast<std::size_t>(s.what)];
            if (s.what < verb::close)
                text += " #" + std::to_string(s.id);
            if (s.what <= verb::attempt)
                text += std::string{" "} + forms[static_cast<std::size_t>(s.how)];
        }
        return text;
    };
    std::string text = t.place == place::loop ? "on a loop" : "on threads";
    text += ", " + std::to_string(t.shards) + (t.shards == 1 ? " shard" : " shards");
    text += t.limited ? ", one may wait" : "";
    text += t.keeps ? ", who waits keeps its lock" : "";
    text += t.destroys ? ", the last destroys the mux" : "";
    if (!t.before.empty())
        text += "; before: " + write(t.before);
    for (std::size_t i = 0; i < t.threads.size(); ++i)
        text += "; thread " + std::to_string(i) + ": " + write(t.threads[i]);
    return text;
}

} // namespace schedules

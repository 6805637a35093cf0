// SPDX-License-Identifier: BSL-1.0
// Without this file programs run on the model only, and never on a mux.
#pragma once

#include "support/foreign_coroutine.hpp"
#include "support/growing_policy.hpp"
#include "support/program.hpp"

#include <amux/asyncmux.hpp>
#include <amux/context.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/spawn.hpp>
#include <amux/task.hpp>

#include <array>
#include <bit>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace walks {

/// A coroutine that tells nothing of itself. It may be destroyed while it waits.
class plain_coroutine {
public:
    struct promise_type {
        plain_coroutine get_return_object() noexcept { return plain_coroutine{*this}; }
        std::suspend_always initial_suspend() const noexcept { return {}; }
        std::suspend_always final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }
    };

    plain_coroutine(plain_coroutine&& other) noexcept
        : handle_{std::exchange(other.handle_, nullptr)}
    {}
    plain_coroutine& operator=(plain_coroutine&&) = delete;
    ~plain_coroutine() { destroy(); }

    void start() { handle_.resume(); }
    void destroy() noexcept
    {
        if (handle_)
            std::exchange(handle_, nullptr).destroy();
    }

private:
    explicit plain_coroutine(promise_type& p) noexcept
        : handle_{std::coroutine_handle<promise_type>::from_promise(p)}
    {}

    std::coroutine_handle<> handle_;
};

inline support::hooked_coroutine await_task(amux::task<> work)
{
    co_await std::move(work);
}

/// Which ways to ask are compiled: all of them, or one for each kind of request.
enum class forms { all, few };

/// The same as `model`, done by a real mux and real coroutines.
template <class Mux, forms Forms>
class reality {
public:
    using key = typename Mux::key_type;
    using guard = typename Mux::guard;

    reality(bool prevent_reentrancy, std::size_t max_waiters)
        : mutexes_before_{noticed::mutexes},
          mux_{new Mux{{.prevent_reentrancy = prevent_reentrancy, .max_waiters = max_waiters}}}
    {
        for (int k = 0; k < most_keys; ++k)
            keys_.push_back(make_key<key>(k));
        for (auto& l : loops_)
            l = std::make_unique<amux::manual_event_loop>();
        noticed::collisions = 0;
        noticed::under_lock = false;
        noticed::observed = &observed_;
        noticed::key_number = [](const void* k) {
            return number_of_key(*static_cast<const key*>(k));
        };
    }
    reality(const reality&) = delete;
    reality& operator=(const reality&) = delete;

    /// Everything is destroyed as it stands, spawned coroutines by their loops. If that leaves anything behind, the mux is
    /// not destroyed: that would end the program before the failure is reported.
    ~reality()
    {
        if (noticed::mutexes - mutexes_before_ > 2) // one for a shard, one against reentrancy
            ++noticed::grown;
        if (is_clean())
            delete mux_;
        noticed::observed = nullptr;
    }

    bool is_clean()
    {
        noticed::observed = nullptr;
        idle_ = true;
        for (auto& s : slots_)
            s.reset();
        for (auto& l : loops_)
            l.reset();
        const auto left = mux_->snapshot();
        return left.keys.empty() && left.whole.holders == 0 && left.whole.waiters == 0 &&
               mux_->tracked_keys() == 0;
    }

    void apply(const step& s)
    {
        switch (s.what) {
            case verb::ask:
                ask(add(s));
                break;
            case verb::attempt:
                attempt(add(s));
                break;
            case verb::run:
                loops_[static_cast<std::size_t>(s.id)]->run_ready();
                break;
            case verb::advance:
                for (auto& l : loops_)
                    l->advance(std::chrono::milliseconds{s.id});
                break;
            case verb::collide:
                noticed::collisions = 1;
                break;
            default:
                act(s.what, s.id);
        }
    }

    Mux& mux() { return *mux_; }
    const std::vector<event>& log() const { return log_; }
    const std::vector<seen>& observed() const { return observed_; }

    guard try_lock(const wanted& w)
    {
        const bool exclusive = w.mode == lock_mode::exclusive;
        if (w.whole)
            return exclusive ? mux_->try_lock() : mux_->try_lock_shared();
        const key& k = keys_[static_cast<std::size_t>(std::countr_zero(w.keys))];
        return exclusive ? mux_->try_lock(k) : mux_->try_lock_shared(k);
    }

private:
    enum class phase : std::uint8_t { suspended, held, ended };

    struct slot {
        step asked;
        phase at = phase::suspended;
        bool busy = false;
        guard* held = nullptr;
        guard own; // of who hands it out
        std::vector<std::unique_ptr<guard>> moved;
        std::stop_source source{std::nostopstate};
        std::vector<key> keys;
        std::coroutine_handle<> at_gate;
        std::optional<plain_coroutine> plain;
        std::optional<support::hooked_coroutine> hooked;
    };

    /// Until the guard is to be released.
    struct gate {
        slot& s;
        bool await_ready() const noexcept { return false; }
        void await_suspend(std::coroutine_handle<> h) noexcept { s.at_gate = h; }
        void await_resume() const noexcept {}
    };

    slot& add(const step& s)
    {
        while (slots_.size() <= static_cast<std::size_t>(s.id))
            slots_.push_back(nullptr);
        auto& place = slots_[static_cast<std::size_t>(s.id)];
        place = std::make_unique<slot>();
        place->asked = s;
        if (s.token != token::none)
            place->source = std::stop_source{};
        if (s.token == token::stopped)
            place->source.request_stop();
        if (s.scope == scope::range) {
            for (std::size_t i = 0; i < s.key_count; ++i)
                place->keys.push_back(key_at(s, i));
        }
        return *place;
    }

    const key& key_at(const step& s, std::size_t i) const { return keys_[s.keys[i]]; }

    void act(verb what, int id)
    {
        if (what == verb::close)
            return mux_->close();
        slot& s = *slots_[static_cast<std::size_t>(id)];
        switch (what) {
            case verb::release:
                release(s);
                break;
            case verb::stop:
                s.source.request_stop();
                break;
            case verb::destroy:
                s.at = phase::ended;
                if (s.plain)
                    s.plain->destroy();
                if (s.hooked)
                    s.hooked->destroy();
                break;
            case verb::downgrade:
                s.held->downgrade();
                break;
            case verb::move:
                move(s);
                break;
            default:
                break;
        }
    }

    bool applies(verb what, int id) const
    {
        const slot* const s = static_cast<std::size_t>(id) < slots_.size()
                                  ? slots_[static_cast<std::size_t>(id)].get()
                                  : nullptr;
        switch (what) {
            case verb::release:
            case verb::downgrade:
                return s && s->at == phase::held;
            case verb::stop:
                return s && s->asked.token == token::live;
            case verb::destroy:
                return s && s->asked.what == verb::ask &&
                       s->asked.coroutine != coroutine::spawned &&
                       (s->at == phase::suspended ||
                        (s->at == phase::held && s->asked.in_frame && !s->busy));
            default:
                return true;
        }
    }

    void release(slot& s)
    {
        s.at = phase::ended;
        guard& g = *std::exchange(s.held, nullptr);
        if (const auto h = std::exchange(s.at_gate, nullptr); h && s.asked.in_frame)
            return h.resume();
        switch (s.asked.variant % 3) {
            case 0:
                g.unlock();
                break;
            case 1: {
                const guard last{std::move(g)};
                break;
            }
            default:
                g = guard{};
        }
    }

    void move(slot& s)
    {
        s.asked.in_frame = false;
        if (s.asked.variant % 2 == 0) {
            s.moved.push_back(std::make_unique<guard>(std::move(*s.held)));
        } else {
            s.moved.push_back(std::make_unique<guard>());
            *s.moved.back() = std::move(*s.held);
        }
        s.held = s.moved.back().get();
    }

    /// The coroutine goes on with what it was given, and does what it is to do then.
    void answered(slot& s, outcome what, guard& mine)
    {
        if constexpr (std::is_same_v<typename Mux::threading::mutex, pretending_mutex>)
            noticed::outside_of_locks();
        log_.push_back({s.asked.id, what});
        s.at = what == outcome::granted ? phase::held : phase::ended;
        if (what == outcome::granted) {
            s.held = &mine;
            if (!s.asked.in_frame) {
                s.own = std::move(mine);
                s.held = &s.own;
            }
        }
        if (idle_ || s.asked.then == verb::nothing)
            return;
        s.busy = true;
        if (applies(s.asked.then, s.asked.then_id))
            act(s.asked.then, s.asked.then_id);
        s.busy = false;
    }

    template <class Coroutine, class Operation>
    static Coroutine await_lock(reality& r, slot& s, Operation operation)
    {
        guard mine;
        outcome what = outcome::granted;
        try {
            guard g = co_await std::move(operation);
            if (g)
                mine = std::move(g);
            else
                what = outcome::empty;
        } catch (const amux::lock_cancelled_error&) {
            what = outcome::cancelled;
        } catch (const amux::lock_closed_error&) {
            what = outcome::closed;
        } catch (const amux::lock_queue_full_error&) {
            what = outcome::full;
        } catch (const amux::reentrant_lock_error&) {
            what = outcome::reentrant;
        } catch (const std::logic_error&) {
            what = outcome::no_scheduler;
        }
        r.answered(s, what, mine);
        if (s.held == &mine) {
            co_await gate{s};
            if (s.asked.variant % 2 == 0)
                mine.unlock(); // else at the end of the scope
        }
    }

    amux::manual_event_loop* loop_of(int number)
    {
        return number < 0 ? nullptr : loops_[static_cast<std::size_t>(number)].get();
    }

    template <class Operation>
    void start_hooked(slot& s, Operation operation)
    {
        s.hooked.emplace(await_lock<support::hooked_coroutine>(*this, s, std::move(operation)));
        s.hooked->start(loop_of(s.asked.loop), context_of(s));
    }

    template <bool Timed, class Operation>
    void start(slot& s, Operation operation)
    {
        if constexpr (Forms == forms::all) {
            if (s.asked.resume_on != not_said) {
                auto placed = std::move(operation).resume_on(loop_of(s.asked.resume_on));
                if (s.asked.coroutine == coroutine::hooked)
                    return start_hooked(s, std::move(placed));
                return start_plain(s, std::move(placed));
            }
            if (s.asked.coroutine == coroutine::task) {
                s.hooked.emplace(
                    await_task(await_lock<amux::task<>>(*this, s, std::move(operation))));
                return s.hooked->start(loop_of(s.asked.loop), context_of(s));
            }
            if (s.asked.coroutine == coroutine::spawned) {
                return amux::spawn(*loop_of(s.asked.loop),
                                   await_lock<amux::task<>>(*this, s, std::move(operation)));
            }
        }
        if constexpr (!Timed) {
            if (s.asked.coroutine == coroutine::plain)
                return start_plain(s, std::move(operation));
        }
        start_hooked(s, std::move(operation));
    }

    template <class Operation>
    void start_plain(slot& s, Operation operation)
    {
        s.plain.emplace(await_lock<plain_coroutine>(*this, s, std::move(operation)));
        s.plain->start();
    }

    const amux::context* context_of(const slot& s) const
    {
        const amux::context* const all[contexts] = {&root_, &other_root_, &child_, &grandchild_};
        return s.asked.context < 0 ? nullptr : all[s.asked.context];
    }

    static std::chrono::milliseconds time_of(const slot& s)
    {
        return s.asked.time == for_ever ? std::chrono::milliseconds::max()
                                        : std::chrono::milliseconds{s.asked.time};
    }
    static amux::clock::time_point moment_of(const slot& s)
    {
        return s.asked.time == for_ever ? amux::clock::time_point::max()
                                        : amux::clock::time_point{time_of(s)};
    }

    void ask(slot& s)
    {
        switch (s.asked.scope) {
            case scope::whole:
                return ask_whole(s);
            case scope::key:
                return ask_key(s);
            case scope::range:
                return ask_range(s);
            case scope::listed:
                return ask_listed(s);
        }
    }

    void ask_whole(slot& s)
    {
        const bool x = s.asked.mode == lock_mode::exclusive;
        const std::stop_token t = s.source.get_token();
        Mux& m = *mux_;
        if constexpr (Forms == forms::all) {
            const auto time = time_of(s);
            const auto moment = moment_of(s);
            if (s.asked.limit == limit::time) {
                return start<true>(s, x ? m.try_lock_for(time, t) : m.try_lock_shared_for(time, t));
            } else if (s.asked.limit == limit::moment) {
                return start<true>(
                    s, x ? m.try_lock_until(moment, t) : m.try_lock_shared_until(moment, t));
            }
        }
        start<false>(s, x ? m.lock(t) : m.lock_shared(t));
    }

    void ask_key(slot& s)
    {
        const bool x = s.asked.mode == lock_mode::exclusive;
        const std::stop_token t = s.source.get_token();
        Mux& m = *mux_;
        const key& k = key_at(s.asked, 0);
        const auto time = time_of(s);
        const auto moment = moment_of(s);
        if (s.asked.limit == limit::time) {
            return start<true>(
                s, x ? m.try_lock_for(key{k}, time, t) : m.try_lock_shared_for(key{k}, time, t));
        }
        if constexpr (Forms == forms::all && std::is_same_v<key, std::string>) {
            const std::string_view view{k};
            if (s.asked.limit == limit::forever && s.asked.variant == 3)
                return start<false>(s, x ? m.lock(view, t) : m.lock_shared(view, t));
        }
        if constexpr (Forms == forms::all) {
            if (s.asked.limit == limit::moment) {
                return start<true>(
                    s, x ? m.try_lock_until(k, moment, t) : m.try_lock_shared_until(k, moment, t));
            }
            if (s.asked.variant % 2 == 1)
                return start<false>(s, x ? m.lock(key{k}, t) : m.lock_shared(key{k}, t));
        }
        start<false>(s, x ? m.lock(k, t) : m.lock_shared(k, t));
    }

    void ask_range(slot& s)
    {
        const bool x = s.asked.mode == lock_mode::exclusive;
        const std::stop_token t = s.source.get_token();
        Mux& m = *mux_;
        auto& ks = s.keys;
        if constexpr (Forms == forms::all) {
            const auto time = time_of(s);
            const auto moment = moment_of(s);
            if (s.asked.limit == limit::time) {
                return start<true>(s, x ? m.try_lock_all_for(ks, time, t)
                                        : m.try_lock_all_shared_for(ks, time, t));
            }
            if (s.asked.limit == limit::moment) {
                return start<true>(s, x ? m.try_lock_all_until(ks, moment, t)
                                        : m.try_lock_all_shared_until(ks, moment, t));
            }
            if (s.asked.variant % 2 == 1) {
                return start<false>(
                    s, x ? m.lock_all(std::move(ks), t) : m.lock_all_shared(std::move(ks), t));
            }
        }
        start<false>(s, x ? m.lock_all(ks, t) : m.lock_all_shared(ks, t));
    }

    void ask_listed(slot& s)
    {
        const bool x = s.asked.mode == lock_mode::exclusive;
        const std::stop_token t = s.source.get_token();
        Mux& m = *mux_;
        const key& k = key_at(s.asked, 0);
        const key& l = key_at(s.asked, 1);
        if constexpr (Forms == forms::all) {
            if (s.asked.key_count == 3) {
                const key& n = key_at(s.asked, 2);
                return start<false>(
                    s, x ? m.lock_all(k, key{l}, n, t) : m.lock_all_shared(k, key{l}, n, t));
            }
        }
        start<false>(s, x ? m.lock_all(k, l, t) : m.lock_all_shared(k, l, t));
    }

    void attempt(slot& s)
    {
        const bool x = s.asked.mode == lock_mode::exclusive;
        s.asked.in_frame = false;
        guard g;
        try {
            switch (s.asked.scope) {
                case scope::whole:
                    g = x ? mux_->try_lock() : mux_->try_lock_shared();
                    break;
                case scope::key: {
                    const key& k = key_at(s.asked, 0);
                    g = x ? mux_->try_lock(key{k}) : mux_->try_lock_shared(k);
                    break;
                }
                case scope::range:
                    g = x ? mux_->try_lock_all(s.keys) : mux_->try_lock_all_shared(s.keys);
                    break;
                case scope::listed: {
                    const key& k = key_at(s.asked, 0);
                    const key& l = key_at(s.asked, 1);
                    if (s.asked.key_count == 2) {
                        g = x ? mux_->try_lock_all(k, l) : mux_->try_lock_all_shared(k, l);
                    } else {
                        const key& n = key_at(s.asked, 2);
                        g = x ? mux_->try_lock_all(k, l, key{n})
                              : mux_->try_lock_all_shared(k, l, key{n});
                    }
                    break;
                }
            }
        } catch (const amux::lock_closed_error&) {
            return answered(s, outcome::closed, g);
        }
        answered(s, g ? outcome::granted : outcome::empty, g);
    }

    bool idle_ = false; // coroutines that resume do nothing then
    int mutexes_before_;
    Mux* mux_;
    std::array<std::unique_ptr<amux::manual_event_loop>, loops> loops_;
    amux::context root_;
    amux::context other_root_;
    amux::context child_{&root_};
    amux::context grandchild_{&child_};
    std::vector<key> keys_;
    std::vector<std::unique_ptr<slot>> slots_; // by id
    std::vector<event> log_;
    std::vector<seen> observed_;
};

} // namespace walks

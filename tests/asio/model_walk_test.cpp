// SPDX-License-Identifier: BSL-1.0
// Without this file a mistake of the operations of Asio that needs many steps, or two features together, is not found.
#include "asio/support/library.hpp"
#include "asio/support/walk.hpp"
#include "support/program_text.hpp"
#include "support/scale.hpp"

#include <amux/amux.hpp>

#include <catch2/catch_test_macros.hpp>

#include <bit>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <exception>
#include <initializer_list>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using namespace walks;
using int_mux = amux::asyncmux<int>;
using int_guard = int_mux::guard;

namespace {

/// The same as `asio_model`, done by a real mux and operations of Asio.
class asio_reality {
public:
    asio_reality(const asio_model& m, std::size_t max_waiters)
        : model_{m}, mux_{{.max_waiters = max_waiters}}
    {
        for (auto& c : contexts_)
            c.emplace();
    }

    void apply(const asio_step& s)
    {
        auto& context = contexts_[static_cast<std::size_t>(s.id % contexts_of_asio)];
        switch (s.what) {
            case asio_verb::ask:
                ask(s);
                break;
            case asio_verb::attempt:
                attempt(s);
                break;
            case asio_verb::run:
                support::run_ready(*context);
                break;
            case asio_verb::drop:
                context.emplace();
                break;
            default:
                act(s.what, s.id);
        }
    }

    int_mux& mux() { return mux_; }
    const std::vector<event>& log() const { return log_; }
    bool listens(int id) { return at(id).signal.slot().has_handler(); }

private:
    struct request {
        asio::cancellation_signal signal;
        std::stop_source source;
        int_guard guard;
    };

    /// One type of handler for all, with a slot or without.
    struct handler {
        using executor_type = asio::any_io_executor;
        using cancellation_slot_type = asio::cancellation_slot;

        executor_type get_executor() const noexcept { return executor; }
        cancellation_slot_type get_cancellation_slot() const noexcept { return slot; }
        void operator()(const std::exception_ptr& e, int_guard g)
        {
            self->told(id, e, std::move(g));
        }

        asio_reality* self;
        int id;
        executor_type executor;
        cancellation_slot_type slot;
    };

    request& at(int id) { return requests_[static_cast<std::size_t>(id)]; }

    void ask(const asio_step& s)
    {
        request& r = requests_.emplace_back();
        if (s.is_stopped)
            r.source.request_stop();
        const std::stop_token stop = s.has_token ? r.source.get_token() : std::stop_token{};
        handler h{this, s.id, contexts_[static_cast<std::size_t>(s.context)]->get_executor(),
                  s.has_slot ? r.signal.slot() : asio::cancellation_slot{}};
        const bool x = s.lock.mode == lock_mode::exclusive;
        const auto time = s.limit == asio_limit::none_at_all ? 0ms : 1h;
        const bool timed = s.limit != asio_limit::forever;
        if (s.lock.whole) {
            if (timed)
                (x ? mux_.try_lock_for(time, stop) : mux_.try_lock_shared_for(time, stop))(h);
            else
                (x ? mux_.lock(stop) : mux_.lock_shared(stop))(h);
        } else if (std::popcount(s.lock.keys) == 1) {
            const int k = std::countr_zero(s.lock.keys);
            if (timed)
                (x ? mux_.try_lock_for(k, time, stop) : mux_.try_lock_shared_for(k, time, stop))(h);
            else
                (x ? mux_.lock(k, stop) : mux_.lock_shared(k, stop))(h);
        } else {
            std::vector<int> keys = keys_of(s.lock);
            if (timed)
                (x ? mux_.try_lock_all_for(std::move(keys), time, stop)
                   : mux_.try_lock_all_shared_for(std::move(keys), time, stop))(h);
            else
                (x ? mux_.lock_all(std::move(keys), stop)
                   : mux_.lock_all_shared(std::move(keys), stop))(h);
        }
    }

    static std::vector<int> keys_of(const wanted& w)
    {
        std::vector<int> keys;
        for (int k = 0; k != asio_keys; ++k) {
            if (w.keys >> k & 1)
                keys.push_back(k);
        }
        return keys;
    }

    void attempt(const asio_step& s)
    {
        request& r = requests_.emplace_back();
        const bool x = s.lock.mode == lock_mode::exclusive;
        outcome what = outcome::closed;
        try {
            if (s.lock.whole)
                r.guard = x ? mux_.try_lock() : mux_.try_lock_shared();
            else
                r.guard = x ? mux_.try_lock_all(keys_of(s.lock))
                            : mux_.try_lock_all_shared(keys_of(s.lock));
            what = r.guard ? outcome::granted : outcome::empty;
        } catch (const amux::lock_closed_error&) {
        }
        log_.push_back({s.id, what});
    }

    void told(int id, const std::exception_ptr& error, int_guard g)
    {
        log_.push_back({id, error ? outcome_of(error) : g ? outcome::granted : outcome::empty});
        at(id).guard = std::move(g);
        const auto& as_modelled = model_.at(id);
        if (as_modelled.then_done)
            act(as_modelled.asked.then, as_modelled.asked.then_id);
    }

    static outcome outcome_of(const std::exception_ptr& error)
    {
        try {
            std::rethrow_exception(error);
        } catch (const amux::lock_cancelled_error&) {
            return outcome::cancelled;
        } catch (const amux::lock_closed_error&) {
            return outcome::closed;
        } catch (const amux::lock_queue_full_error&) {
            return outcome::full;
        }
    }

    void act(asio_verb what, int id)
    {
        switch (what) {
            case asio_verb::release:
                at(id).guard = {};
                break;
            case asio_verb::downgrade:
                at(id).guard.downgrade();
                break;
            case asio_verb::cancel:
                at(id).signal.emit(asio::cancellation_type::terminal);
                break;
            case asio_verb::stop:
                at(id).source.request_stop();
                break;
            case asio_verb::close:
                mux_.close();
                break;
            default:
                break;
        }
    }

    const asio_model& model_;
    int_mux mux_;
    std::deque<request> requests_; // by id
    std::array<std::optional<asio::io_context>, contexts_of_asio> contexts_;
    std::vector<event> log_;
};

counts counts_in(const amux::mux_snapshot<int>& shot, int key)
{
    const auto counted = [](const amux::lock_counts& c) {
        return counts{c.mode, c.holders, c.waiters, c.granted_not_resumed};
    };
    if (key < 0)
        return counted(shot.whole);
    for (const auto& k : shot.keys) {
        if (k.key == key)
            return counted(k);
    }
    return {};
}

std::string difference(const asio_model& expected, asio_reality& found)
{
    if (found.log() != expected.log())
        return "told, in order:" + text(found.log()) + "\n     should be:" + text(expected.log());
    const auto shot = found.mux().snapshot();
    for (int k = -1; k != asio_keys; ++k) {
        const counts should = expected.count(k);
        if (const counts is = counts_in(shot, k); is != should)
            return (k < 0 ? "the whole mux: " : "k" + std::to_string(k) + ": ") + text(is) +
                   "\n     should be: " + text(should);
    }
    for (int id = 0; id != expected.requests(); ++id) {
        if (found.listens(id) != expected.listens(id))
            return std::to_string(id) +
                   (expected.listens(id) ? " does not hear its slot" : " has filled its slot");
    }
    return {};
}

class random_steps {
public:
    explicit random_steps(std::uint64_t seed) : random_{seed} {}

    std::uint64_t below(std::uint64_t n) { return random_() % n; }
    bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }

    asio_step next(const asio_model& now)
    {
        asio_step s;
        if (chance(15)) {
            s.what = chance(90) ? asio_verb::run : asio_verb::drop;
            s.id = static_cast<int>(below(contexts_of_asio));
        } else if (chance(40) || now.requests() == 0) {
            request(s, now);
        } else {
            s.what = deed();
            s.id = static_cast<int>(below(static_cast<std::uint64_t>(now.requests())));
        }
        return s;
    }

private:
    asio_verb deed()
    {
        constexpr asio_verb some[] = {asio_verb::release, asio_verb::release,   asio_verb::release,
                                      asio_verb::cancel,  asio_verb::cancel,    asio_verb::stop,
                                      asio_verb::stop,    asio_verb::downgrade, asio_verb::close};
        return some[below(chance(5) ? 9 : 8)];
    }

    void request(asio_step& s, const asio_model& now)
    {
        s.id = now.requests();
        s.what = chance(10) ? asio_verb::attempt : asio_verb::ask;
        s.lock.mode = chance(45) ? lock_mode::shared : lock_mode::exclusive;
        s.lock.whole = chance(15);
        if (!s.lock.whole)
            s.lock.keys =
                chance(30) ? static_cast<unsigned>(below(1u << asio_keys)) : 1u << below(asio_keys);
        s.context = static_cast<int>(below(contexts_of_asio));
        if (chance(25))
            s.limit = chance(70) ? asio_limit::long_one : asio_limit::none_at_all;
        s.has_slot = chance(60);
        s.has_token = chance(40);
        s.is_stopped = s.has_token && chance(5);
        if (s.what == asio_verb::attempt)
            s.has_slot = s.has_token = s.is_stopped = false;
        if (chance(40)) {
            s.then = chance(50) ? asio_verb::release : deed();
            s.then_id =
                chance(50) ? s.id : static_cast<int>(below(static_cast<std::uint64_t>(s.id) + 1));
        }
    }

    std::mt19937_64 random_;
};

std::string text(const asio_step& s)
{
    constexpr const char* names[] = {"nothing", "ask",  "attempt", "release", "downgrade",
                                     "cancel",  "stop", "close",   "run",     "drop"};
    constexpr const char* limits[] = {"", ", 1 h", ", 0 ms"};
    std::string t = names[static_cast<int>(s.what)] + (' ' + std::to_string(s.id));
    if (s.what != asio_verb::ask && s.what != asio_verb::attempt)
        return t + '\n';
    t += ' ' + text(s.lock) + limits[static_cast<int>(s.limit)] + ", context " +
         std::to_string(s.context) + (s.has_slot ? ", slot" : "") + (s.has_token ? ", token" : "") +
         (s.is_stopped ? " stopped" : "");
    if (s.then != asio_verb::nothing)
        t += std::string{", then "} + names[static_cast<int>(s.then)] + ' ' +
             std::to_string(s.then_id);
    return t + '\n';
}

/// What went wrong, if anything did.
std::string walk(std::uint64_t seed, int length)
{
    random_steps random{seed};
    const std::size_t max_waiters = random.chance(25) ? random.below(5) : 100;
    asio_model expected{max_waiters};
    asio_reality found{expected, max_waiters};
    std::string done;
    for (int n = 0; n != length; ++n) {
        const asio_step s = random.next(expected);
        if (!expected.applies(s.what, s.id))
            continue;
        done += text(s);
        expected.apply(s);
        found.apply(s);
        if (const std::string trouble = difference(expected, found); !trouble.empty())
            return done + trouble;
    }
    return {};
}

} // namespace

TEST_CASE("asio random: every step of a long program does what the rule and a queue say", "[asio]")
{
    const char* const given = std::getenv("AMUX_SEED");
    const std::uint64_t first = given ? std::strtoull(given, nullptr, 10) : 1;
    const auto count = static_cast<std::uint64_t>(support::scaled(3'000));
    for (std::uint64_t seed = first; seed != first + count; ++seed) {
        const std::string trouble = walk(seed, 60);
        if (!trouble.empty())
            FAIL("AMUX_SEED=" << seed << '\n' << trouble);
    }
    SUCCEED();
}

// SPDX-License-Identifier: BSL-1.0
// Without this file the model of the locks is never compared with the locks.
#pragma once

#include "support/growing_policy.hpp"
#include "support/model.hpp"
#include "support/program_text.hpp"
#include "support/reality.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace walks {

template <class Mux>
counts counts_in(const amux::mux_snapshot<typename Mux::key_type>& shot, int key)
{
    const auto counted = [](const amux::lock_counts& c) {
        return counts{c.mode, c.holders, c.waiters, c.granted_not_resumed};
    };
    if (key < 0)
        return counted(shot.whole);
    for (const auto& k : shot.keys) {
        if (number_of_key(k.key) == key)
            return counted(k);
    }
    return {};
}

/// What differs between the two now; empty when nothing does.
template <class Mux, forms Forms>
std::string difference(const model& expected, reality<Mux, Forms>& found)
{
    if (found.log() != expected.log()) {
        return "resumed, in order:" + text(found.log()) +
               "\n        should be:" + text(expected.log());
    }
    if constexpr (std::is_same_v<typename Mux::threading::observer, recording_observer>) {
        if (found.observed() != expected.observed()) {
            return "observed:" + text(found.observed()) +
                   "\n        should be:" + text(expected.observed());
        }
    }
    if (noticed::under_lock)
        return "the user's code has run under an internal lock";
    const auto shot = found.mux().snapshot();
    std::size_t tracked = 0;
    for (int k = -1; k < most_keys; ++k) {
        const counts should = expected.count(k);
        const counts is = counts_in<Mux>(shot, k);
        if (is != should) {
            return (k < 0 ? "the whole mux: " : "k" + std::to_string(k) + ": ") + text(is) +
                   "\n        should be: " + text(should);
        }
        tracked += k >= 0 && should.holders + should.waiters != 0 ? 1 : 0;
    }
    if (shot.keys.size() != tracked || found.mux().tracked_keys() != tracked) {
        return "keys tracked: " + std::to_string(found.mux().tracked_keys()) +
               ", in the snapshot " + std::to_string(shot.keys.size()) +
               ", should be: " + std::to_string(tracked);
    }
    if (shot.closed != expected.closed())
        return "closed or not: the snapshot is wrong";
    return {};
}

/// Asks, without waiting, for each lock that there is on the whole mux and the first `keys` keys.
template <class Mux, forms Forms>
std::string difference_by_trying(const model& expected, reality<Mux, Forms>& found, int keys)
{
    std::vector<seen>* const observed = std::exchange(noticed::observed, nullptr);
    std::string trouble;
    for (const lock_mode mode : {lock_mode::shared, lock_mode::exclusive}) {
        for (int k = -1; k < keys; ++k) {
            const wanted w{mode, k < 0, k < 0 ? 0u : 1u << k};
            bool is = false;
            try {
                is = found.try_lock(w).owns_lock();
            } catch (const amux::lock_closed_error&) {
                is = false;
            }
            if (is != expected.admits(w))
                trouble = "try_lock of " + text(w) + (is ? " succeeds" : " fails");
        }
    }
    noticed::observed = observed;
    return trouble;
}

/// The steps after which nothing is held or waited for: each a reason to resume somebody.
inline std::optional<step> next_to_finish(const model& m)
{
    step s;
    s.what = verb::run;
    if (!m.loops_idle())
        return s;
    s.what = verb::release;
    for (s.id = 0; s.id < m.requests(); ++s.id) {
        if (m.applies(verb::release, s.id))
            return s;
    }
    return std::nullopt;
}

struct checks {
    bool after_each_step = true; // else after the last
    int tried_keys = 0; // try each lock then
    bool finish = true; // release until nobody waits, else destroy everything as it stands
};

/// Runs it. What went wrong, if anything did.
template <class Mux, forms Forms>
std::string run(const program& p, const checks& c)
{
    model expected{p.prevent_reentrancy, p.max_waiters};
    reality<Mux, Forms> found{p.prevent_reentrancy, p.max_waiters};
    const auto compared = [&](bool also_try) {
        std::string trouble = difference(expected, found);
        if (trouble.empty() && also_try)
            trouble = difference_by_trying(expected, found, c.tried_keys);
        if (trouble.empty() && also_try)
            trouble = difference(expected, found);
        return trouble;
    };
    for (std::size_t i = 0; i < p.steps.size(); ++i) {
        const step& s = p.steps[i];
        if (!expected.applies(s.what, s.id))
            continue;
        expected.apply(s);
        found.apply(s);
        const bool last = i + 1 == p.steps.size();
        if (!c.after_each_step && !last)
            continue;
        if (std::string trouble = compared(last && c.tried_keys != 0); !trouble.empty())
            return "after step " + std::to_string(i + 1) + ", " + trouble;
    }
    if (!c.finish)
        return found.is_clean() ? "" : "something is left after all was destroyed";
    while (const auto s = next_to_finish(expected)) {
        for (int l = 0; l < (s->what == verb::run ? loops : 1); ++l) {
            step each = *s;
            if (s->what == verb::run)
                each.id = l;
            expected.apply(each);
            found.apply(each);
        }
        if (!c.after_each_step)
            continue;
        if (std::string trouble = difference(expected, found); !trouble.empty())
            return "while all is released, " + trouble;
    }
    if (std::string trouble = difference(expected, found); !trouble.empty())
        return "when all is released, " + trouble;
    return found.is_clean() ? "" : "something is left after all was released";
}

/// The program without the steps that its failure does not need.
template <class Fails>
program shrunk(program p, Fails fails)
{
    for (std::size_t size = std::max<std::size_t>(p.steps.size() / 2, 1);;) {
        bool smaller = false;
        for (std::size_t from = 0; from < p.steps.size();) {
            program less = p;
            const auto begin = less.steps.begin() + static_cast<std::ptrdiff_t>(from);
            less.steps.erase(
                begin, begin + static_cast<std::ptrdiff_t>(std::min(size, p.steps.size() - from)));
            if (fails(less)) {
                p = std::move(less);
                smaller = true;
            } else {
                from += size;
            }
        }
        if (size == 1 && !smaller)
            return p;
        size = std::max<std::size_t>(size / 2, 1);
    }
}

template <class Mux, forms Forms>
std::string report(const program& p, const checks& c)
{
    return text(p) + run<Mux, Forms>(p, c);
}

} // namespace walks

// SPDX-License-Identifier: BSL-1.0
// Without this file a program that fails cannot be read.
#pragma once

#include "support/program.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace walks {

inline std::string text(const wanted& w)
{
    std::string t = w.mode == lock_mode::exclusive ? "X(" : "S(";
    if (w.whole)
        t += "whole";
    for (int k = 0; k < most_keys; ++k) {
        if (w.keys >> k & 1)
            t += (t.back() == '(' ? "k" : ",k") + std::to_string(k);
    }
    return t + ")";
}

inline const char* text(outcome o)
{
    constexpr const char* names[] = {"granted", "empty",     "cancelled",   "closed",
                                     "full",    "reentrant", "no_scheduler"};
    return names[static_cast<int>(o)];
}

inline std::string text(const std::vector<event>& log)
{
    std::string t;
    for (const event& e : log)
        t += " " + std::to_string(e.id) + " " + text(e.what) + ",";
    return t;
}

inline std::string text(const std::vector<seen>& observed)
{
    std::string t;
    for (const seen& s : observed) {
        t += s.what == 'w' ? " wait " : s.what == 'g' ? " grant " : " release ";
        t += s.mode == lock_mode::exclusive ? "X(" : "S(";
        t += s.whole ? "whole" : s.key >= 0 ? "k" + std::to_string(s.key) : std::to_string(s.keys);
        t += "),";
    }
    return t;
}

inline std::string text(const counts& c)
{
    return std::string{c.mode ? to_string(*c.mode) : "not held"} + ", " +
           std::to_string(c.holders) + " holders, " + std::to_string(c.waiters) + " waiters, " +
           std::to_string(c.granted_not_resumed) + " not resumed";
}

inline const char* text(verb v)
{
    constexpr const char* names[] = {"nothing",   "ask",  "try",   "release", "stop",    "destroy",
                                     "downgrade", "move", "close", "run",     "advance", "collide"};
    return names[static_cast<int>(v)];
}

inline std::string text(const step& s)
{
    std::string t = text(s.what);
    if (s.what == verb::close || s.what == verb::collide)
        return t;
    t += " " + std::to_string(s.id);
    if (s.what != verb::ask && s.what != verb::attempt)
        return t;
    t += ": " + std::string{s.mode == lock_mode::exclusive ? "X(" : "S("};
    if (s.scope == scope::whole)
        t += "whole";
    for (std::size_t i = 0; i < s.key_count; ++i)
        t += (i == 0 ? "k" : ",k") + std::to_string(s.keys[i]);
    t += s.scope == scope::range ? "; range)" : ")";
    if (s.what == verb::attempt)
        return t;
    if (s.timed()) {
        t += s.limit == limit::time ? " for " : " until ";
        t += s.time == for_ever ? "ever" : std::to_string(s.time) + " ms";
    }
    if (s.token != token::none)
        t += s.token == token::live ? ", with a stop token" : ", stopped beforehand";
    constexpr const char* kinds[] = {", plain", ", hooked", ", task", ", spawned"};
    t += kinds[static_cast<int>(s.coroutine)];
    if (s.loop >= 0)
        t += " on loop " + std::to_string(s.loop);
    if (s.resume_on >= 0)
        t += ", resume_on loop " + std::to_string(s.resume_on);
    if (s.resume_on == nowhere)
        t += ", resume_on null";
    if (s.context >= 0)
        t += ", context " + std::to_string(s.context);
    if (s.in_frame)
        t += ", guard in the frame";
    if (s.then != verb::nothing)
        t += std::string{", then "} + text(s.then) + " " + std::to_string(s.then_id);
    if (s.variant != 0)
        t += ", variant " + std::to_string(s.variant);
    return t;
}

inline std::string text(const program& p)
{
    std::string t;
    if (p.prevent_reentrancy)
        t += "    prevent_reentrancy\n";
    if (p.max_waiters != static_cast<std::size_t>(-1))
        t += "    max_waiters " + std::to_string(p.max_waiters) + "\n";
    int n = 0;
    for (const step& s : p.steps)
        t += "    " + std::to_string(++n) + ". " + text(s) + "\n";
    return t;
}

} // namespace walks

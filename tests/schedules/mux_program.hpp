// SPDX-License-Identifier: BSL-1.0
// Without this file there are no programs of two and three threads over a mux.
#pragma once

#include "schedules/explorer.hpp"
#include "schedules/history.hpp"
#include "support/program.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace schedules {

/// What a lock is on: a key, the whole mux, or both keys at once; exclusive or shared.
enum class form : std::uint8_t { x0, s0, x1, s1, xw, sw, xa, sa };
walks::wanted wants(form f) noexcept;

enum class verb : std::uint8_t {
    ask, // a coroutine awaits a lock
    ask_timed, // for a time that is over when the loop is next run
    attempt, // try_lock
    release,
    downgrade,
    stop,
    destroy, // the frame, if it waits, or was told and has not run
    close,
    run, // the loop
    look, // snapshot() and tracked_keys()
};

struct step {
    verb what;
    int id = 0; // the request
    form how = form::x0; // of a new one
    bool operator==(const step&) const = default;
};

enum class place : std::uint8_t { thread, loop };

/// The programs that are run. The first request is granted, and the next ones wait, before the threads begin.
struct mux_text {
    schedules::place place = schedules::place::thread;
    int shards = 1;
    bool limited = false; // one request may wait at a time
    // Who waits before the threads begin keeps its lock to the end; else it releases it at once.
    bool keeps = false;
    // A coroutine that is told, and sees that nobody uses the mux any more, destroys it.
    bool destroys = false;
    std::vector<step> before;
    std::vector<std::vector<step>> threads;
};

std::string to_string(const mux_text& t);

/// How often something was there to go wrong.
struct coverage {
    static inline std::uint64_t divided = 0; // muxes, into shards
    static inline std::uint64_t destroyed =
        0; // muxes, while another thread was inside one of its calls
    static inline std::uint64_t taken_back =
        0; // frames that were destroyed between the answer and their resumption
};

/// The program that a text describes, over a real `asyncmux`. It refers to the text.
std::unique_ptr<program> make_mux_program(const mux_text& t);

} // namespace schedules

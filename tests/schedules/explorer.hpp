// SPDX-License-Identifier: BSL-1.0
// Without this file no interleaving is tried but those that a machine happens to run.
#pragma once

#include "schedules/fibre.hpp"

#include <cstdint>
#include <string>

namespace schedules {

/// A small program of two or three threads, to be run in every order in which their steps can follow each other.
///
/// All of it runs on one thread of the machine; a "thread" is a fibre that goes on until it comes to a `point`, where
/// another may go on instead, or must wait. A program behaves the same when it is run in the same order.
class program {
public:
    virtual ~program() = default;
    virtual int threads() const = 0;
    /// Makes what the threads use: before each run, on the thread that explores.
    virtual void begin() = 0;
    virtual void run(int thread) = 0;
    /// Ends what is left and checks it: after each run, on the thread that explores.
    virtual void end() = 0;
    virtual std::string text() const = 0;
};

struct counts {
    std::uint64_t programs = 0;
    std::uint64_t schedules = 0;
    std::uint64_t points = 0;
};

/// Runs programs in every schedule with at most so many preemptions. A switch away from a thread that could go on is a
/// preemption; one away from a thread that waits, or has ended, is none.
///
/// The first failure of a check is printed with its program, its schedule, and how to run that one again; it ends the
/// process. Environment:
///
///   AMUX_SCHEDULE=NUMBER:CHOICES   runs that schedule alone, and tells each step
///   AMUX_SCHEDULES=0.01            runs the first program and that part of the others, chosen by a seed that is printed;
///                                  AMUX_SEED sets it
///   AMUX_PREEMPTIONS=3             instead of what the constructor was given
class explorer {
public:
    explicit explorer(int preemptions = 2);
    explorer(const explorer&) = delete;
    explorer& operator=(const explorer&) = delete;
    /// The next program.
    void run(program& p);
    const counts& counted() const noexcept { return counts_; }
    /// Every program is run, not a part of them, nor one schedule.
    bool complete() const noexcept;
    /// Prints what was done.
    ~explorer();

private:
    int preemptions_;
    counts counts_;
    std::uint64_t number_ = 0; // of the program
    std::uint64_t seed_;
    double fraction_;
};

// What runs on a fibre calls the following; elsewhere they do nothing.

/// Does a fibre run, and not the thread that explores?
inline bool on_fibre() noexcept
{
    return fibres::running() != fibres::main;
}
/// Which; -1 for the thread that explores.
inline int thread() noexcept
{
    return on_fibre() ? fibres::running() : -1;
}

/// Another thread may go on here.
void point(const char* what) noexcept;

/// Another thread must go on here, if there is one: this one can do nothing but look again.
void yield() noexcept;

/// Waits for `wake_all(on)` or `wake_one(on)`.
void block(const void* on, const char* what) noexcept;
/// The same, for a time in nanoseconds of the schedule's clock. Returns: false when the time was over. That may be so
/// at any moment, and sets the clock.
bool block_until(const void* on, std::int64_t due, const char* what) noexcept;
void wake_all(const void* on) noexcept;
void wake_one(const void* on) noexcept;

/// Is a program run, by whatever thread?
bool exploring() noexcept;

/// The clock of the schedule, in nanoseconds; it moves only when somebody's time is over, or is moved.
std::int64_t now() noexcept;
void advance_to(std::int64_t time) noexcept;

/// Ends the schedule with a failure. From anywhere.
[[noreturn]] void fail(const std::string& what) noexcept;
inline void require(bool good, const char* what) noexcept
{
    if (!good) [[unlikely]]
        fail(what);
}

} // namespace schedules

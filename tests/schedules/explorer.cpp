// SPDX-License-Identifier: BSL-1.0
// Without this file nobody decides who goes on.
#include "schedules/explorer.hpp"

#include <array>
#include <bit>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace schedules {
namespace {

using mask = unsigned;

constexpr mask bit(int thread) noexcept
{
    return 1u << thread;
}

/// One place where the schedule could go on in several ways.
struct choice {
    std::uint8_t taken;
    std::uint8_t options;
};

struct wait {
    const void* on = nullptr;
    const char* what = "";
    std::int64_t due = 0;
};

/// The schedule that is running.
struct {
    program* what = nullptr;
    std::uint64_t number = 0;
    std::vector<choice> path; // the first `at` have been gone
    std::size_t at = 0;
    int threads = 0;
    int preemptions_left = 0;
    mask ready = 0; // could go on
    mask timed = 0; // wait, and their time may be over at any moment
    mask ended = 0;
    std::array<wait, fibres::most> waits;
    std::int64_t now = 0;
    std::uint64_t points = 0;
    bool exploring = false;
    bool told = false; // each step is printed
    bool failing = false;
} run;

// A program that goes on for so long goes on for ever.
constexpr std::uint64_t most_points = 20'000;

void say(const char* what)
{
    if (run.told) [[unlikely]]
        std::fprintf(stderr, "    thread %d: %s\n", thread(), what);
}

std::string path_text()
{
    std::string text = std::to_string(run.number) + ":";
    for (std::size_t i = 0; i < run.at; ++i)
        text += static_cast<char>('0' + run.path[i].taken);
    while (text.back() == '0')
        text.pop_back(); // what follows is 0 anyhow
    return text;
}

int choose(int options) noexcept
{
    if (run.at == run.path.size())
        run.path.push_back({0, static_cast<std::uint8_t>(options)});
    choice& c = run.path[run.at++];
    if (c.options == 0)
        c.options = static_cast<std::uint8_t>(options); // read from a text
    if (c.options != options || c.taken >= options) [[unlikely]]
        fail("the program does not behave the same when it is run in the same order");
    return c.taken;
}

/// The `index`th thread of those in `m`.
int pick(mask m, int index) noexcept
{
    while (index-- > 0)
        m &= m - 1;
    return std::countr_zero(m);
}

void go_to(int next) noexcept
{
    run.timed &= ~bit(next);
    run.ready |= bit(next); // one whose time is over, too
    if (next != fibres::running())
        fibres::switch_to(next);
}

/// This thread cannot go on: another one must.
void leave() noexcept
{
    const mask others = run.ready | run.timed;
    if (others == 0) {
        if (std::popcount(run.ended) == run.threads)
            return fibres::switch_to(fibres::main);
        std::string who;
        for (int t = 0; t < run.threads; ++t) {
            if (!(run.ended & bit(t)))
                who += "\n    thread " + std::to_string(t) +
                       " waits: " + run.waits[static_cast<std::size_t>(t)].what;
        }
        fail("nobody can go on" + who);
    }
    const int options = std::popcount(others);
    go_to(pick(others, options == 1 ? 0 : choose(options)));
}

void fibre_body(int number)
{
    for (;;) {
        run.what->run(number);
        say("has ended");
        run.ready &= ~bit(number);
        run.ended |= bit(number);
        leave();
    }
}

[[noreturn]] void died(int signal)
{
    fail(std::string{"signal "} + strsignal(signal));
}

constexpr std::array deadly = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
std::array<struct sigaction, deadly.size()> handlers_before;
std::terminate_handler terminate_before;

void watch_for_death()
{
    static std::array<std::byte, 65536> stack;
    stack_t on{};
    on.ss_sp = stack.data();
    on.ss_size = stack.size();
    sigaltstack(&on, nullptr);
    struct sigaction handler{};
    handler.sa_handler = &died;
    handler.sa_flags = SA_ONSTACK | SA_NODEFER;
    for (std::size_t i = 0; i < deadly.size(); ++i)
        sigaction(deadly[i], &handler, &handlers_before[i]);
    terminate_before = std::set_terminate([] { fail("std::terminate was called"); });
}

void stop_watching()
{
    std::set_terminate(terminate_before);
    for (std::size_t i = 0; i < deadly.size(); ++i)
        sigaction(deadly[i], &handlers_before[i], nullptr);
}

void run_once(int preemptions)
{
    run.at = 0;
    run.preemptions_left = preemptions;
    run.threads = run.what->threads();
    run.ready = bit(run.threads) - 1;
    run.timed = run.ended = 0;
    run.now = 0;
    run.points = 0;
    run.exploring = true;
    run.what->begin();
    fibres::switch_to(pick(run.ready, choose(run.threads)));
    run.what->end();
    run.exploring = false;
}

bool next_schedule() noexcept
{
    while (!run.path.empty()) {
        if (choice& last = run.path.back(); last.taken + 1 < last.options) {
            ++last.taken;
            return true;
        }
        run.path.pop_back();
    }
    return false;
}

double number_from(const char* variable, double otherwise)
{
    const char* const text = std::getenv(variable);
    return text ? std::strtod(text, nullptr) : otherwise;
}

/// Sebastiano Vigna's variant of SplitMix.
std::uint64_t mixed(std::uint64_t z) noexcept
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

} // namespace

explorer::explorer(int preemptions)
    : preemptions_{static_cast<int>(number_from("AMUX_PREEMPTIONS", preemptions))},
      seed_{static_cast<std::uint64_t>(number_from("AMUX_SEED", std::random_device{}()))},
      fraction_{number_from("AMUX_SCHEDULES", 1)}
{
    // Without it libstdc++ knows that there is one thread, and leaves out what is between threads.
    std::thread{[] {}}.join();
    fibres::start(&fibre_body);
    watch_for_death();
}

explorer::~explorer()
{
    stop_watching();
    std::fprintf(stderr, "schedules: %llu programs, %llu schedules, %llu switch points",
                 static_cast<unsigned long long>(counts_.programs),
                 static_cast<unsigned long long>(counts_.schedules),
                 static_cast<unsigned long long>(counts_.points));
    if (fraction_ < 1)
        std::fprintf(stderr, " (AMUX_SEED=%llu)", static_cast<unsigned long long>(seed_));
    std::fprintf(stderr, "\n");
}

void explorer::run(program& p)
{
    const std::uint64_t number = number_++;
    schedules::run.what = &p;
    schedules::run.number = number;
    schedules::run.path.clear();
    if (const char* const replay = std::getenv("AMUX_SCHEDULE")) {
        char* end = nullptr;
        if (std::strtoull(replay, &end, 10) != number)
            return;
        for (const char* c = *end == ':' ? end + 1 : end; *c; ++c)
            schedules::run.path.push_back({static_cast<std::uint8_t>(*c - '0'), 0});
        std::fprintf(stderr, "program %s\n", p.text().c_str());
        schedules::run.told = true;
        run_once(preemptions_);
        schedules::run.told = false;
        ++counts_.programs;
        ++counts_.schedules;
        return;
    }
    if (fraction_ < 1 && number != 0 &&
        static_cast<double>(mixed(seed_ + number * 0x9E3779B97F4A7C15u)) >= fraction_ * 0x1.0p64)
        return;
    ++counts_.programs;
    do {
        run_once(preemptions_);
        ++counts_.schedules;
        counts_.points += schedules::run.points;
    } while (next_schedule());
}

void point(const char* what) noexcept
{
    if (!on_fibre())
        return;
    say(what);
    if (++run.points > most_points) [[unlikely]]
        fail("the program does not end");
    const int self = fibres::running();
    const mask others = (run.ready | run.timed) & ~bit(self);
    if (run.preemptions_left == 0 || others == 0)
        return;
    const int chosen = choose(1 + std::popcount(others));
    if (chosen == 0)
        return;
    --run.preemptions_left;
    go_to(pick(others, chosen - 1));
}

void yield() noexcept
{
    if (!on_fibre())
        return;
    say("yields");
    if (++run.points > most_points) [[unlikely]]
        fail("the program does not end");
    const mask others = (run.ready | run.timed) & ~bit(fibres::running());
    if (others == 0)
        return;
    const int options = std::popcount(others);
    go_to(pick(others, options == 1 ? 0 : choose(options)));
}

void block(const void* on, const char* what) noexcept
{
    const int self = fibres::running();
    if (!on_fibre())
        fail(std::string{"the thread that explores would wait: "} + what);
    say(what);
    run.waits[static_cast<std::size_t>(self)] = {on, what, 0};
    run.ready &= ~bit(self);
    leave();
    run.waits[static_cast<std::size_t>(self)].on = nullptr;
}

bool block_until(const void* on, std::int64_t due, const char* what) noexcept
{
    const int self = fibres::running();
    if (!on_fibre())
        fail(std::string{"the thread that explores would wait: "} + what);
    say(what);
    wait& mine = run.waits[static_cast<std::size_t>(self)];
    mine = {on, what, due};
    run.ready &= ~bit(self);
    run.timed |= bit(self);
    if (++run.points > most_points) [[unlikely]]
        fail("the program does not end");
    leave();
    if (!mine.on)
        return true;
    mine.on = nullptr;
    say("its time is over");
    advance_to(due);
    return false;
}

namespace {

void wake(int t) noexcept
{
    run.waits[static_cast<std::size_t>(t)].on = nullptr;
    run.ready |= bit(t);
    run.timed &= ~bit(t);
}

mask waiting_for(const void* on) noexcept
{
    mask m = 0;
    for (int t = 0; t < run.threads; ++t) {
        if (run.waits[static_cast<std::size_t>(t)].on == on)
            m |= bit(t);
    }
    return m;
}

} // namespace

void wake_all(const void* on) noexcept
{
    for (mask m = waiting_for(on); m; m &= m - 1)
        wake(std::countr_zero(m));
}

void wake_one(const void* on) noexcept
{
    const mask m = waiting_for(on);
    if (m == 0)
        return;
    const int options = std::popcount(m);
    wake(pick(m, options == 1 ? 0 : choose(options)));
}

bool explorer::complete() const noexcept
{
    return fraction_ >= 1 && !std::getenv("AMUX_SCHEDULE");
}

bool exploring() noexcept
{
    return run.exploring;
}

std::int64_t now() noexcept
{
    return run.now;
}

void advance_to(std::int64_t time) noexcept
{
    if (time > run.now)
        run.now = time;
}

void fail(const std::string& what) noexcept
{
    if (!run.failing) {
        run.failing = true;
        std::fprintf(stderr,
                     "\nFAILED: %s\n  program %s\n  thread %d\n"
                     "  again: AMUX_SCHEDULE=%s, with the name of this test case\n",
                     what.c_str(), run.what->text().c_str(), thread(), path_text().c_str());
        std::fflush(stderr);
    }
    std::_Exit(1);
}

} // namespace schedules

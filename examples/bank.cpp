// SPDX-License-Identifier: BSL-1.0
// A bank: thousands of coroutines move money between accounts, each under the locks of its two accounts; others take
// statements and audits. First on one event loop, then on several threads that share one mux.
#include "bank/bank.hpp"
#include "bank/transfers.hpp"

#include <amux/amux.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

namespace {

using namespace std::chrono_literals;

constexpr std::size_t clients = 2000;
#if defined(BANK_TRANSFERS) // by CMakeLists.txt
constexpr const char* shipped_file = BANK_TRANSFERS;
#else
constexpr const char* shipped_file = "examples/transfers.csv";
#endif

constexpr std::string_view usage_text = R"(usage: bank [FILE]

Plays the transfers in FILE, or in the file that comes with the example: first on one event loop,
then on several threads.

Each line of FILE is `time,from,to,amount`: milliseconds since the bank opened, two names without
commas or quotes, cents. The first line may be a header. Transfers are begun in order of time, as
fast as they go. A line that is no transfer is named on the standard error stream and left out.

Exit code: 0; 1 when money is missing; 2 when there is nothing to play.
)";

struct report {
    double seconds = 0;
    std::size_t transfers = 0;
    std::size_t done = 0;
    std::size_t declined = 0;
    std::size_t cancelled = 0;
    std::size_t statements = 0;
    std::size_t audits = 0;
    std::size_t longest_queue = 0;
    double median_wait = 0; // milliseconds
    double long_wait = 0; // milliseconds; 99 in 100 are shorter
    std::int64_t missing = 0; // cents
};

/// A line on the terminal that is gone when this is.
class progress_line {
public:
    progress_line() = default;
    progress_line(const progress_line&) = delete;
    progress_line& operator=(const progress_line&) = delete;
    ~progress_line()
    {
        if (written_)
            fmt::print(stderr, "\r\x1b[K");
    }

    void write(const bank::bank& b)
    {
        fmt::print(stderr, "\r{} of {} transfers ", b.ended(), b.orders().size());
        written_ = true;
    }

private:
    bool written_ = false;
};

/// Looks at the queues now and then; on a terminal it also says how far we are, once that takes longer than a second.
/// It never ends: its loop destroys it.
amux::task<> watch(bank::bank& b, amux::event_loop& loop)
{
    const bool terminal = isatty(STDERR_FILENO) != 0;
    progress_line line;
    auto next_line = loop.now() + 1s;
    for (;;) {
        co_await loop.sleep_for(5ms);
        b.look_at_queues();
        if (terminal && loop.now() >= next_line) {
            line.write(b);
            next_line = loop.now() + 100ms;
        }
    }
}

/// Waits for all clients, then makes the last audit.
amux::task<> close_the_day(bank::bank& b, std::deque<amux::task_group>& branches,
                           amux::event_loop& loop)
{
    for (amux::task_group& branch : branches)
        co_await branch.join();
    co_await b.audit(loop);
}

report report_on(const bank::bank& b, double seconds)
{
    report r;
    r.seconds = seconds;
    r.transfers = b.orders().size();
    std::vector<double> waits;
    for (const bank::order& o : b.orders()) {
        r.done += o.result == bank::outcome::done;
        r.declined += o.result == bank::outcome::declined;
        r.cancelled += o.result == bank::outcome::cancelled;
        if (o.result != bank::outcome::cancelled)
            waits.push_back(std::chrono::duration<double, std::milli>{o.waited}.count());
    }
    std::sort(waits.begin(), waits.end());
    if (!waits.empty()) {
        r.median_wait = waits[waits.size() / 2];
        r.long_wait = waits[waits.size() * 99 / 100];
    }
    r.statements = b.statements();
    r.audits = b.audits();
    r.longest_queue = b.longest_queue();
    r.missing = b.missing();
    return r;
}

/// Plays all transfers on this thread's loop, or on `threads` loops with threads of their own.
report play(const std::vector<bank::transfer>& transfers, std::size_t threads)
{
    bank::bank b{transfers}; // before the loops: frames that they destroy may hold its locks
    amux::event_loop desk;
    std::deque<amux::loop_thread> workers(threads);
    std::vector<amux::event_loop*> loops;
    loops.reserve(threads + 1);
    for (amux::loop_thread& w : workers)
        loops.push_back(&w.loop());
    if (loops.empty())
        loops.push_back(&desk);

    const auto start = amux::clock::now();
    std::deque<amux::task_group> branches;
    for (amux::event_loop* const loop : loops)
        branches.emplace_back(*loop);
    for (std::size_t i = 0; i != clients; ++i) {
        const std::size_t n = i % loops.size();
        branches[n].spawn(b.client(*loops[n]));
    }
    desk.spawn(watch(b, desk));
    desk.block_on(close_the_day(b, branches, desk));
    const std::chrono::duration<double> took = amux::clock::now() - start;
    return report_on(b, took.count());
}

void print(const report& one, const report& many, std::size_t threads)
{
    const auto line = [](std::string_view what, auto a, auto b) {
        fmt::print("{:<28}{:>14}{:>14}\n", what, a, b);
    };
    const auto ms = [](double t) { return fmt::format("{:.2f} ms", t); };
    const auto cents = [](std::int64_t c) { return fmt::format("{} cents", c); };
    const auto rate = [](const report& r) {
        return fmt::format("{:.0f}", static_cast<double>(r.transfers) / r.seconds);
    };
    line("", "one loop", fmt::format("{} threads", threads));
    line("transfers per second", rate(one), rate(many));
    line("waited for a lock, median", ms(one.median_wait), ms(many.median_wait));
    line("waited for a lock, 99 %", ms(one.long_wait), ms(many.long_wait));
    line("longest queue seen", one.longest_queue, many.longest_queue);
    line("done", one.done, many.done);
    line("declined, no money", one.declined, many.declined);
    line("cancelled by deadline", one.cancelled, many.cancelled);
    line("statements", one.statements, many.statements);
    line("audits", one.audits, many.audits);
    line("missing", cents(one.missing), cents(many.missing));
}

int run(const std::string& path)
{
    std::ifstream in{path};
    bank::transfer_file file;
    if (in)
        file = bank::read_transfers(in);
    if (!in.is_open() || in.bad()) {
        const std::error_code why{errno, std::generic_category()};
        fmt::print(stderr, "bank: cannot read {}: {}\n", path, why.message());
        return 2;
    }
    for (const bank::bad_line& line : file.bad)
        fmt::print(stderr, "{}:{}: {}\n", path, line.number, line.reason);
    if (file.transfers.empty()) {
        fmt::print(stderr, "bank: there is no transfer in {}\n", path);
        return 2;
    }
    std::sort(file.transfers.begin(), file.transfers.end(), [](const auto& a, const auto& b) {
        return std::pair{a.time, a.line} < std::pair{b.time, b.line};
    });
    fmt::print("{} transfers, {} lines skipped, {} clients\n\n", file.transfers.size(),
               file.bad.size(), clients);
    std::fflush(stdout);

    const std::size_t threads = std::clamp(std::size_t{std::thread::hardware_concurrency()},
                                           std::size_t{2}, std::size_t{8});
    const report one = play(file.transfers, 0);
    const report many = play(file.transfers, threads);
    print(one, many, threads);
    if (one.missing == 0 && many.missing == 0)
        return 0;
    fmt::print(stderr, "bank: money is missing\n");
    return 1;
}

} // namespace

int main(int argc, char** argv)
{
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    for (const std::string& a : arguments) {
        if (a == "--help" || a == "-h") {
            fmt::print("{}", usage_text);
            return 0;
        }
    }
    if (arguments.size() > 1 || (!arguments.empty() && arguments[0].starts_with('-'))) {
        fmt::print(stderr, "{}", usage_text);
        return 2;
    }
    try {
        return run(arguments.empty() ? shipped_file : arguments[0]);
    } catch (const std::exception& e) {
        fmt::print(stderr, "bank: {}\n", e.what());
        return 2;
    }
}

// SPDX-License-Identifier: BSL-1.0
#include "harness.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

namespace bench {

namespace {

/// Sleeps as long as the process measures.
class second_thread {
public:
    second_thread() = default;
    second_thread(const second_thread&) = delete;
    second_thread& operator=(const second_thread&) = delete;
    ~second_thread()
    {
        done_ = true;
        done_.notify_one();
        thread_.join();
    }

private:
    std::atomic<bool> done_{false};
    std::thread thread_{[this] { done_.wait(false); }};
};

double quantile(std::vector<double>& values, double at)
{
    if (values.empty())
        return std::nan("");
    const auto n = static_cast<std::ptrdiff_t>(at * static_cast<double>(values.size() - 1) + 0.5);
    std::nth_element(values.begin(), values.begin() + n, values.end());
    return values[static_cast<std::size_t>(n)];
}

} // namespace

double thread_time()
{
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

void row::add(std::string who, sample s, std::string unit)
{
    contenders_.push_back({std::move(who), std::move(unit), std::move(s)});
}

void row::count(std::string who, std::string unit, double value)
{
    contenders_.push_back({std::move(who), std::move(unit), {}, {value}});
}

void row::at_most(double ratio, std::string who, std::string against)
{
    goals_.push_back({ratio, std::move(who), std::move(against)});
}

void row::run(std::string_view name, int rounds)
{
    const second_thread parked;
    const int most = rounds > 0 ? std::min(rounds, rounds_) : rounds_;
    for (int r = -1; r != most; ++r) { // one before the first, to get warm
        for (std::size_t i = 0; i != contenders_.size(); ++i) {
            // Not always after the same neighbour.
            auto& c = contenders_[(i + static_cast<std::size_t>(r + 1)) % contenders_.size()];
            const double ns = c.take ? c.take() : std::nan("");
            if (r >= 0 && std::isfinite(ns))
                c.values.push_back(ns);
        }
    }
    const int width = static_cast<int>(name.size());
    for (contender& c : contenders_) {
        if (c.values.empty())
            continue;
        std::printf(
            "{\"row\": \"%.*s\", \"contender\": \"%s\", \"unit\": \"%s\", "
            "\"median\": %.3f, \"low\": %.3f, \"high\": %.3f, \"samples\": %zu}\n",
            width, name.data(), c.name.c_str(), c.unit.c_str(), quantile(c.values, 0.5),
            quantile(c.values, 0.25), quantile(c.values, 0.75), c.values.size());
    }
    for (const goal& g : goals_)
        std::printf(
            "{\"row\": \"%.*s\", \"contender\": \"%s\", \"against\": \"%s\", "
            "\"at_most\": %.3f}\n",
            width, name.data(), g.contender.c_str(), g.against.c_str(), g.ratio);
}

void table::add(std::string name, std::function<void(row&)> fill)
{
    rows_.emplace_back(std::move(name), std::move(fill));
}

int table::main(int argc, char** argv)
{
    const std::string_view asked = argc > 1 ? argv[1] : "";
    for (const auto& [name, fill] : rows_) {
        if (asked == "--list") {
            std::printf("%s\n", name.c_str());
        } else if (asked == name) {
            row r;
            fill(r);
            r.run(name, argc > 2 ? std::atoi(argv[2]) : 0);
            return 0;
        }
    }
    if (asked == "--list")
        return 0;
    std::fprintf(stderr, "usage: %s --list | ROW [ROUNDS]\n", argv[0]);
    return 2;
}

std::string short_number(std::size_t n)
{
    if (n >= 1'000'000 && n % 1'000'000 == 0)
        return std::to_string(n / 1'000'000) + "M";
    if (n >= 1'000 && n % 1'000 == 0)
        return std::to_string(n / 1'000) + "k";
    return std::to_string(n);
}

} // namespace bench

// SPDX-License-Identifier: BSL-1.0
// Without this file a figure would be a lone time, which on a shared machine means nothing.
//
// A row has several contenders. Each is sampled in turn, many times, in one process that belongs to the row, and the
// medians are compared. The process has a second, parked thread: the C library's locks are cheaper in one that has none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace bench {

/// Processor time of this thread, in nanoseconds.
double thread_time();

/// From when it is made: processor time of this thread, divided by the number of operations.
class stopwatch {
public:
    double each(std::size_t operations) const
    {
        return (thread_time() - start_) / static_cast<double>(operations);
    }

private:
    double start_ = thread_time();
};

/// What the compiler must take for used, and what it must take for changed.
template <class T>
void keep(const T& value)
{
    asm volatile("" : : "r"(&value) : "memory");
}

class row {
public:
    /// One sample: nanoseconds for each operation, or what `unit` says; not a number when there was none worth keeping.
    using sample = std::function<double()>;

    void add(std::string who, sample s, std::string unit = "ns");
    /// What is counted once and not timed.
    void count(std::string who, std::string unit, double value);
    /// A goal: `who` takes at most `ratio` times what `against` takes.
    void at_most(double ratio, std::string who, std::string against);
    /// For samples that take long.
    void rounds(int n) { rounds_ = n; }

    /// Measures, and prints a line of JSON for each contender and each goal.
    void run(std::string_view name, int rounds);

private:
    struct contender {
        std::string name;
        std::string unit;
        sample take;
        std::vector<double> values{};
    };
    struct goal {
        double ratio;
        std::string contender;
        std::string against;
    };

    std::vector<contender> contenders_;
    std::vector<goal> goals_;
    int rounds_ = 25;
};

class table {
public:
    /// `fill(row&)` is called when the row is run.
    void add(std::string name, std::function<void(row&)> fill);
    int main(int argc, char** argv);

private:
    std::vector<std::pair<std::string, std::function<void(row&)>>> rows_;
};

template <class Key>
Key make_key(std::size_t i)
{
    if constexpr (std::is_same_v<Key, std::string>)
        return "user:" + std::to_string(100'000 + i);
    else
        return static_cast<Key>((i + 1) * 0x9e3779b97f4a7c15 >> 1); // in no order
}

template <class Key>
std::vector<Key> make_keys(std::size_t n)
{
    std::vector<Key> keys;
    keys.reserve(n);
    for (std::size_t i = 0; i != n; ++i)
        keys.push_back(make_key<Key>(i));
    return keys;
}

template <class Key>
constexpr std::string_view key_name = std::is_same_v<Key, std::string> ? "string" : "int";

/// `1000` as `1k`.
std::string short_number(std::size_t n);

} // namespace bench

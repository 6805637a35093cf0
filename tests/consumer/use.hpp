// SPDX-License-Identifier: BSL-1.0
// What both translation units of the consumer see: amux after the macros of <windows.h>.
#pragma once

// The standard library's own headers do not survive those macros either.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <coroutine>
#include <cstdio>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))

#include <amux/amux.hpp>

/// What the two units count together, each on a thread of its own.
struct shared_counter {
    amux::asyncmux<std::string> mux{{.name = "consumer"}};
    int value = 0;
};

inline amux::task<> count_up(shared_counter& counter, int times)
{
    for (int i = 0; i < times; ++i) {
        auto guard = co_await counter.mux.lock("counter");
        ++counter.value;
    }
}

inline amux::task<int> look(shared_counter& counter)
{
    const auto read = [&] { return counter.value; };
    co_return co_await counter.mux.with_lock_shared("counter", read);
}

/// Gives the version that the other unit was compiled with.
int count_in_other_unit(shared_counter& counter, int times);

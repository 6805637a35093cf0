// SPDX-License-Identifier: BSL-1.0
// Without this file the "threads" whose schedules are enumerated would be real ones: a thousand times slower.
#pragma once

namespace schedules {

/// Stacks that take turns on one thread. Each has thread-locals of its own: those of the executable, and the exceptions
/// that the C++ runtime keeps per thread, are exchanged with the stack.
namespace fibres {

inline constexpr int most = 3;
inline constexpr int main = most; // the stack of `main()`, to which the others return

/// Gives every fibre a fresh stack, on which `body(number)` begins when it is switched to. It never returns.
void start(void (*body)(int number));

/// Goes on where `to` stands.
void switch_to(int to) noexcept;

/// Who runs.
inline int running_now = main;
inline int running() noexcept
{
    return running_now;
}

} // namespace fibres
} // namespace schedules

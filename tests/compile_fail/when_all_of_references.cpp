// SPDX-License-Identifier: BSL-1.0
// error: constraints not satisfied
#include <amux/when_all.hpp>

#include <utility>
#include <vector>

void no_vector_of_references(std::vector<amux::task<int&>> tasks)
{
    static_cast<void>(tasks);
    static_cast<void>(amux::when_all(std::move(tasks))); // wrong
}

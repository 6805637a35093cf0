// SPDX-License-Identifier: BSL-1.0
// error: the required expression .*b\.extend\(key, token, ttl\).* is invalid
#include <amux/distributed_lock.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/task.hpp>

struct store {
    amux::task<bool> acquire(std::string_view, std::string_view, std::chrono::milliseconds);
    amux::task<bool> release(std::string_view, std::string_view);
    amux::task<std::optional<std::string>> get(std::string_view);
};

void use(store& s, amux::manual_event_loop& loop)
{
    amux::distributed_lock<store&> locks{s, loop}; // wrong
}

// SPDX-License-Identifier: BSL-1.0
// error: b\.release\(key, token\).* does not satisfy return-type-requirement
#include <amux/lock_backend.hpp>
#include <amux/task.hpp>

struct store {
    amux::task<bool> acquire(std::string_view, std::string_view, std::chrono::milliseconds);
    amux::task<bool> extend(std::string_view, std::string_view, std::chrono::milliseconds);
    amux::task<int> release(std::string_view, std::string_view);
    amux::task<std::optional<std::string>> get(std::string_view);
};

template <amux::lock_backend B>
void lease_from(B&);

void use(store& s)
{
    lease_from(s); // wrong
}

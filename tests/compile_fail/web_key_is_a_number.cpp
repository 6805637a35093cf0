// SPDX-License-Identifier: BSL-1.0
// error: the key function gives a text, or a std::optional of one
#include <amux/distributed_lock.hpp>
#include <amux/memory_backend.hpp>
#include <amux/web.hpp>

struct request {
    int account;
};

void serve(amux::distributed_lock<amux::memory_backend>& locks, const request& r)
{
    auto hold = amux::hold_for_request(locks, &request::account).begin(r); // wrong
}

// SPDX-License-Identifier: BSL-1.0
// A lease in three stores: one fails, and it is had, extended and released all the same; two fail, and who asks is told.
#include "check.hpp"

#include <amux/amux.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

// [machine]
/// A store on a machine that can be switched off.
class machine {
public:
    machine(amux::memory_backend& store, const bool& on) : store_{&store}, on_{&on} {}

    auto acquire(std::string_view key, std::string_view token, milliseconds ttl)
    {
        return running().acquire(key, token, ttl);
    }
    auto extend(std::string_view key, std::string_view token, milliseconds ttl)
    {
        return running().extend(key, token, ttl);
    }
    auto release(std::string_view key, std::string_view token)
    {
        return running().release(key, token);
    }
    auto get(std::string_view key) { return running().get(key); }

private:
    amux::memory_backend& running()
    {
        if (!*on_)
            throw amux::backend_error{amux::backend_error_kind::not_applied, "it is off"};
        return *store_;
    }

    amux::memory_backend* store_;
    const bool* on_;
};
// [/machine]

using three_locks = amux::distributed_lock<amux::redlock<machine>&>;

struct room {
    std::array<amux::memory_backend, 3> stores;
    std::array<bool, 3> on{true, true, true};

    std::vector<machine> machines()
    {
        std::vector<machine> all;
        for (std::size_t n = 0; n < stores.size(); ++n)
            all.emplace_back(stores[n], on[n]);
        return all;
    }
};

amux::task<> fail_one_by_one(room& r, three_locks& locks)
{
    auto lease = co_await locks.acquire("door", {.ttl = 10s});
    std::printf("granted by three machines; fence: %s\n", lease.fence() ? "yes" : "none");

    r.on[1] = false;
    co_await lease.extend();
    const bool ours = co_await lease.verify();
    std::printf("one is off: extended by two, and still ours: %s\n", ours ? "yes" : "no");
    check(ours && lease.is_held(), "a majority holds");

    r.on[2] = false;
    std::string trouble;
    try {
        co_await lease.extend();
    } catch (const amux::backend_error& e) {
        trouble = e.what();
    }
    std::printf("two are off: %s\n", trouble.c_str());
    check(lease.is_held(), "trouble takes no lease before its time");

    r.on[2] = true;
    const bool released = co_await lease.release();
    const auto next = co_await locks.try_acquire("door");
    std::printf("one is back: released: %s, and had by the next one: %s\n", released ? "yes" : "no",
                next ? "yes" : "no");
    check(released && next, "two of three suffice");
}

} // namespace

int main()
{
    room r;
    amux::event_loop loop;
    amux::redlock store{r.machines(), loop};
    three_locks locks{store, loop};
    loop.block_on(fail_one_by_one(r, locks));
    check(loop.block_on(locks.drain(1s)), "nothing is outstanding");
}

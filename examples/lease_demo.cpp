// SPDX-License-Identifier: BSL-1.0
// Two workers share one lease, in real time. One of them freezes while it holds it: its lease runs out, the other takes
// over, and when the frozen one wakes up and writes, the protected resource refuses it.
#include "check.hpp"

#include <amux/amux.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;

constexpr auto ttl = 600ms;
constexpr int pieces_in_all = 14;

/// Lines with the time since the start, from any thread; and the fences of all grants, in order.
class logbook {
public:
    void note_grant(amux::fencing_token fence)
    {
        const std::lock_guard lock{mutex_};
        grants_.push_back(fence);
    }
    std::vector<amux::fencing_token> grants() const
    {
        const std::lock_guard lock{mutex_};
        return grants_;
    }
    void write(std::string_view who, const std::string& what)
    {
        const std::chrono::duration<double> t = amux::clock::now() - start_;
        const std::lock_guard lock{mutex_};
        fmt::print("{:6.2f} s  {:<6} {}\n", t.count(), who, what);
        std::fflush(stdout);
    }

private:
    const amux::clock::time_point start_ = amux::clock::now();
    mutable std::mutex mutex_;
    std::vector<amux::fencing_token> grants_;
};

/// What the lease protects: it remembers the highest fence, and refuses lower ones.
class warehouse {
public:
    bool store(amux::fencing_token fence)
    {
        const std::lock_guard lock{mutex_};
        if (fence < highest_) {
            ++refused_;
            return false;
        }
        highest_ = fence;
        ++pieces_;
        return true;
    }
    bool has_seen_newer_than(amux::fencing_token fence) const
    {
        const std::lock_guard lock{mutex_};
        return highest_ > fence;
    }
    int pieces() const
    {
        const std::lock_guard lock{mutex_};
        return pieces_;
    }
    int refused() const
    {
        const std::lock_guard lock{mutex_};
        return refused_;
    }

private:
    mutable std::mutex mutex_;
    amux::fencing_token highest_ = 0;
    int pieces_ = 0;
    int refused_ = 0;
};

/// What a process has: a loop with a thread, a lock over the common store, and work.
class worker {
public:
    worker(std::string name, amux::memory_backend& store, warehouse& goods, logbook& log)
        : name_{std::move(name)},
          goods_{goods},
          log_{log},
          locks_{store, thread_.loop(), {.default_ttl = ttl, .max_wait = amux::forever}, hooks()},
          group_{thread_.loop()}
    {}

    void begin(bool freezes) { group_.spawn(work(freezes)); }

    /// Waits for the work, then for the answers of the store.
    amux::task<bool> end()
    {
        co_await group_.join();
        co_return co_await locks_.drain(5s);
    }

    // Read after `end`.
    int grants() const { return grants_; }
    int losses() const { return losses_; }
    int renewals() const { return renewals_; }

private:
    void say(const std::string& what) { log_.write(name_, what); }

    amux::lock_hooks hooks()
    {
        amux::lock_hooks h;
        h.on_acquire = [this](const amux::lock_event& e) {
            ++grants_;
            log_.note_grant(*e.fence);
            say(fmt::format("has the lease, fence {}", *e.fence));
        };
        h.on_renew = [this](const amux::lock_event&) { ++renewals_; };
        h.on_release = [this](const amux::lock_event& e) {
            say(fmt::format("has given it back, fence {}", *e.fence));
        };
        h.on_lost = [this](const amux::lock_event& e) {
            ++losses_;
            say(fmt::format("is told of the loss, fence {}: {}", *e.fence, to_string(*e.reason)));
        };
        return h;
    }

    amux::task<> work(bool freezes)
    {
        while (goods_.pieces() < pieces_in_all) {
            auto lease = co_await locks_.acquire("warehouse", {.renew = true});
            for (int piece = 1; piece != 5 && lease.is_held(); ++piece) {
                co_await thread_.loop().sleep_for(120ms, lease.lost_token());
                const bool froze = freezes && piece == 3;
                if (froze)
                    freeze(lease);
                freezes = freezes && !froze;
                const bool taken = goods_.store(*lease.fence());
                if (!taken)
                    say(fmt::format("is refused by the warehouse, fence {}", *lease.fence()));
                else
                    say(fmt::format("stores a piece, fence {}", *lease.fence()));
            }
            co_await lease.release();
            co_await thread_.loop().sleep_for(150ms); // a rest: the other one gets a turn
        }
    }

    /// Blocks the loop, and with it the renewal, until somebody newer has been at the warehouse.
    void freeze(const amux::acquired_lock& lease)
    {
        say(fmt::format("FREEZES for longer than the lease lasts ({} ms)", ttl.count()));
        const auto start = amux::clock::now();
        const auto over = [&](auto d) { return amux::clock::now() - start > d; };
        while (!over(1500ms) || (!goods_.has_seen_newer_than(*lease.fence()) && !over(20s)))
            std::this_thread::sleep_for(10ms);
        say(fmt::format("WAKES UP, is_held() is {}, but writes all the same", lease.is_held()));
        check(!lease.is_held(), "belief ends by the clock, not by the loop");
    }

    const std::string name_;
    warehouse& goods_;
    logbook& log_;
    int grants_ = 0; // these three on the loop
    int losses_ = 0;
    int renewals_ = 0;
    amux::loop_thread thread_;
    amux::distributed_lock<amux::memory_backend&> locks_; // after the loop, which outlives it
    amux::task_group group_;
};

} // namespace

int main()
{
    logbook log;
    warehouse goods;
    amux::memory_backend store;
    worker anna{"anna", store, goods, log};
    worker ben{"ben", store, goods, log};

    anna.begin(true);
    std::this_thread::sleep_for(50ms);
    ben.begin(false);
    const bool clean = amux::sync_wait(anna.end()) && amux::sync_wait(ben.end());

    const std::vector<amux::fencing_token> fences = log.grants();
    fmt::print("\n{} pieces stored, {} refused; {} leases, {} lost, {} renewals\n", goods.pieces(),
               goods.refused(), fences.size(), anna.losses() + ben.losses(),
               anna.renewals() + ben.renewals());

    check(goods.pieces() >= pieces_in_all, "the work is done");
    check(goods.refused() >= 1, "the frozen holder is refused");
    check(anna.losses() >= 1 && anna.grants() >= 2, "it is told, and gets a turn again");
    check(std::adjacent_find(fences.begin(), fences.end(), std::greater_equal<>{}) == fences.end(),
          "every grant has a higher fence than those before");
    check(clean && store.size() == 0, "nothing is left");
}

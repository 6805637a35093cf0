// SPDX-License-Identifier: BSL-1.0
// Without this file no test has several processes that share a lock over several servers, and a history of what they saw.
#pragma once

#include "redis/support/redis_server.hpp"
#include "redis/support/tcp_proxy.hpp"

#include <amux/clock.hpp>
#include <amux/distributed_lock.hpp>
#include <amux/loop_thread.hpp>
#include <amux/redis_backend.hpp>
#include <amux/redlock.hpp>
#include <amux/sync_wait.hpp>
#include <amux/testing/history.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace support {

/// Three servers, each behind a proxy.
struct three_servers {
    three_servers()
    {
        for (auto& s : servers)
            proxies.emplace_back(s.port());
    }

    std::vector<amux::redis_backend> nodes(
        std::chrono::milliseconds limit = std::chrono::milliseconds{500}) const
    {
        std::vector<amux::redis_backend> all;
        for (const auto& p : proxies) {
            amux::redis_options o;
            o.port = p.port();
            o.connect_timeout = (std::min)(limit, std::chrono::milliseconds{300});
            o.command_timeout = limit;
            all.emplace_back(o);
        }
        return all;
    }

    redis_server servers[3];
    std::deque<tcp_proxy> proxies;
};

/// What a process has: a loop, a redlock over the servers, a lock.
struct redlock_client {
    explicit redlock_client(const three_servers& where,
                            std::chrono::milliseconds node_timeout = std::chrono::milliseconds{100})
        : store{where.nodes(5 * node_timeout), thread.loop(), {.node_timeout = node_timeout}},
          locks{store,
                thread.loop(),
                {.default_ttl = std::chrono::milliseconds{1'000},
                 .max_wait = amux::forever,
                 .poll_interval = std::chrono::milliseconds{40}}}
    {}

    amux::loop_thread thread;
    amux::redlock<amux::redis_backend> store;
    amux::distributed_lock<amux::redlock<amux::redis_backend>&> locks;
};

/// Processes that take one key in turn, as fast as they can, until the party is over.
class redlock_party {
public:
    redlock_party(const three_servers& where, std::size_t processes)
    {
        for (std::size_t n = 0; n < processes; ++n)
            clients_.emplace_back(where);
        for (std::size_t n = 0; n < processes; ++n)
            threads_.emplace_back([this, n] { take_turns(clients_[n], "p" + std::to_string(n)); });
    }
    ~redlock_party() { end(); }

    int grants() const { return grants_; }

    /// What the history finds wrong with all that has happened.
    std::vector<std::string> end()
    {
        over_.request_stop();
        threads_.clear();
        return seen_.faults();
    }

private:
    using kind = amux::testing::history_event::kind;

    void tell(kind what, const std::string& who, int call, amux::clock::time_point until = {})
    {
        amux::testing::history_event e;
        e.what = what;
        e.process = who;
        e.key = "k";
        e.call = std::to_string(call);
        e.until = until;
        const std::lock_guard hold{mutex_};
        e.at = amux::clock::now();
        seen_.add(std::move(e));
    }

    void take_turns(redlock_client& self, const std::string& who)
    {
        for (int call = 0; !over_.stop_requested(); ++call) {
            tell(kind::asked, who, call);
            try {
                auto held = amux::sync_wait(self.locks.acquire("k", over_.get_token()));
                tell(kind::granted, who, call, held.valid_until());
                ++grants_;
                std::this_thread::sleep_for(std::chrono::milliseconds{2});
                tell(kind::ended, who, call);
                amux::sync_wait(held.release());
            } catch (const amux::lock_cancelled_error&) {
                tell(kind::failed, who, call);
            } catch (const amux::backend_error&) { // the release: tried again in the background
            }
        }
    }

    std::mutex mutex_;
    amux::testing::history seen_;
    std::atomic<int> grants_{0};
    std::stop_source over_;
    std::deque<redlock_client> clients_;
    std::vector<std::jthread> threads_;
};

} // namespace support

// SPDX-License-Identifier: BSL-1.0
// Without this file every test of faults would build a loop, a backend, a lock and a log of its own.
#pragma once

#include <amux/distributed_lock.hpp>
#include <amux/loop_thread.hpp>
#include <amux/redis_backend.hpp>
#include <amux/sync_wait.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace support {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The names in the store, as the documentation gives them.
inline std::string lock_name(std::string_view key)
{
    return "{amux}:lock:" + std::string{key};
}
inline std::string channel_name(std::string_view key)
{
    return "{amux}:free:" + std::string{key};
}
inline constexpr std::string_view fence_name = "{amux}:fence";

/// Polls until it is so; false after half a minute.
template <class Claim>
bool soon(Claim claim, seconds limit = seconds{30})
{
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!claim()) {
        if (std::chrono::steady_clock::now() >= end)
            return false;
        std::this_thread::sleep_for(milliseconds{2});
    }
    return true;
}

/// Asks until nothing goes wrong, for half a minute: a limit that a test wants short may be too short to connect in.
template <class Ask>
auto in_the_end(Ask ask)
{
    const auto end = std::chrono::steady_clock::now() + seconds{30};
    for (;;) {
        try {
            return ask();
        } catch (const amux::backend_error&) {
            if (std::chrono::steady_clock::now() >= end)
                throw;
        }
        std::this_thread::sleep_for(milliseconds{2});
    }
}

/// A client as a process would have it: a loop on a thread, a Redis backend, a lock, and a log of what the hooks say.
class lease_client {
    std::mutex mutex_; // first: the hooks use both until the loop is gone
    std::vector<std::pair<std::string, std::string>> said_;

public:
    explicit lease_client(std::string_view url, amux::distributed_lock_options options = {})
        : backend{url}, locks{backend, thread.loop(), options, hooks()}
    {}
    explicit lease_client(const amux::redis_options& where,
                          amux::distributed_lock_options options = {})
        : backend{where}, locks{backend, thread.loop(), options, hooks()}
    {}

    amux::acquired_lock acquire(std::string_view key, amux::acquire_options o = {},
                                std::stop_token stop = {})
    {
        return amux::sync_wait(locks.acquire(key, o, std::move(stop)));
    }
    std::optional<amux::acquired_lock> try_acquire(std::string_view key,
                                                   amux::acquire_options o = {})
    {
        return amux::sync_wait(locks.try_acquire(key, o));
    }

    /// How often a hook of this name has said something that contains `part`.
    int heard(std::string_view hook, std::string_view part = {})
    {
        const std::lock_guard hold{mutex_};
        int count = 0;
        for (const auto& [name, text] : said_)
            count += name == hook && text.find(part) != std::string::npos;
        return count;
    }
    std::string everything(std::string_view hook)
    {
        const std::lock_guard hold{mutex_};
        std::string text;
        for (const auto& [name, what] : said_)
            text += name == hook ? what + '\n' : "";
        return text;
    }
    bool hears(std::string_view hook, std::string_view part = {}, int times = 1)
    {
        return soon([&] { return heard(hook, part) >= times; });
    }

    amux::loop_thread thread;
    amux::redis_backend backend;
    amux::distributed_lock<amux::redis_backend&> locks;

private:
    amux::lock_hooks hooks()
    {
        amux::lock_hooks h;
        const auto note = [this](const char* name) {
            return [this, name](const amux::lock_event& e) {
                std::string text = e.key;
                if (e.cause) {
                    try {
                        std::rethrow_exception(e.cause);
                    } catch (const std::exception& trouble) {
                        text += std::string{": "} + trouble.what();
                    }
                }
                const std::lock_guard hold{mutex_};
                said_.emplace_back(name, std::move(text));
            };
        };
        h.on_acquire = note("acquire");
        h.on_release = note("release");
        h.on_renew = note("renew");
        h.on_lost = note("lost");
        h.on_error = note("error");
        return h;
    }
};

} // namespace support

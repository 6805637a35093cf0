// SPDX-License-Identifier: BSL-1.0
// One lease in three Redis servers, of which one may fail: redis_redlock URL URL URL. Without addresses it takes three
// databases of the server in AMUX_REDIS_URL, which is good for nothing but to see it run.
#include "check.hpp"

#include <amux/amux.hpp>
#include <amux/redis_backend.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;

// [work]
using majority_locks = amux::distributed_lock<amux::redlock<amux::redis_backend>&>;

amux::task<> send_report(majority_locks& locks, int& sent)
{
    auto lease = co_await locks.acquire("report", {.ttl = 10s, .renew = true});
    ++sent;
    co_await lease.release();
}
// [/work]

int run(const std::vector<std::string>& urls)
{
    int sent = 0;
    // [begin]
    amux::loop_thread thread;
    std::vector<amux::redis_backend> nodes;
    for (const std::string& url : urls) // three or five servers that know nothing of each other
        nodes.emplace_back(url);
    amux::redlock store{std::move(nodes), thread.loop(), {.node_timeout = 1s}};
    majority_locks locks{store, thread.loop()}; // after both: they outlive it
    amux::sync_wait(send_report(locks, sent));
    // [/begin]
    std::printf("sent under a lease in %zu servers\n", urls.size());
    check(amux::sync_wait(locks.drain(5s)), "nothing is outstanding");
    return sent == 1 ? 0 : 1;
}

} // namespace

int main(int argc, char** argv)
{
    std::vector<std::string> urls(argv + 1, argv + argc);
    if (urls.empty()) {
        const char* const server = std::getenv("AMUX_REDIS_URL");
        const std::string url = server ? server : "redis://127.0.0.1";
        urls = {url + "/1", url + "/2", url + "/3"};
    }
    try {
        return run(urls);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}

// SPDX-License-Identifier: BSL-1.0
// A payments service of cpp-httplib: posts for one account are handled one by one.
//
// usage: payments_httplib PORT [REDIS-URL]     port 0: a free one. With the URL several processes share the accounts
#include "payments/desk.hpp"

#include <amux/amux.hpp>
#include <amux/redis_backend.hpp>
#include <amux/web_httplib.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>

namespace {

using namespace std::chrono_literals;

// [key]
std::string account_of(const httplib::Request& request)
{
    const std::string account = request.get_param_value("account");
    return account.empty() ? "" : "payments:" + account; // an empty key is answered with 400
}
// [/key]

// [handler]
/// Answers with nothing when the lease is lost: the lock says so to the client.
void pay(desk& d, const httplib::Request& request, httplib::Response& response,
         amux::web_hold& hold)
{
    const std::string account = request.get_param_value("account");
    d.begins(account, hold.lease());
    std::this_thread::sleep_for(50ms); // asks a bank
    if (hold.is_held())
        response.set_content(d.ends(account), "text/plain");
}
// [/handler]

// [serve]
template <class Locks>
int serve(Locks& locks, int port, const sigset_t& end_signals)
{
    const amux::acquire_options lease{.ttl = 10s, .max_wait = 20s, .renew = true};
    const auto wait = amux::hold_for_request(locks, account_of, {.lease = lease});
    const auto try_once =
        amux::hold_for_request(locks, account_of, {.lease = lease, .wait = false});
    desk d;
    const auto handler = [&d](const auto& request, auto& response, auto& hold) {
        pay(d, request, response, hold);
    };
    httplib::Server server;
    server.Post("/payments", amux::httplib_handler(wait, handler));
    server.Post("/payments/now", amux::httplib_handler(try_once, handler)); // or 423
    // [/serve]
    if (port == 0)
        port = server.bind_to_any_port("127.0.0.1");
    else if (!server.bind_to_port("127.0.0.1", port))
        port = -1;
    if (port < 0) {
        std::fprintf(stderr, "the port is not to be had\n");
        return 1;
    }
    std::fprintf(stderr, "listening on port %d\n", port);

    // [shutdown]
    std::thread listener{[&server] { server.listen_after_bind(); }};
    wait_for(end_signals);
    server.stop(); // takes no new requests
    amux::sync_wait(locks.drain(20s)); // who waits is answered with 503
    listener.join(); // who works has finished
    const bool clean = amux::sync_wait(locks.drain(5s)); // the store has their releases
    // [/shutdown]
    return clean ? 0 : 1;
}

} // namespace

int main(int argc, char** argv)
{
    if (argc != 2 && argc != 3) {
        std::fprintf(stderr, "usage: payments_httplib PORT [REDIS-URL]\n");
        return 2;
    }
    try {
        const sigset_t end_signals = block_end_signals();
        const int port = std::stoi(argv[1]);
        amux::loop_thread thread;
        if (argc == 3) {
            auto locks = amux::make_redis_lock(argv[2], thread.loop());
            return serve(locks, port, end_signals);
        }
        amux::memory_backend store;
        amux::distributed_lock locks{store, thread.loop()};
        return serve(locks, port, end_signals);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}

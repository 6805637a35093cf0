// SPDX-License-Identifier: BSL-1.0
#include <amux/amux.hpp>
#include <amux/web_httplib.hpp>

#include <string>

using namespace std::chrono_literals;

std::string account_of(const httplib::Request& request)
{
    const std::string account = request.get_param_value("account");
    return account.empty() ? "" : "payments:" + account; // an empty key is answered with 400
}

void pay(const httplib::Request& request, httplib::Response& response, amux::web_hold& hold)
{
    // Nobody else is here for this account. Whoever stores the payment compares the fence.
    const auto fence = hold.lease()->fence();
    response.set_content("paid from " + request.get_param_value("account") + ", fence " +
                             std::to_string(fence.value_or(0)) + "\n",
                         "text/plain");
} // the lease is given back when the client has the response

int main(int argc, char** argv)
{
    amux::memory_backend store; // for several processes: amux::redis_backend
    amux::loop_thread thread; // it keeps the leases alive, whatever the handlers do
    amux::distributed_lock locks{store, thread.loop()};

    const auto lock =
        amux::hold_for_request(locks, account_of, {.lease = {.ttl = 10s, .renew = true}});
    httplib::Server server;
    server.Post("/payments", amux::httplib_handler(lock, pay));
    server.listen("127.0.0.1", argc > 1 ? std::stoi(argv[1]) : 8080);
}

// SPDX-License-Identifier: BSL-1.0
#include <amux/amux.hpp>
#include <amux/asio_scheduler.hpp>
#include <amux/web_beast.hpp>

#include <boost/asio.hpp>
#include <boost/beast.hpp>

#include <string>

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using namespace std::chrono_literals;
using asio::ip::tcp;
using request_type = http::request<http::string_body>;
using response_type = http::response<http::string_body>;

std::string account_of(const request_type& request)
{
    const std::string& form = request.body(); // account=7
    if (form.size() <= 8 || !form.starts_with("account="))
        return ""; // is answered with 400
    return "payments:" + form.substr(8);
}

asio::awaitable<response_type> pay(const request_type& request, amux::web_hold& hold)
{
    // Nobody else is here for this account, also while this coroutine waits for something.
    const auto fence = hold.lease()->fence();
    response_type response{http::status::ok, request.version(),
                           "paid, fence " + std::to_string(fence.value_or(0)) + "\n"};
    response.keep_alive(request.keep_alive());
    response.prepare_payload();
    co_return response;
}

asio::awaitable<void> session(tcp::socket socket, const auto& lock)
{
    beast::tcp_stream stream{std::move(socket)};
    beast::flat_buffer buffer;
    bool keep = true;
    while (keep) {
        request_type request;
        co_await http::async_read(stream, buffer, request, asio::use_awaitable);
        const auto handler = [&](amux::web_hold& hold) { return pay(request, hold); };
        keep = co_await lock.serve(stream, request, handler);
    }
}

asio::awaitable<void> listen(tcp::acceptor acceptor, const auto& lock)
{
    for (;;) {
        tcp::socket socket = co_await acceptor.async_accept(asio::use_awaitable);
        asio::co_spawn(acceptor.get_executor(), session(std::move(socket), lock), asio::detached);
    }
}

int main(int argc, char** argv)
{
    asio::io_context io{1};
    amux::memory_backend store; // for several processes: amux::redis_backend
    amux::asio_scheduler loop{io.get_executor()}; // no thread of its own
    amux::distributed_lock locks{store, loop};

    const amux::beast_lock lock{
        amux::hold_for_request(locks, account_of, {.lease = {.ttl = 10s, .renew = true}})};
    const auto port = static_cast<unsigned short>(argc > 1 ? std::stoi(argv[1]) : 8080);
    tcp::acceptor acceptor{io, {asio::ip::address_v4::loopback(), port}};
    asio::co_spawn(io, listen(std::move(acceptor), lock), asio::detached);
    io.run();
}

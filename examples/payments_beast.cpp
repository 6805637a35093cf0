// SPDX-License-Identifier: BSL-1.0
// A payments service of Boost.Beast on one thread: posts for one account are handled one by one.
//
// usage: payments_beast PORT [REDIS-URL]     port 0: a free one. With the URL several processes share the accounts
#include "payments/desk.hpp"

#include <amux/amux.hpp>
#include <amux/asio_scheduler.hpp>
#include <amux/redis_backend.hpp>
#include <amux/web_beast.hpp>

#include <boost/asio.hpp>
#include <boost/beast.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using namespace std::chrono_literals;
using asio::ip::tcp;
using request_type = http::request<http::string_body>;
using response_type = http::response<http::string_body>;

// [key]
std::string account_of(const request_type& request)
{
    const std::string& form = request.body(); // account=7
    if (form.size() <= 8 || !form.starts_with("account="))
        return ""; // is answered with 400
    return "payments:" + form.substr(8);
}
// [/key]

// [handler]
asio::awaitable<response_type> pay(desk& d, const request_type& request, amux::web_hold& hold)
{
    const std::string account = request.body().substr(8);
    d.begins(account, hold.lease());
    asio::steady_timer bank{co_await asio::this_coro::executor, 50ms};
    co_await bank.async_wait(asio::use_awaitable); // other accounts are served meanwhile
    if (!hold.is_held())
        throw amux::lock_ended_error{"too late", hold.lease()->key(), amux::end_reason::expired};
    response_type response{http::status::ok, request.version(), d.ends(account)};
    response.keep_alive(request.keep_alive());
    response.prepare_payload();
    co_return response;
}
// [/handler]

/// A request that is being served: counted until the end of the scope.
struct counted {
    explicit counted(int& n) : number{n} { ++number; }
    counted(const counted&) = delete;
    counted& operator=(const counted&) = delete;
    ~counted() { --number; }
    int& number;
};

template <class Locks>
class service {
public:
    service(asio::io_context& io, Locks& locks, unsigned short port)
        : io_{io}, locks_{locks}, acceptor_{io, {asio::ip::address_v4::loopback(), port}}
    {
        std::fprintf(stderr, "listening on port %d\n", acceptor_.local_endpoint().port());
    }

    // [session]
    asio::awaitable<void> session(tcp::socket socket)
    {
        beast::tcp_stream stream{std::move(socket)};
        beast::flat_buffer buffer;
        bool keep = true;
        while (keep && !closing_) {
            request_type request;
            stream.expires_after(
                30s); // for reading; the wait for the lock, and writing, have limits
            co_await http::async_read(stream, buffer, request, asio::use_awaitable);
            const counted now{busy_};
            const auto handler = [&](amux::web_hold& hold) { return pay(desk_, request, hold); };
            if (request.target() == "/payments/now")
                keep = co_await try_once_.serve(stream, request, handler); // or 423
            else
                keep = co_await wait_.serve(stream, request, handler);
        }
    }
    // [/session]

    asio::awaitable<void> listen()
    {
        for (;;) {
            tcp::socket socket = co_await acceptor_.async_accept(asio::use_awaitable);
            asio::co_spawn(io_, session(std::move(socket)), asio::detached);
        }
    }

    // [shutdown]
    asio::awaitable<void> shut_down_on_signal()
    {
        asio::signal_set signals{io_, SIGINT, SIGTERM};
        co_await signals.async_wait(asio::use_awaitable);
        closing_ = true;
        acceptor_.close(); // takes no new requests
        co_await locks_.drain(20s); // who waits is answered with 503
        asio::steady_timer pause{io_};
        while (busy_ != 0) { // who works finishes
            pause.expires_after(10ms);
            co_await pause.async_wait(asio::use_awaitable);
        }
        clean = co_await locks_.drain(5s); // the store has their releases
        io_.stop();
    }
    // [/shutdown]

    bool clean = false;

private:
    asio::io_context& io_;
    Locks& locks_;
    // [locks]
    static constexpr amux::acquire_options lease_{.ttl = 10s, .max_wait = 20s, .renew = true};
    amux::beast_lock<Locks, decltype(&account_of)> wait_{
        amux::hold_for_request(locks_, &account_of, {.lease = lease_})};
    amux::beast_lock<Locks, decltype(&account_of)> try_once_{
        amux::hold_for_request(locks_, &account_of, {.lease = lease_, .wait = false})};
    // [/locks]
    tcp::acceptor acceptor_;
    desk desk_;
    int busy_ = 0;
    bool closing_ = false;
};

template <class Locks>
int serve(asio::io_context& io, Locks& locks, unsigned short port)
{
    service s{io, locks, port};
    asio::co_spawn(io, s.listen(), asio::detached);
    asio::co_spawn(io, s.shut_down_on_signal(), asio::detached);
    io.run();
    return s.clean ? 0 : 1;
}

} // namespace

int main(int argc, char** argv)
{
    if (argc != 2 && argc != 3) {
        std::fprintf(stderr, "usage: payments_beast PORT [REDIS-URL]\n");
        return 2;
    }
    try {
        const auto port = static_cast<unsigned short>(std::stoi(argv[1]));
        asio::io_context io{1};
        amux::asio_scheduler loop{io.get_executor()}; // the locks run on the server's thread
        if (argc == 3) {
            auto locks = amux::make_redis_lock(argv[2], loop);
            return serve(io, locks, port);
        }
        amux::memory_backend store;
        amux::distributed_lock locks{store, loop};
        return serve(io, locks, port);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}

// SPDX-License-Identifier: BSL-1.0
// What a lock costs a web server: one to be put under load by web.sh. It ends with SIGTERM, prints what it has counted,
// and fails when a counter that only the lock protects is not exact, or a lease is left.
//
// usage: web_server (beast | httplib) PORT
#include <amux/amux.hpp>
#include <amux/asio_scheduler.hpp>
#include <amux/web_beast.hpp>
#include <amux/web_httplib.hpp>

#include <boost/asio.hpp>
#include <boost/beast.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using namespace std::chrono_literals;
using asio::ip::tcp;
using request_type = http::request<http::string_body>;
using response_type = http::response<http::string_body>;
using lock_type = amux::distributed_lock<amux::memory_backend&>;

constexpr std::size_t accounts = 1'000;

/// What handlers do: two counters, of which one needs the lock.
struct books {
    void pay(std::size_t account)
    {
        const long before = unsafe[account];
        asked.fetch_add(1, std::memory_order_relaxed);
        unsafe[account] = before + 1;
    }
    long kept() const
    {
        long sum = 0;
        for (const long n : unsafe)
            sum += n;
        return sum;
    }

    std::atomic<long> asked = 0;
    std::array<long, accounts> unsafe{};
};

std::size_t account_in(std::string_view path)
{
    const auto at = path.find('=');
    return at == path.npos ? 0 : std::stoul(std::string{path.substr(at + 1)}) % accounts;
}

/// Thousands in a row come from one process here, and there is no other one to make way for.
constexpr amux::distributed_lock_options alone{.max_wait = 60s, .local_turns = 1'000'000'000};
constexpr amux::web_lock_options renewed{.lease = {.ttl = 30s, .renew = true}};

std::string key_of(const request_type& r)
{
    return "account:" + std::to_string(account_in({r.target().data(), r.target().size()}));
}
std::string key_of_other(const httplib::Request& r)
{
    return "account:" + std::to_string(account_in(r.target));
}

sigset_t end_signals()
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    return signals;
}

struct beast_server {
    asio::awaitable<response_type> handle(const request_type& r, bool locked)
    {
        if (locked)
            b.pay(account_in({r.target().data(), r.target().size()}));
        response_type a{http::status::ok, r.version(), "paid\n"};
        a.keep_alive(r.keep_alive());
        a.prepare_payload();
        co_return a;
    }

    asio::awaitable<void> session(tcp::socket socket)
    {
        beast::tcp_stream stream{std::move(socket)};
        stream.socket().set_option(tcp::no_delay{true});
        beast::flat_buffer buffer;
        for (;;) {
            request_type r;
            co_await http::async_read(stream, buffer, r, asio::use_awaitable);
            if (r.target().starts_with("/free")) {
                const response_type a = co_await handle(r, false);
                co_await http::async_write(stream, a, asio::use_awaitable);
            } else {
                const auto pay = [&](amux::web_hold&) { return handle(r, true); };
                co_await lock.serve(stream, r, pay);
            }
        }
    }

    asio::awaitable<void> listen(tcp::acceptor acceptor)
    {
        for (;;) {
            tcp::socket s = co_await acceptor.async_accept(asio::use_awaitable);
            asio::co_spawn(io, session(std::move(s)), asio::detached);
        }
    }

    books& b;
    asio::io_context io{1};
    amux::memory_backend store{};
    amux::asio_scheduler<asio::io_context::executor_type> loop{io.get_executor()};
    lock_type locks{store, loop, alone};
    amux::beast_lock<lock_type, decltype(&key_of)> lock{
        amux::hold_for_request(locks, &key_of, renewed)};
};

std::size_t serve_beast(books& b, unsigned short port)
{
    beast_server s{b};
    tcp::acceptor acceptor{s.io, {asio::ip::address_v4::loopback(), port}, true};
    acceptor.listen(4'096);
    asio::co_spawn(s.io, s.listen(std::move(acceptor)), asio::detached);
    asio::signal_set end{s.io, SIGTERM};
    // The clients have gone: what is still served ends before this comes.
    end.async_wait([&s](beast::error_code, int) { s.io.stop(); });
    s.io.run();
    return s.store.size();
}

std::size_t serve_httplib(books& b, int port, const sigset_t& signals)
{
    amux::memory_backend store;
    amux::loop_thread thread;
    lock_type locks{store, thread.loop(), alone};
    httplib::Server server;
    server.new_task_queue = [] {
        return new httplib::ThreadPool{1'010};
    }; // one for each connection
    server.set_keep_alive_max_count(1'000'000'000);
    server.set_tcp_nodelay(true);
    server.Post("/free", [](const httplib::Request&, httplib::Response& a) {
        a.set_content("paid\n", "text/plain");
    });
    server.Post("/pay", amux::httplib_handler(
                            amux::hold_for_request(locks, &key_of_other, renewed),
                            [&b](const httplib::Request& r, httplib::Response& a, amux::web_hold&) {
                                b.pay(account_in(r.target));
                                a.set_content("paid\n", "text/plain");
                            }));
    std::thread listener{[&] { server.listen("127.0.0.1", port); }};
    int which = 0;
    sigwait(&signals, &which);
    server.stop();
    amux::sync_wait(locks.drain(20s));
    listener.join();
    amux::sync_wait(locks.drain(5s));
    return store.size();
}

} // namespace

int main(int argc, char** argv)
{
    if (argc != 3) {
        std::fprintf(stderr, "usage: web_server (beast | httplib) PORT\n");
        return 2;
    }
    const sigset_t signals = end_signals();
    books b;
    std::size_t left = 0;
    if (std::string_view{argv[1]} == "beast") {
        left = serve_beast(b, static_cast<unsigned short>(std::stoi(argv[2])));
    } else {
        pthread_sigmask(SIG_BLOCK, &signals, nullptr);
        left = serve_httplib(b, std::stoi(argv[2]), signals);
    }
    std::printf("%ld payments handled, %ld counted under the lock, %zu leases left\n",
                b.asked.load(), b.kept(), left);
    return b.asked == b.kept() && left == 0 ? 0 : 1;
}

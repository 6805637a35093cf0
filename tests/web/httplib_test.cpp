// SPDX-License-Identifier: BSL-1.0
// Without this file a server of cpp-httplib could handle two requests for one thing at a time, or keep a lease for ever.
#include <amux/web_httplib.hpp>

#include "support/http_client.hpp"
#include "support/scenarios.hpp"

#include <amux/amux.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

using namespace std::chrono_literals;
using amux::web_hold;
using httplib::Request;
using httplib::Response;
using support::hold_slow;
using support::http_client;
using support::soon;

namespace {

std::string account_of(const Request& r)
{
    if (r.get_param_value("account") == "?")
        throw std::invalid_argument{"no such account"};
    const std::string account = r.get_param_value("account");
    return account.empty() ? account : "payments:" + account;
}

/// Answers with a file, which Debian's version cannot.
template <class R>
bool set_file(R& a)
{
    if constexpr (requires { a.set_file_content(__FILE__); })
        a.set_file_content(__FILE__, "text/plain");
    return requires { a.set_file_content(__FILE__); };
}

/// The ends of a connection: "the port of its client, the address that it came to"; "none" when it is none.
std::string ends_of(int socket)
{
    sockaddr_in there{};
    sockaddr_in here{};
    socklen_t size = sizeof there;
    if (::getpeername(socket, reinterpret_cast<sockaddr*>(&there), &size) != 0 ||
        ::getsockname(socket, reinterpret_cast<sockaddr*>(&here), &size) != 0)
        return "none";
    char address[INET_ADDRSTRLEN]{};
    ::inet_ntop(AF_INET, &here.sin_addr, address, sizeof address);
    return std::to_string(ntohs(there.sin_port)) + ", " + address;
}

/// A payments service whose handlers do what a test says.
class service : public support::payments_watched {
public:
    explicit service(const char* address = "127.0.0.1", int its_port = 0) : port_{its_port}
    {
        const amux::acquire_options lease{.ttl = 10s, .renew = true};
        const auto account = [this](const Request& r) {
            ++asked;
            return account_of(r);
        };
        const auto wait = amux::hold_for_request(locks, account, {.lease = lease});
        const auto once = amux::hold_for_request(locks, account, {.lease = lease, .wait = false});
        const auto at_once =
            amux::hold_for_request(locks, account, {.lease = lease, .release_on_close = true});
        const auto short_wait =
            amux::hold_for_request(locks, account, {.lease = {.max_wait = 50ms}});
        server.new_task_queue = [] { return new httplib::ThreadPool{24}; };
        server.set_keep_alive_max_count(1'000);
        server.set_tcp_nodelay(true);
        const auto pay = [this](const Request& r, Response& a, web_hold& h) { work(r, a, h); };
        server.Post("/payments", amux::httplib_handler(wait, pay));
        server.Post("/once", amux::httplib_handler(once, pay));
        server.Post("/at_once", amux::httplib_handler(at_once, pay));
        server.Post("/short_wait", amux::httplib_handler(short_wait, pay));
        server.Post("/closed",
                    amux::httplib_handler(wait, [](const Request&, Response&, web_hold&) {
                        throw amux::lock_closed_error{"another lock"};
                    }));
        server.Post("/throws",
                    amux::httplib_handler(wait, [](const Request&, Response&, web_hold&) {
                        throw std::runtime_error{"the bank is closed"};
                    }));
        server.Post("/loses", amux::httplib_handler(wait, [this](const Request&, Response&,
                                                                 web_hold& h) { lose(h); }));
        server.Post("/extends",
                    amux::httplib_handler(wait, [this](const Request&, Response& a, web_hold& h) {
                        lose(h);
                        a.set_content("half of it", "text/plain");
                        amux::sync_wait(h.lease()->extend());
                    }));
        server.Post("/loses_and_answers",
                    amux::httplib_handler(wait, [this](const Request&, Response& a, web_hold& h) {
                        lose(h);
                        a.status = 202;
                    }));
        server.Post("/loses_and_streams",
                    amux::httplib_handler(wait, [this](const Request&, Response& a, web_hold& h) {
                        lose(h);
                        a.set_chunked_content_provider("text/plain",
                                                       [](std::size_t, httplib::DataSink& sink) {
                                                           sink.write("paid", 4);
                                                           sink.done();
                                                           return true;
                                                       });
                    }));
        server.Post("/begins_and_extends",
                    amux::httplib_handler(wait, [this](const Request& r, Response& a, web_hold& h) {
                        begin_answer(r, a);
                        lose(h);
                        amux::sync_wait(h.lease()->extend());
                    }));
        server.Post("/empty",
                    amux::httplib_handler(wait, [this](const Request&, Response& a, web_hold& h) {
                        lose(h);
                        a.set_header("Location", "/paid");
                        a.set_content("", "text/plain");
                    }));
        server.Post("/rewritten", amux::httplib_handler(wait, pay));
        server.set_post_routing_handler([this](const Request& r, Response& a) {
            if (r.path != "/rewritten" && r.get_param_value("then") != "rewritten")
                return;
            const std::string text = std::move(a.body); // its length is told already
            a.body.clear();
            a.set_content_provider(text.size(), "text/plain",
                                   [this, text](std::size_t, std::size_t, httplib::DataSink& sink) {
                                       sending = true;
                                       return soon([this] { return go.load(); }) &&
                                              sink.write(text.data(), text.size());
                                   });
        });
        server.Post("/file",
                    amux::httplib_handler(wait, [this](const Request&, Response& a, web_hold& h) {
                        lose(h);
                        if (!set_file(a))
                            a.set_content("no such thing in this version", "text/plain");
                    }));
        server.Post("/moves",
                    amux::httplib_handler(wait, [this](const Request&, Response& a, web_hold& h) {
                        moved.emplace(std::move(h));
                        a.set_content(moved->is_held() ? "paid" : "lost", "text/plain");
                    }));
        const auto other = [](const Request&) { return "journal"; };
        const auto journal = amux::hold_for_request(locks, other, {.lease = lease});
        const auto inner = amux::httplib_handler(journal, pay);
        server.Post("/two_locks", amux::httplib_handler(wait, [inner](const Request& r, Response& a,
                                                                      web_hold&) { inner(r, a); }));
        server.Post("/chunks", amux::httplib_handler(wait, [this](const Request&, Response& a,
                                                                  web_hold&) { send_slowly(a); }));
        server.Post("/ends", [](const Request& r, Response& a) {
            a.set_content(ends_of(amux::detail::socket_of(r)), "text/plain");
        });
        if (port_ == 0)
            port_ = server.bind_to_any_port(address);
        else
            server.bind_to_port(address, port_);
        listener_ = std::thread{[this] { server.listen_after_bind(); }};
        soon([this] { return server.is_running(); });
    }
    ~service() { shut_down(); }

    int port() const { return port_; }

    void shut_down()
    {
        if (!listener_.joinable())
            return;
        server.stop();
        clean_end = amux::sync_wait(locks.drain(20s));
        go = true;
        listener_.join();
        clean_end = *clean_end && amux::sync_wait(locks.drain(20s));
    }

    /// Counts who is at work; waits for `go` in the account "slow".
    void work(const Request& r, Response& a, web_hold& h)
    {
        const bool slow = r.get_param_value("account") == "slow";
        begins(slow);
        if (slow)
            soon([&] {
                looks(h);
                return go.load();
            });
        ends(h);
        a.set_content("paid", "text/plain");
    }
    /// In chunks; the last one comes when a test says `go`.
    void send_slowly(Response& a)
    {
        a.set_chunked_content_provider(
            "text/plain",
            [this](std::size_t, httplib::DataSink& sink) {
                sink.write("part", 4);
                ++at_work;
                soon([this] { return go.load(); });
                sink.done();
                return true;
            },
            [this](bool) { ++sent; });
    }
    /// In one of the ways in which a handler may have begun to answer.
    void begin_answer(const Request& r, Response& a)
    {
        const std::string account = r.get_param_value("account");
        a.set_header("Location", "/paid");
        const auto end = [this](bool complete) { ++(complete ? sent : taken_back); };
        const auto some = [](std::size_t, std::size_t size, httplib::DataSink& sink) {
            const std::string text(size, 'x');
            return sink.write(text.data(), size);
        };
        const auto chunk = [](std::size_t, httplib::DataSink& sink) {
            sink.write("paid", 4);
            sink.done();
            return true;
        };
        if (account == "length")
            a.set_content_provider(1'000, "text/plain", some, end);
        else
            a.set_chunked_content_provider("text/plain", chunk, end);
        set_file(a);
    }
    void lose(web_hold& h)
    {
        amux::sync_wait(store.release(h.lease()->key(), h.lease()->token()));
        soon([&] {
            return !amux::sync_wait(h.lease()->verify()) && h.lost_token().stop_requested();
        });
    }

    std::atomic<bool> sending = false;
    std::atomic<int> sent = 0;
    std::atomic<int> taken_back = 0;

    amux::memory_backend store;
    amux::loop_thread thread;
    amux::distributed_lock<amux::memory_backend&> locks{store, thread.loop()};
    std::optional<web_hold> moved; // by a handler, beyond its request
    httplib::Server server;

private:
    int port_;
    std::thread listener_;
};

} // namespace

TEST_CASE("httplib: posts for one account are handled one by one", "[web][httplib]")
{
    service s;
    support::posts_for_one_account(s);
}

TEST_CASE("httplib: posts for different accounts do not wait for each other", "[web][httplib]")
{
    service s;
    support::posts_for_two_accounts(s);
}

TEST_CASE("httplib: one that does not wait is refused, one that waits too long also",
          "[web][httplib]")
{
    service s;
    support::refused_for_somebody_else(s);
}

TEST_CASE("httplib: a key function that throws or gives nothing is answered with 400",
          "[web][httplib]")
{
    service s;
    support::refused_for_its_key(s);
}

TEST_CASE("httplib: a client that hangs up while it waits leaves the line", "[web][httplib]")
{
    service s;
    support::gone_while_it_waits(s);
}

TEST_CASE("httplib: each request finds its own connection", "[web][httplib]")
{
    service s;
    service other{"127.0.0.2", s.port()};
    http_client first{s.port(), "127.0.0.1", 0};
    const std::string port = std::to_string(first.own_port());
    CHECK(first.post("/ends", "7").body == port + ", 127.0.0.1");
    http_client second{s.port(), "127.0.0.2", first.own_port()};
    http_client third{s.port()};
    CHECK(second.post("/ends", "7").body == port + ", 127.0.0.2");
    CHECK(third.post("/ends", "7").body == std::to_string(third.own_port()) + ", 127.0.0.1");
    CHECK(first.post("/ends", "7").body == port + ", 127.0.0.1");
}

TEST_CASE("httplib: a thread that has served other connections finds the one at hand",
          "[web][httplib]")
{
    service s;
    for (int n = 0; n != 100; ++n) // many for each thread
        REQUIRE(http_client{s.port()}.post("/payments", "7").status == 200);
    hold_slow(s).hang_up();
    CHECK(soon([&] { return s.told_closed.load(); }));
    s.go = true;
    CHECK(soon([&] { return s.store.size() == 0; }));
}

TEST_CASE("httplib: connections from one port to two addresses are told apart", "[web][httplib]")
{
    service s;
    service other{"127.0.0.2", s.port()};
    http_client c{s.port(), "127.0.0.1", 0};
    http_client gone{s.port(), "127.0.0.2", c.own_port()};
    c.begin_post("/payments", "slow");
    REQUIRE(soon([&] { return s.at_work == 1; }));
    gone.begin_post("/payments", "slow");
    REQUIRE(soon([&] { return other.at_work == 1; }));
    gone.hang_up();
    CHECK(soon([&] { return other.told_closed.load(); }));
    CHECK_FALSE(s.told_closed);
    s.go = other.go = true;
    CHECK(c.reply().status == 200);
}

TEST_CASE("httplib: a client that hangs up is told to the handler, which keeps the lease",
          "[web][httplib]")
{
    service s;
    support::gone_while_it_is_handled(s);
}

TEST_CASE("httplib: by option the lease of a client that hangs up is given back at once",
          "[web][httplib]")
{
    service s;
    support::gone_and_given_back_at_once(s);
}

TEST_CASE("httplib: a handler that throws gives the lease back", "[web][httplib]")
{
    service s;
    support::handlers_that_throw(s, 500);
}

TEST_CASE("httplib: a lease that is lost is answered with 500, unless the handler has answered",
          "[web][httplib]")
{
    service s;
    http_client c{s.port()};
    const auto lost = c.post("/loses", "7");
    CHECK(lost.status == 500);
    CHECK(lost.body.find("lost") != std::string::npos);
    const auto extended = c.post("/extends", "7");
    CHECK(extended.status == 500);
    CHECK(extended.body == lost.body);
    CHECK(c.post("/loses_and_answers", "7").status == 202);
    CHECK(c.post("/loses_and_streams", "7").body == "paid");
    CHECK(http_client{s.port()}.post("/file", "7").status == 200);
}

TEST_CASE("httplib: what a handler has set is taken back when the loss is answered",
          "[web][httplib]")
{
    service s;
    http_client c{s.port()};
    const auto plain = c.post("/loses", "7");
    for (const char* const way : {"length", "chunks"}) {
        const auto lost = http_client{s.port()}.post("/begins_and_extends", way);
        CHECK(lost.status == 500);
        CHECK(lost.body == plain.body);
        CHECK(lost.head.find("chunked") == std::string::npos);
        CHECK(lost.head.find("Location") == std::string::npos);
    }
    CHECK(s.sent == 0);
    CHECK(s.taken_back == 2);
    const auto empty = http_client{s.port()}.post("/empty", "7");
    CHECK(empty.status ==
          500); // an empty answer needs a status: a handler that says nothing has not paid
    CHECK(empty.head.find("Location") == std::string::npos);
    CHECK(soon([&] { return s.store.size() == 0; }));
}

TEST_CASE("httplib: an answer that is made after the handler is covered too", "[web][httplib]")
{
    service s;
    http_client c{s.port()};
    c.begin_post("/rewritten", "7");
    REQUIRE(soon([&] { return s.sending.load(); }));
    CHECK(http_client{s.port()}.post("/once", "7").status == 423);
    s.go = true;
    CHECK(c.reply().body == "paid");
    CHECK(soon([&] { return s.store.size() == 0; }));
}

TEST_CASE("httplib: a handler that moves its hold away keeps the lease no longer than the response",
          "[web][httplib]")
{
    service s;
    http_client c{s.port()};
    CHECK(c.post("/moves", "7").body == "paid");
    CHECK(c.post("/payments", "8").status == 200); // by now the first is over
    REQUIRE_FALSE(s.moved->is_held());
    CHECK(soon([&] { return s.store.size() == 0; }));
}

TEST_CASE("httplib: a client that hangs up leaves the line of a second lock too", "[web][httplib]")
{
    service s;
    const auto held = amux::sync_wait(s.locks.acquire("journal"));
    http_client c{s.port()};
    c.begin_post("/two_locks", "7");
    REQUIRE(soon([&] { return s.store.size() == 2; }));
    c.hang_up();
    CHECK(soon([&] { return s.store.size() == 1; }));
    CHECK(s.at_work == 0);
}

TEST_CASE("httplib: two locks of a request cover an answer that is made after the handler",
          "[web][httplib]")
{
    service s;
    http_client c{s.port()};
    c.begin_post("/two_locks?then=rewritten", "7");
    REQUIRE(soon([&] { return s.sending.load(); }));
    CHECK(s.store.size() == 2);
    s.go = true;
    CHECK(c.reply().body == "paid");
    CHECK(soon([&] { return s.store.size() == 0; }));
}

TEST_CASE("httplib: requests of one connection are locked one after another", "[web][httplib]")
{
    service s;
    http_client c{s.port()};
    for (int n = 0; n != 50; ++n)
        REQUIRE(c.post(n % 2 ? "/payments" : "/once", std::to_string(n)).status == 200);
    CHECK(soon([&] { return s.store.size() == 0; }));
}

TEST_CASE("httplib: a response in chunks is covered to its last byte", "[web][httplib]")
{
    service s;
    support::sent_in_chunks(s);
    CHECK(soon([&] { return s.sent == 1; })); // the handler's own end of it comes too
}

TEST_CASE("httplib: a server that shuts down ends who waits, and lets who works finish",
          "[web][httplib]")
{
    service s;
    support::shut_down_while_busy(s);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a server of Boost.Beast could handle two requests for one thing at a time, or keep a lease for ever.
#include <amux/web_beast.hpp>

#include "support/http_client.hpp"
#include "support/scenarios.hpp"

#include <amux/amux.hpp>
#include <amux/asio_scheduler.hpp>

#include <boost/asio.hpp>
#include <boost/beast.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using namespace std::chrono_literals;
using amux::web_hold;
using asio::awaitable;
using asio::use_awaitable;
using asio::ip::tcp;
using request = http::request<http::string_body>;
using response = http::response<http::string_body>;
using support::hold_slow;
using support::http_client;
using support::soon;

namespace {

std::string account_of(const request& r)
{
    const std::string account = r.body().substr(r.body().find('=') + 1);
    if (account == "?")
        throw std::invalid_argument{"no such account"};
    return account.empty() ? account : "payments:" + account;
}

struct counted {
    explicit counted(std::atomic<int>& n) : number{n} { ++number; }
    counted(const counted&) = delete;
    counted& operator=(const counted&) = delete;
    ~counted() { --number; }
    std::atomic<int>& number;
};

/// A payments service whose handlers do what a test says, on `threads` threads.
class service : public support::payments_watched {
    using lock_type = amux::distributed_lock<amux::memory_backend&>;
    using route = amux::beast_lock<lock_type, decltype(&account_of)>;

public:
    explicit service(unsigned threads = 2, bool locks_on_asio = false)
        : locks{store, locks_on_asio ? static_cast<amux::scheduler&>(here) : thread.loop()}
    {
        asio::co_spawn(io, listen(), asio::detached);
        while (threads-- != 0)
            threads_.emplace_back([this] { io.run(); });
    }
    ~service() { shut_down(); }

    void shut_down()
    {
        if (threads_.empty())
            return;
        closing = true;
        asio::post(io, [this] { acceptor_.close(); });
        clean_end = amux::sync_wait(locks.drain(20s)); // it may need the threads
        go = true;
        soon([this] { return serving == 0; });
        clean_end = *clean_end && amux::sync_wait(locks.drain(20s));
        work_.reset();
        for (auto& t : threads_)
            t.join();
        threads_.clear();
    }

    int port() const { return acceptor_.local_endpoint().port(); }

    std::atomic<bool> closing = false;
    std::atomic<int> serving = 0;

    asio::io_context io;
    amux::memory_backend store;
    amux::loop_thread thread;
    amux::asio_scheduler<asio::io_context::executor_type> here{io.get_executor()};
    lock_type locks;
    std::optional<web_hold> moved; // by a handler, beyond its request

private:
    awaitable<void> listen()
    {
        for (;;) {
            beast::error_code e;
            tcp::socket s = co_await acceptor_.async_accept(asio::make_strand(io),
                                                            asio::redirect_error(use_awaitable, e));
            if (e)
                co_return;
            const auto strand = s.get_executor();
            asio::co_spawn(strand, session(std::move(s)), [](const std::exception_ptr&) {});
        }
    }

    awaitable<void> session(tcp::socket socket)
    {
        beast::tcp_stream stream{std::move(socket)};
        stream.socket().set_option(tcp::no_delay{true});
        beast::flat_buffer buffer;
        bool keep = true;
        while (keep && !closing) {
            request r;
            co_await http::async_read(stream, buffer, r, use_awaitable);
            ++asked;
            const counted now{serving};
            const auto pay = [&](web_hold& h) { return handle(r, h); };
            if (r.target() == "/chunks") {
                const auto write = [&](web_hold&) { return in_chunks(stream); };
                keep = co_await wait_.serve(stream, r, write);
                continue;
            }
            if (r.target() == "/hidden") {
                const auto pay_hidden = [&](web_hold& h) { return in_disguise(r, h); };
                keep = co_await wait_.serve(stream, r, pay_hidden);
                continue;
            }
            if (r.target().starts_with("/no_answer")) {
                const auto nothing = [&](web_hold& h) { return say_nothing(r, h); };
                keep = co_await wait_.serve(stream, r, nothing);
                continue;
            }
            if (r.target() == "/moves") {
                const auto move = [&](web_hold& h) { return move_away(r, h); };
                keep = co_await wait_.serve(stream, r, move);
                continue;
            }
            if (r.target().starts_with("/big")) {
                const auto big = [&](web_hold&) { return much(); };
                if (r.target() == "/big_on_socket")
                    keep = co_await hasty_.serve(stream.socket(), r, big);
                else
                    keep = co_await hasty_.serve(stream, r, big);
                continue;
            }
            if (r.target() == "/cancelled") {
                asio::cancellation_signal stop;
                const auto ex = co_await asio::this_coro::executor;
                asio::steady_timer timer{ex, 50ms};
                timer.async_wait([&](const beast::error_code&) {
                    stop.emit(asio::cancellation_type::terminal);
                });
                keep = co_await asio::co_spawn(
                    ex, wait_.serve(stream, r, pay),
                    asio::bind_cancellation_slot(stop.slot(), use_awaitable));
                continue;
            }
            if (r.target() == "/once") { // on the socket itself
                keep = co_await once_.serve(stream.socket(), r, pay);
                continue;
            }
            const route& way = r.target() == "/at_once"      ? at_once_
                               : r.target() == "/short_wait" ? short_wait_
                                                             : wait_;
            keep = co_await way.serve(stream, r, pay);
        }
    }

    awaitable<void> until(bool slow, web_hold& h)
    {
        asio::steady_timer timer{co_await asio::this_coro::executor};
        while (slow && !go) {
            looks(h);
            timer.expires_after(2ms);
            co_await timer.async_wait(use_awaitable);
        }
    }

    awaitable<response> handle(const request& r, web_hold& h)
    {
        response a{http::status::ok, r.version(), "paid"};
        a.keep_alive(r.keep_alive());
        a.prepare_payload();
        if (r.target() == "/throws")
            throw std::runtime_error{"the bank is closed"};
        if (r.target() == "/closed")
            throw amux::lock_closed_error{"another lock"};
        if (r.target().starts_with("/loses") || r.target() == "/no_answer_lost") {
            amux::sync_wait(store.release(h.lease()->key(), h.lease()->token()));
            soon([&] { return !amux::sync_wait(h.lease()->verify()); });
            if (r.target() == "/loses")
                amux::sync_wait(h.lease()->extend());
            co_return a;
        }
        const bool slow = r.body() == "account=slow";
        begins(slow);
        co_await until(slow, h);
        ends(h);
        co_return a;
    }

    awaitable<response> move_away(const request& r, web_hold& h)
    {
        moved.emplace(std::move(h));
        return handle(r, *moved);
    }
    awaitable<http::message_generator> in_disguise(const request& r, web_hold& h)
    {
        response a = co_await handle(r, h);
        co_return http::message_generator{std::move(a)};
    }

    awaitable<bool> say_nothing(const request& r, web_hold& h)
    {
        if (r.target() == "/no_answer_lost")
            co_await handle(r, h);
        co_return false;
    }

    static awaitable<response> much()
    {
        response a{http::status::ok, 11, std::string(20'000'000, 'x')};
        a.prepare_payload();
        co_return a;
    }

    awaitable<bool> in_chunks(beast::tcp_stream& stream)
    {
        http::response<http::empty_body> head{http::status::ok, 11};
        head.chunked(true);
        http::response_serializer<http::empty_body> serializer{head};
        co_await http::async_write_header(stream, serializer, use_awaitable);
        co_await asio::async_write(stream, http::make_chunk(asio::buffer("part", 4)),
                                   use_awaitable);
        ++at_work;
        asio::steady_timer timer{co_await asio::this_coro::executor};
        while (!go) {
            timer.expires_after(2ms);
            co_await timer.async_wait(use_awaitable);
        }
        co_await asio::async_write(stream, http::make_chunk_last(), use_awaitable);
        co_return true;
    }

    static constexpr amux::acquire_options lease_{.ttl = 10s, .renew = true};
    route wait_{amux::hold_for_request(locks, &account_of, {.lease = lease_})};
    route hasty_{amux::hold_for_request(locks, &account_of, {.lease = lease_}),
                 {.write_timeout = 100ms}};
    route once_{amux::hold_for_request(locks, &account_of, {.lease = lease_, .wait = false})};
    route at_once_{
        amux::hold_for_request(locks, &account_of, {.lease = lease_, .release_on_close = true})};
    route short_wait_{amux::hold_for_request(locks, &account_of, {.lease = {.max_wait = 50ms}})};
    asio::executor_work_guard<asio::io_context::executor_type> work_{io.get_executor()};
    tcp::acceptor acceptor_{io, {asio::ip::address_v4::loopback(), 0}};
    std::vector<std::thread> threads_;
};

} // namespace

TEST_CASE("beast: posts for one account are handled one by one", "[web][beast]")
{
    service s{2, true}; // the locks run on the server's own threads
    support::posts_for_one_account(s);
}

TEST_CASE("beast: posts for different accounts do not wait for each other", "[web][beast]")
{
    service s{1}; // nor does the thread
    support::posts_for_two_accounts(s);
}

TEST_CASE("beast: one that does not wait is refused, one that waits too long also", "[web][beast]")
{
    service s;
    support::refused_for_somebody_else(s);
}

TEST_CASE("beast: a key function that throws or gives nothing is answered with 400", "[web][beast]")
{
    service s;
    support::refused_for_its_key(s);
}

TEST_CASE("beast: a client that hangs up while it waits leaves the line", "[web][beast]")
{
    service s;
    support::gone_while_it_waits(s);
}

TEST_CASE("beast: a client that hangs up is told to the handler, which keeps the lease",
          "[web][beast]")
{
    service s;
    support::gone_while_it_is_handled(s);
}

TEST_CASE("beast: by option the lease of a client that hangs up is given back at once",
          "[web][beast]")
{
    service s;
    support::gone_and_given_back_at_once(s);
}

TEST_CASE("beast: a handler that throws gives the lease back", "[web][beast]")
{
    service s;
    support::handlers_that_throw(s, 0);
}

TEST_CASE("beast: a lease that is lost is answered with 500, unless the handler has answered",
          "[web][beast]")
{
    service s;
    http_client c{s.port()};
    const auto lost = c.post("/loses", "7");
    CHECK(lost.status == 500);
    CHECK(lost.body.find("lost") != std::string::npos);
    CHECK(c.post("/loses_and_answers", "7").status == 200);
}

TEST_CASE("beast: a handler that writes itself, and has not, is answered for with 500",
          "[web][beast]")
{
    service s;
    http_client c{s.port()};
    const auto lost = c.post("/no_answer_lost", "7");
    CHECK(lost.status == 500);
    CHECK(lost.body.find("lost") != std::string::npos);
    const auto held = c.post("/no_answer", "7");
    CHECK(held.status == 500);
    CHECK(held.body.find("not answered") != std::string::npos);
    CHECK(c.post("/hidden", "7").body == "paid"); // the connection is as good as before
}

TEST_CASE("beast: a client that does not read loses its lease after a while", "[web][beast]")
{
    service s;
    http_client c{s.port()};
    for (const char* const path : {"/big", "/big_on_socket"}) {
        http_client deaf{s.port()};
        const int before = s.asked;
        deaf.begin_post(path, "7");
        REQUIRE(soon([&] { return s.asked == before + 1; }));
        CHECK(c.post("/payments", "7").status == 200);
    }
    CHECK(soon([&] { return s.store.size() == 0; }));
}

TEST_CASE("beast: whoever cancels the operation takes the request out of the line", "[web][beast]")
{
    service s;
    auto slow = hold_slow(s);
    CHECK(http_client{s.port()}.post("/cancelled", "slow").status == 0); // the session's affair
    CHECK(s.held_at_end == false);
    s.go = true;
    CHECK(slow.reply().status == 200);
    CHECK(s.paid_slowly == 1);
}

TEST_CASE("beast: an answer to HEAD has no body, and the next one is found", "[web][beast]")
{
    service s;
    http_client c{s.port()};
    c.send("HEAD /payments HTTP/1.1\r\nHost: here\r\n\r\n");
    c.begin_post("/payments", "7");
    const auto refused = c.reply(true);
    CHECK(refused.status == 400);
    CHECK(refused.head.find("Content-Length: 0") == std::string::npos);
    const auto next = c.reply();
    CHECK(next.head.starts_with("HTTP/1.1 200"));
    CHECK(next.body == "paid");
}

TEST_CASE("beast: requests that come before the answer are locked one after another",
          "[web][beast]")
{
    service s;
    http_client c{s.port()};
    std::string all;
    for (int n = 0; n != 50; ++n)
        all += http_client::post_text("/once", n % 2 ? "7" : "8");
    c.send(all);
    for (int n = 0; n != 50; ++n)
        REQUIRE(c.reply().status == 200);
    CHECK(s.paid == 50);
    CHECK(soon([&] { return s.store.size() == 0; }));
}

TEST_CASE("beast: a handler that moves its hold away keeps the lease no longer than the response",
          "[web][beast]")
{
    service s;
    http_client c{s.port()};
    CHECK(c.post("/moves", "7").status == 200);
    CHECK(c.post("/payments", "8").status == 200); // by now the first is over
    REQUIRE_FALSE(s.moved->is_held());
    CHECK(soon([&] { return s.store.size() == 0; }));
}

TEST_CASE("beast: a response in chunks is covered to its last byte", "[web][beast]")
{
    service s;
    support::sent_in_chunks(s);
}

TEST_CASE("beast: a server that shuts down ends who waits, and lets who works finish",
          "[web][beast]")
{
    service s;
    support::shut_down_while_busy(s);
}

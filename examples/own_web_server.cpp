// SPDX-License-Identifier: BSL-1.0
// A lock for the requests of a server that amux does not know. Here it is a small one: a request is a line, the
// name of an account, and a response is a line too.
#include "check.hpp"

#include <amux/amux.hpp>
#include <amux/connection_watch.hpp>
#include <amux/web.hpp>

#include <array>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;

// What such servers have, in one form or another: a request, a response, and a socket below.
struct request_line {
    std::string account;
};

class exchange {
public:
    exchange(int socket, std::string account) : socket_{socket}, request_{std::move(account)} {}
    const request_line& request() const { return request_; }
    int socket() const { return socket_; }
    bool answered() const { return answered_; }
    void answer(int status, const std::string& body)
    {
        answered_ = true;
        const std::string line = std::to_string(status) + ' ' + body + '\n';
        check(::send(socket_, line.data(), line.size(), MSG_NOSIGNAL) != 0, "something is sent");
    }

private:
    int socket_;
    request_line request_;
    bool answered_ = false;
};

// [adapter]
/// Runs `handler(exchange, hold)`, a coroutine, under the lock of the request.
template <class Lock, class Handler>
amux::task<> serve_locked(amux::connection_watch& watch, const Lock& lock, exchange& e,
                          Handler handler)
{
    // 1. Whoever hangs up leaves the line. A server that tells by itself gives its own stop token.
    const auto connection = watch.watch(e.socket());

    // 2. The lock, before the handler; or an answer instead of it.
    amux::web_hold hold = co_await lock.begin(e.request(), connection.token());
    if (!hold) {
        e.answer(hold.answer().status, hold.answer().body);
        co_return;
    }

    // 3. The handler sees the hold. An error of amux may mean that the lease is lost.
    try {
        co_await handler(e, hold);
    } catch (const amux::lock_error&) {
        if (!hold.is_lost())
            throw; // as everything else: the hold gives the lease back
    }
    if (!e.answered() && hold.is_lost()) {
        const amux::web_answer loss = hold.loss();
        e.answer(loss.status, loss.body);
    }

    // 4. The last byte is on its way: here, because `answer` blocks.
    hold.give_back();
}
// [/adapter]

std::string account_of(const request_line& r)
{
    return r.account;
}

/// What a client sees of its response: the status, and 0 when there is none.
int status_at(int socket)
{
    std::array<char, 256> text{};
    const auto size = ::recv(socket, text.data(), text.size() - 1, MSG_DONTWAIT);
    return size > 0 ? std::atoi(text.data()) : 0;
}

struct connection {
    connection() { check(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0, "a socket"); }
    connection(const connection&) = delete;
    connection& operator=(const connection&) = delete;
    ~connection()
    {
        hang_up();
        ::close(ends[1]);
    }
    void hang_up()
    {
        if (ends[0] >= 0)
            ::close(std::exchange(ends[0], -1));
    }
    std::array<int, 2> ends{}; // the client's, the server's
};

} // namespace

int main()
{
    amux::memory_backend store;
    amux::event_loop loop;
    amux::distributed_lock locks{store, loop};
    const auto lock = amux::hold_for_request(locks, account_of, {.lease = {.ttl = 10s}});

    int paid = 0;
    const auto pay = [&](exchange& e, amux::web_hold& hold) -> amux::task<> {
        check(hold.is_held() && store.size() == 1, "alone");
        co_await loop.sleep_for(50ms); // asks a bank
        ++paid;
        e.answer(200, "paid");
    };
    amux::connection_watch watch;
    connection first;
    connection second;
    connection gone;
    exchange a{first.ends[1], "7"};
    exchange b{second.ends[1], "7"};
    exchange c{gone.ends[1], "7"};
    exchange nobody{second.ends[1], ""};
    amux::task_group requests{loop};
    for (exchange* e : {&a, &b, &c})
        requests.spawn(serve_locked(watch, lock, *e, pay));
    gone.hang_up(); // while it waits behind the others
    loop.block_on([](amux::task_group& g) -> amux::task<> { co_await g.join(); }(requests));

    check(status_at(first.ends[0]) == 200 && status_at(second.ends[0]) == 200, "both are paid");
    check(paid == 2, "whoever has hung up is not");
    loop.block_on(serve_locked(watch, lock, nobody, pay));
    check(status_at(second.ends[0]) == 400, "a request must say what it is about");
    check(store.size() == 0, "no lease is left");
    std::printf("%d payments, one after another; one client hung up and left the line\n", paid);
}

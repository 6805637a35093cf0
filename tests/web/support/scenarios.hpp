// SPDX-License-Identifier: BSL-1.0
// Without this file each adapter would be tested for what its own author thought of.
#pragma once

#include "http_client.hpp"

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace support {

/// What a test and the handlers of its payments service tell each other. The service has a `store`, a `port()` and
/// `shut_down()`, and the routes /payments, /once, /short_wait, /at_once, /throws, /closed and /chunks.
struct payments_watched {
    std::atomic<bool> go = false; // for handlers of the account "slow"
    std::atomic<int> asked = 0;
    std::atomic<int> at_work = 0;
    std::atomic<int> most_at_work = 0;
    std::atomic<bool> told_closed = false;
    std::atomic<bool> told_lost = false;
    std::atomic<bool> held_at_end = false;
    std::optional<bool> clean_end;
    long paid = 0;
    long paid_slowly = 0;

    void begins(bool slow)
    {
        const int now = ++at_work;
        for (int most = most_at_work;
             now > most && !most_at_work.compare_exchange_weak(most, now);) {
        }
        ++(slow ? paid_slowly : paid); // unprotected but for the lock
    }
    void looks(const auto& hold)
    {
        told_closed = hold.closed_token().stop_requested();
        told_lost = hold.lost_token().stop_requested();
    }
    void ends(const auto& hold)
    {
        held_at_end = hold.is_held();
        --at_work;
    }
};

/// A request that holds the key of "slow" until `go`.
template <class Service>
http_client hold_slow(Service& s, const char* path = "/payments")
{
    http_client c{s.port()};
    const int before = s.at_work;
    c.begin_post(path, "slow");
    REQUIRE(soon([&] { return s.at_work > before; }));
    return c;
}

/// Both ends of each connection are among them.
inline std::size_t open_files()
{
    const std::filesystem::directory_iterator all{"/proc/self/fd"};
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

template <class Service>
bool nothing_is_held(const Service& s)
{
    return soon([&] { return s.store.size() == 0; });
}

template <class Service>
void posts_for_one_account(Service& s)
{
    std::atomic<int> good = 0;
    std::vector<std::thread> clients;
    for (int n = 0; n != 8; ++n)
        clients.emplace_back([&] {
            http_client c{s.port()};
            for (int i = 0; i != 25; ++i)
                good += c.post("/payments", "7").status == 200;
        });
    for (auto& c : clients)
        c.join();
    CHECK(good == 200);
    CHECK(s.paid == 200);
    CHECK(s.most_at_work == 1);
    CHECK(nothing_is_held(s));
}

template <class Service>
void posts_for_two_accounts(Service& s)
{
    auto slow = hold_slow(s);
    CHECK(http_client{s.port()}.post("/payments", "7").status == 200);
    s.go = true;
    CHECK(slow.reply().body == "paid");
    CHECK(s.held_at_end);
}

template <class Service>
void refused_for_somebody_else(Service& s)
{
    auto slow = hold_slow(s);
    const auto busy = http_client{s.port()}.post("/once", "slow");
    CHECK(busy.status == 423);
    CHECK(busy.head.find("Retry-After: 1\r\n") != std::string::npos);
    CHECK(busy.head.find("application/problem+json") != std::string::npos);
    CHECK(busy.body.find("\"status\":423") != std::string::npos);
    CHECK(http_client{s.port()}.post("/short_wait", "slow").status == 503);
    s.go = true;
    CHECK(slow.reply().status == 200);
}

template <class Service>
void refused_for_its_key(Service& s)
{
    http_client c{s.port()};
    CHECK(c.post("/payments", "?").status == 400);
    CHECK(c.post("/payments", "").status == 400);
    CHECK(s.paid == 0);
    CHECK(s.store.size() == 0);
    CHECK(c.post("/payments", "7").status == 200);
}

template <class Service>
void gone_while_it_waits(Service& s)
{
    auto slow = hold_slow(s);
    const std::size_t before = open_files();
    {
        http_client half{s.port()};
        half.begin_post("/payments", "slow");
        half.end_sending();
        CHECK(half.reply().status !=
              200); // some servers answer, others hang up too; the key is still held
    }
    REQUIRE(soon([&] { return open_files() == before; }));
    {
        http_client gone{s.port()};
        gone.begin_post("/payments", "slow");
        gone.send("POST /early"); // what is not read yet does not hide it
        REQUIRE(soon([&] { return s.asked == 3; }));
    }
    REQUIRE(soon([&] { return open_files() == before; })); // the server has done with it, too
    s.go = true;
    CHECK(slow.reply().status == 200);
    CHECK(nothing_is_held(s));
    CHECK(s.paid_slowly == 1);
}

template <class Service>
void gone_while_it_is_handled(Service& s)
{
    hold_slow(s).hang_up();
    CHECK(soon([&] { return s.told_closed.load(); }));
    CHECK_FALSE(s.told_lost);
    CHECK(s.store.size() == 1);
    CHECK(http_client{s.port()}.post("/once", "slow").status == 423);
    s.go = true;
    CHECK(nothing_is_held(s));
    CHECK(s.held_at_end);
}

template <class Service>
void gone_and_given_back_at_once(Service& s)
{
    hold_slow(s, "/at_once").hang_up();
    CHECK(nothing_is_held(s));
    CHECK(soon([&] { return s.told_lost.load(); }));
    s.go = true;
    CHECK(soon([&] { return s.at_work == 0; }));
    CHECK_FALSE(s.held_at_end);
}

/// `status`: 0 where a server hangs up.
template <class Service>
void handlers_that_throw(Service& s, int status)
{
    CHECK(http_client{s.port()}.post("/throws", "7").status == status);
    CHECK(http_client{s.port()}.post("/closed", "7").status == status); // but the lease is held
    CHECK(nothing_is_held(s));
    CHECK(http_client{s.port()}.post("/payments", "7").status == 200);
}

template <class Service>
void sent_in_chunks(Service& s)
{
    http_client c{s.port()};
    c.begin_post("/chunks", "slow");
    REQUIRE(soon([&] { return s.at_work == 1; }));
    REQUIRE(s.store.size() == 1); // else the next one would wait for `go`
    CHECK(http_client{s.port()}.post("/once", "slow").status == 423);
    s.go = true;
    CHECK(c.reply().body == "part");
    CHECK(nothing_is_held(s));
}

template <class Service>
void shut_down_while_busy(Service& s)
{
    auto slow = hold_slow(s);
    http_client waiting{s.port()};
    waiting.begin_post("/payments", "slow");
    REQUIRE(soon([&] { return s.asked == 2; }));
    std::thread end{[&] { s.shut_down(); }};
    CHECK(waiting.reply().status == 503);
    CHECK(slow.reply().status == 200);
    end.join();
    CHECK(s.clean_end == true);
    CHECK(s.store.size() == 0);
}

} // namespace support

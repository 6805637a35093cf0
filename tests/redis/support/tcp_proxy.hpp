// SPDX-License-Identifier: BSL-1.0
// Without this file no test puts a bad network between a client and its server.
#pragma once

#include "redis/support/loopback.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>

namespace support {

/// A TCP proxy on loopback, on a thread of its own, that misbehaves as it is told, on every connection.
///
/// A fault is in force when the call for it returns. It knows where messages end, so that a reply can be lost, repeated
/// or late as a whole. Thread-safe, though not to be called by a filter.
class tcp_proxy {
public:
    enum way : unsigned char { to_server, to_client };

    struct message {
        way direction{};
        int connection = 0; // 1 for the first one accepted
        std::string_view bytes;
    };
    /// What becomes of a message. Those behind it on its connection wait for it.
    struct fate {
        enum class kind : unsigned char { pass, lost, twice, reset };
        kind what = kind::pass;
        std::chrono::milliseconds late{0};
    };
    using filter = std::function<fate(const message&)>;

    explicit tcp_proxy(int server_port) : server_port_{server_port}
    {
        listener_ = listen_on_loopback(port_);
        thread_ = std::thread{[this] { run(); }};
    }
    tcp_proxy(const tcp_proxy&) = delete;
    tcp_proxy& operator=(const tcp_proxy&) = delete;
    ~tcp_proxy()
    {
        tell([](controls& c) { c.end = true; });
        thread_.join();
    }

    /// New connections go to another server.
    void lead_to(int server_port) { server_port_ = server_port; }

    int port() const { return port_.number(); }
    std::string url() const { return "redis://127.0.0.1:" + std::to_string(port()); }

    /// Takes every fault back; what was held up moves on.
    void heal()
    {
        tell([](controls& c) { c = controls{.end = c.end}; });
        lose(to_server, 0);
        lose(to_client, 0);
        repeat(to_server, 0);
        repeat(to_client, 0);
    }
    /// Asks `f`, on the proxy's thread, about every message. Lifetime: what it refers to outlives the proxy.
    void decide(filter f)
    {
        tell([&](controls& c) { c.decide = std::make_shared<const filter>(std::move(f)); });
    }
    /// The next messages that go this way vanish.
    void lose(way w, int messages) { lose_[w] = messages; }
    /// The next messages that go this way arrive twice.
    void repeat(way w, int messages) { repeat_[w] = messages; }
    /// Everything takes so long, each way.
    void delay(std::chrono::milliseconds d)
    {
        tell([&](controls& c) { c.delay = d; });
    }
    /// One byte at a time. Zero: as fast as it goes.
    void trickle(std::chrono::milliseconds between_bytes)
    {
        tell([&](controls& c) { c.trickle = between_bytes; });
    }
    /// Nothing moves this way, and nobody is told: no FIN, no reset.
    void stall(way w, bool on = true)
    {
        tell([&](controls& c) { c.stalled[w] = on; });
    }
    void black_hole(bool on = true)
    {
        tell([&](controls& c) { c.stalled = {on, on}; });
    }
    /// Resets what is connected now.
    void reset_all()
    {
        tell([](controls& c) { ++c.resets; });
    }
    /// New connections are refused, as by a machine without a server.
    void refuse(bool on = true)
    {
        tell([&](controls& c) { c.refuse = on; });
    }
    /// After so many more bytes this way their connection is reset; once.
    void cut_after(way w, std::size_t bytes)
    {
        tell([&](controls& c) { c.cut[w] = std::make_shared<std::size_t>(bytes); });
    }

    int accepted() const { return accepted_; }
    int connected() const { return connected_; }
    int messages(way w) const { return messages_[w]; }

private:
    using time_point = std::chrono::steady_clock::time_point;

    struct controls {
        bool end = false;
        bool refuse = false;
        int resets = 0;
        std::array<bool, 2> stalled{};
        std::chrono::milliseconds delay{0};
        std::optional<std::chrono::milliseconds> trickle{};
        std::array<std::shared_ptr<std::size_t>, 2> cut{};
        std::shared_ptr<const filter> decide{};
    };
    struct piece {
        time_point due;
        std::string bytes;
    };
    struct stream {
        std::string unparsed;
        std::deque<piece> queue;
        time_point next_byte;
        bool nonsense = false; // no messages to be seen in it any more
        bool ended = false;
    };
    struct pair {
        int id = 0;
        descriptor client;
        descriptor server;
        std::array<stream, 2> streams{}; // to the server, to the client
        bool broken = false;

        descriptor& from(way w) { return w == to_server ? client : server; }
        descriptor& to(way w) { return w == to_server ? server : client; }
    };

    template <class F>
    void tell(F f)
    {
        std::unique_lock hold{mutex_};
        f(controls_);
        const int mine = ++told_;
        wake_();
        heard_it_.wait(hold, [&] { return heard_ >= mine; });
    }

    void run()
    {
        int resets = 0;
        bool refuses = false;
        for (;;) {
            std::unique_lock hold{mutex_};
            const controls now = controls_;
            const int heard = told_;
            hold.unlock();

            if (now.end || std::exchange(resets, now.resets) < now.resets) {
                for (pair& p : pairs_)
                    p.broken = true;
            }
            remove_ended();
            if (std::exchange(refuses, now.refuse) != now.refuse)
                refuse_at(listener_, now.refuse);

            hold.lock();
            heard_ = heard;
            hold.unlock();
            heard_it_.notify_all();
            if (now.end)
                return;

            wait(now);
            wake_.clear();
            while (!now.refuse && accept_one()) {
            }
            for (pair& p : pairs_) {
                move(p, to_server, now);
                move(p, to_client, now);
            }
            remove_ended();
        }
    }

    void remove_ended()
    {
        pairs_.remove_if([](pair& p) {
            if (p.broken) {
                reset(p.client);
                reset(p.server);
            }
            return p.broken || (p.streams[0].ended && p.streams[0].queue.empty() &&
                                p.streams[1].ended && p.streams[1].queue.empty());
        });
        connected_ = static_cast<int>(pairs_.size());
    }

    void wait(const controls& now)
    {
        std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}};
        if (!now.refuse)
            fds.push_back({listener_.get(), POLLIN, 0});
        auto due = time_point::max();
        for (pair& p : pairs_) {
            for (const way w : {to_server, to_client}) {
                const stream& s = p.streams[w];
                if (now.stalled[w])
                    continue;
                if (!s.ended && s.queue.size() < 10'000)
                    fds.push_back({p.from(w).get(), POLLIN, 0});
                if (s.queue.empty())
                    continue;
                const auto next = std::max(s.queue.front().due, s.next_byte);
                if (next <= std::chrono::steady_clock::now())
                    fds.push_back({p.to(w).get(), POLLOUT, 0});
                else
                    due = std::min(due, next);
            }
        }
        int limit = -1;
        if (due != time_point::max()) {
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(
                std::max(due, std::chrono::steady_clock::now()) - std::chrono::steady_clock::now());
            limit = static_cast<int>(left.count());
        }
        poll(fds.data(), static_cast<nfds_t>(fds.size()), limit);
    }

    bool accept_one()
    {
        descriptor client = accept_from(listener_);
        if (!client)
            return false;
        ++accepted_;
        descriptor server = connect_to_loopback(server_port_);
        if (!server) {
            reset(client); // nearest to "refused" that can be had after accepting
            return true;
        }
        pair p;
        p.id = accepted_;
        p.client = std::move(client);
        p.server = std::move(server);
        pairs_.push_back(std::move(p));
        return true;
    }

    void move(pair& p, way w, const controls& now)
    {
        if (p.broken || now.stalled[w])
            return;
        stream& s = p.streams[w];
        char buffer[16'384];
        while (!s.ended && s.queue.size() < 10'000) {
            const auto got = recv(p.from(w).get(), buffer, sizeof buffer, 0);
            if (got > 0) {
                s.unparsed.append(buffer, static_cast<std::size_t>(got));
                split(p, w, now);
            } else if (got == 0) {
                s.ended = true;
                enqueue(s, std::exchange(s.unparsed, {}), now.delay);
            } else {
                p.broken = p.broken || (errno != EAGAIN && errno != EINTR);
                break;
            }
        }
        send_due(p, w, now);
        if (!p.broken && s.ended && s.queue.empty())
            shutdown(p.to(w).get(), SHUT_WR);
    }

    void split(pair& p, way w, const controls& now)
    {
        stream& s = p.streams[w];
        while (!s.unparsed.empty()) {
            const auto size = s.nonsense ? std::nullopt : message_size(s.unparsed);
            s.nonsense = !size;
            if (s.nonsense)
                return enqueue(s, std::exchange(s.unparsed, {}), now.delay);
            if (*size == 0)
                return;
            ++messages_[w];
            std::string bytes = s.unparsed.substr(0, *size);
            s.unparsed.erase(0, *size);
            fate f;
            if (now.decide)
                f = (*now.decide)({w, p.id, bytes});
            if (count_down(lose_[w]))
                f.what = fate::kind::lost;
            if (count_down(repeat_[w]))
                f.what = fate::kind::twice;
            if (f.what == fate::kind::reset)
                p.broken = true;
            if (f.what == fate::kind::twice)
                enqueue(s, bytes, now.delay + f.late);
            if (f.what == fate::kind::pass || f.what == fate::kind::twice)
                enqueue(s, std::move(bytes), now.delay + f.late);
        }
    }

    static bool count_down(std::atomic<int>& left)
    {
        int seen = left;
        while (seen > 0) {
            if (left.compare_exchange_weak(seen, seen - 1))
                return true;
        }
        return false;
    }

    static void enqueue(stream& s, std::string bytes, std::chrono::milliseconds late)
    {
        if (!bytes.empty())
            s.queue.push_back({std::chrono::steady_clock::now() + late, std::move(bytes)});
    }

    void send_due(pair& p, way w, const controls& now)
    {
        stream& s = p.streams[w];
        while (!s.queue.empty() && !p.broken) {
            const auto time = std::chrono::steady_clock::now();
            piece& first = s.queue.front();
            if (first.due > time || s.next_byte > time)
                return;
            std::size_t size = now.trickle ? 1 : first.bytes.size();
            const bool cuts = now.cut[w] && *now.cut[w] > 0;
            if (cuts)
                size = std::min(size, *now.cut[w]);
            const auto sent = send(p.to(w).get(), first.bytes.data(), size, MSG_NOSIGNAL);
            if (sent < 0) {
                p.broken = errno != EAGAIN && errno != EINTR;
                return;
            }
            first.bytes.erase(0, static_cast<std::size_t>(sent));
            if (first.bytes.empty())
                s.queue.pop_front();
            if (now.trickle)
                s.next_byte = time + *now.trickle;
            if (cuts && (*now.cut[w] -= static_cast<std::size_t>(sent)) == 0)
                p.broken = true;
        }
    }

    std::atomic<int> server_port_;
    reserved_port port_;
    descriptor listener_;
    wake_up wake_;
    std::mutex mutex_;
    std::condition_variable heard_it_;
    controls controls_;
    int told_ = 0;
    int heard_ = 0; // of what was told
    std::array<std::atomic<int>, 2> lose_{};
    std::array<std::atomic<int>, 2> repeat_{};
    std::array<std::atomic<int>, 2> messages_{};
    std::atomic<int> accepted_{0};
    std::atomic<int> connected_{0};
    std::list<pair> pairs_; // the thread's own
    std::thread thread_;
};

} // namespace support

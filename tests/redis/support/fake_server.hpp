// SPDX-License-Identifier: BSL-1.0
// Without this file no test meets a server that answers nonsense, or nothing.
#pragma once

#include "redis/support/loopback.hpp"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <list>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>

namespace support {

/// What a fake server says to a command.
struct fake_answer {
    std::string bytes; // none: silence
    bool then_close = false;
};

/// `text` as a string in Redis' protocol.
inline std::string bulk(std::string_view text)
{
    return '$' + std::to_string(text.size()) + "\r\n" + std::string{text} + "\r\n";
}

/// A server on loopback, on a thread of its own, that says whatever the test wants.
class fake_server {
public:
    using words = std::vector<std::string>;
    using script = std::function<fake_answer(const words&)>;

    /// Asks `answer`, on the server's thread, about every command.
    explicit fake_server(script answer) : answer_{std::move(answer)}
    {
        listener_ = listen_on_loopback(port_);
        thread_ = std::thread{[this] { run(); }};
    }
    fake_server(const fake_server&) = delete;
    fake_server& operator=(const fake_server&) = delete;
    ~fake_server()
    {
        end_ = true;
        wake_();
        thread_.join();
    }

    int port() const { return port_.number(); }
    std::string url() const { return "redis://127.0.0.1:" + std::to_string(port()); }
    int accepted() const { return accepted_; }
    int commands() const { return commands_; }

    /// What a healthy server says to everything that a client may ask before its first script.
    static fake_answer greet(const words& command)
    {
        std::string name = command.front();
        std::transform(name.begin(), name.end(), name.begin(),
                       [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
        if (name == "TIME") {
            const auto now = std::chrono::duration_cast<std::chrono::microseconds>(
                                 std::chrono::system_clock::now().time_since_epoch())
                                 .count();
            return {"*2\r\n" + bulk(std::to_string(now / 1'000'000)) +
                    bulk(std::to_string(now % 1'000'000))};
        }
        if (name == "INFO")
            return {
                bulk("# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n"
                     "# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"
                     "# Replication\r\nrole:master\r\n# Cluster\r\ncluster_enabled:0\r\n")};
        if (name == "PING")
            return {"+PONG\r\n"};
        if (name == "AUTH" || name == "SELECT" || name == "CLIENT")
            return {"+OK\r\n"};
        if (name == "CONFIG")
            return {"*0\r\n"};
        return {"-ERR unknown command '" + command.front() + "'\r\n"};
    }
    /// What a healthy server says to a script of ours: its clock, `said`, `more`, and the number of the command, which is
    /// the last of its words.
    static fake_answer answer(const words& command, int said,
                              std::initializer_list<std::string> more = {})
    {
        std::string bytes = '*' + std::to_string(3 + more.size()) + "\r\n:" + microseconds_now() +
                            "\r\n:" + std::to_string(said) + "\r\n";
        for (const std::string& part : more)
            bytes += part;
        return {bytes + ':' + command.back() + "\r\n"};
    }
    static std::string microseconds_now()
    {
        return std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(
                                  std::chrono::system_clock::now().time_since_epoch())
                                  .count());
    }
    static bool is_script(const words& command)
    {
        return command.front().size() >= 4 && (command.front()[0] | 32) == 'e' &&
               (command.front()[1] | 32) == 'v';
    }

private:
    struct client {
        descriptor socket;
        std::string unread;
    };

    void run()
    {
        while (!end_) {
            std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
            for (const client& c : clients_)
                fds.push_back({c.socket.get(), POLLIN, 0});
            poll(fds.data(), static_cast<nfds_t>(fds.size()), -1);
            wake_.clear();
            while (descriptor s = accept_from(listener_)) {
                ++accepted_;
                clients_.push_back({std::move(s), {}});
            }
            clients_.remove_if([this](client& c) { return !serve(c); });
        }
    }

    /// False when the connection is over.
    bool serve(client& c)
    {
        char buffer[16'384];
        for (;;) {
            const auto got = recv(c.socket.get(), buffer, sizeof buffer, 0);
            if (got < 0)
                break;
            if (got == 0)
                return false;
            c.unread.append(buffer, static_cast<std::size_t>(got));
        }
        for (;;) {
            const auto size = message_size(c.unread);
            if (!size || *size == 0)
                return size.has_value();
            const words command = words_of(std::string_view{c.unread}.substr(0, *size));
            c.unread.erase(0, *size);
            ++commands_;
            const fake_answer a = answer_(command);
            for (std::size_t sent = 0; sent < a.bytes.size();) {
                const auto n = send(c.socket.get(), a.bytes.data() + sent, a.bytes.size() - sent,
                                    MSG_NOSIGNAL);
                if (n > 0) {
                    sent += static_cast<std::size_t>(n);
                    continue;
                }
                if (n < 0 && errno != EAGAIN && errno != EINTR)
                    return false;
                pollfd room{c.socket.get(), POLLOUT, 0};
                poll(&room, 1, 100);
                if (end_)
                    return false;
            }
            if (a.then_close)
                return false;
        }
    }

    script answer_;
    reserved_port port_;
    descriptor listener_;
    wake_up wake_;
    std::atomic<bool> end_{false};
    std::atomic<int> accepted_{0};
    std::atomic<int> commands_{0};
    std::list<client> clients_; // the thread's own
    std::thread thread_;
};

} // namespace support

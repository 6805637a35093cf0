// SPDX-License-Identifier: BSL-1.0
#include "scan.hpp"

#include <amux/clock.hpp>
#include <amux/detail/redis_address.hpp>
#include <amux/detail/redis_reply.hpp>
#include <amux/detail/redis_settings.hpp>
#include <amux/detail/redis_socket.hpp>
#include <amux/detail/redis_tls.hpp>
#include <amux/detail/redis_trouble.hpp>
#include <amux/detail/redis_url.hpp>
#include <amux/error.hpp>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <set>
#include <utility>

#include <poll.h>

namespace amuxctl {

namespace {

using amux::detail::redis_settings;

/// A connection on which one command follows the other. Each ends within the time limit of a command.
class line {
public:
    explicit line(redis_settings s) : s_{std::move(s)}, tls_context_{s_}
    {
        connect();
        if (s_.tls)
            require(tls_.begin(tls_context_, s_));
        if (!s_.password.empty() && !s_.username.empty())
            log_in({"AUTH", s_.username, s_.password});
        else if (!s_.password.empty())
            log_in({"AUTH", s_.password});
        if (s_.database != 0)
            ask({"SELECT", std::to_string(s_.database)});
    }

    amux::detail::redis_reply_ptr ask(std::initializer_list<std::string_view> words)
    {
        auto reply = exchange(words);
        if (reply->type == REDIS_REPLY_ERROR) {
            const auto t =
                amux::detail::redis_reply_trouble(amux::detail::redis_text(*reply), s_.where());
            throw amux::backend_error{t.kind, t.text};
        }
        return reply;
    }

private:
    struct free_reader {
        void operator()(redisReader* r) const { redisReaderFree(r); }
    };

    [[noreturn]] void fail(const std::string& what) const
    {
        throw amux::backend_error{amux::backend_error_kind::not_applied,
                                  "amux: the Redis server at " + s_.where() + ": " + what};
    }
    void require(const std::string& trouble) const
    {
        if (!trouble.empty())
            fail(trouble);
    }

    /// Some servers repeat what they do not take, password and all.
    void log_in(std::initializer_list<std::string_view> words)
    {
        if (exchange(words)->type == REDIS_REPLY_ERROR)
            fail("refuses AUTH");
    }

    void connect()
    {
        std::string trouble = "no address";
        using amux::detail::redis_addresses;
        auto where = s_.path.empty() ? redis_addresses::look_up(s_.host, s_.port, 0)
                                     : redis_addresses{{amux::detail::redis_address{s_.path}}, {}};
        if (!where.trouble.empty())
            fail(where.trouble);
        for (const auto& address : where.found) {
            socket_ = {};
            limit_ = amux::clock::now() + s_.connect_timeout;
            int error = socket_.connect(address);
            if (error == 0)
                error = wait_for(POLLOUT) ? socket_.connected() : ETIMEDOUT;
            if (error == 0)
                return;
            trouble = "connect: " + amux::detail::redis_socket::text_of(error);
        }
        fail(trouble);
    }

    bool wait_for(short events) const
    {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit_ - amux::clock::now());
        pollfd p{socket_.fd(), events, 0};
        return left.count() > 0 && poll(&p, 1, static_cast<int>(left.count())) > 0;
    }

    amux::detail::redis_reply_ptr exchange(std::initializer_list<std::string_view> words)
    {
        limit_ = amux::clock::now() + s_.command_timeout;
        std::string text;
        amux::detail::redis_command_text command{text};
        command.begin(words.size());
        for (const std::string_view w : words)
            command.add(w);
        send(text);
        for (;;) {
            void* reply = nullptr;
            if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK)
                fail("the answer is not understood");
            if (reply)
                return amux::detail::redis_reply_ptr{static_cast<redisReply*>(reply)};
            receive();
        }
    }

    /// With TLS some of it may stay until the two sides have agreed.
    void send(const std::string& text)
    {
        out_ += text;
        std::string bytes;
        if (tls_.active())
            require(tls_.encrypt(out_, bytes));
        else
            bytes.swap(out_);
        std::string_view left = bytes;
        while (!left.empty()) {
            const auto done = socket_.write(left);
            if (done.error != 0)
                fail(amux::detail::redis_socket::text_of(done.error));
            left.remove_prefix(done.bytes);
            if (done.bytes == 0 && !wait_for(POLLOUT))
                fail("it takes no request");
        }
    }

    void receive()
    {
        if (!wait_for(POLLIN))
            fail("no answer in " + std::to_string(s_.command_timeout.count()) + " ms");
        char bytes[16 * 1024];
        const auto got = socket_.read(bytes, sizeof bytes);
        if (got.ended)
            fail("it has closed the connection");
        if (got.error != 0)
            fail(amux::detail::redis_socket::text_of(got.error));
        std::string plain{bytes, got.bytes};
        if (tls_.active()) {
            plain.clear();
            require(tls_.decrypt({bytes, got.bytes}, plain));
            send({}); // the handshake may have something to say, and what has waited for it may go
        }
        redisReaderFeed(reader_.get(), plain.data(), plain.size());
    }

    const redis_settings s_;
    amux::detail::redis_tls_context tls_context_;
    amux::detail::redis_socket socket_;
    amux::detail::redis_tls tls_;
    std::unique_ptr<redisReader, free_reader> reader_{redisReaderCreate()};
    std::string out_; // not yet sent
    amux::clock::time_point limit_;
};

/// So that it means itself in a pattern.
std::string escaped(std::string_view text)
{
    std::string out;
    for (const char c : text) {
        if (c == '*' || c == '?' || c == '[' || c == ']' || c == '\\')
            out += '\\';
        out += c;
    }
    return out;
}

} // namespace

void require_server(std::string_view url)
{
    line{amux::detail::redis_url::read(url)};
}

std::vector<std::string> held_keys(std::string_view url, std::string_view prefix)
{
    const redis_settings s = amux::detail::redis_url::read(url);
    const std::size_t front = s.lock_prefix.size();
    const std::string pattern = escaped(s.lock_prefix + std::string{prefix}) + "*";
    line to{s};
    std::set<std::string> found;
    std::string cursor = "0";
    do {
        const auto reply = to.ask({"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"});
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2)
            break;
        cursor = amux::detail::redis_text(*reply->element[0]);
        const redisReply& names = *reply->element[1];
        for (std::size_t n = 0; n != names.elements; ++n)
            found.emplace(amux::detail::redis_text(*names.element[n]).substr(front));
    } while (cursor != "0");
    return {found.begin(), found.end()};
}

} // namespace amuxctl

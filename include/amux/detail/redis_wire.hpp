// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/redis_address.hpp>
#include <amux/detail/redis_reply.hpp>
#include <amux/detail/redis_settings.hpp>
#include <amux/detail/redis_socket.hpp>
#include <amux/detail/redis_tls.hpp>

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace amux::detail {

/// A socket, with TLS or without: commands go in, replies come out. Nothing blocks.
///
/// All members need the mutex, but for `receive`: reading is the I/O thread's alone, and only TLS, where reading and
/// writing share a state, takes the mutex for it.
class redis_wire {
public:
    int fd() const noexcept { return socket_.fd(); }

    /// Begins to connect. Returns: an error, or 0.
    int connect(const redis_address& to) noexcept { return socket_.connect(to); }
    /// How that has ended, once it can be written.
    int connected() const noexcept { return socket_.connected(); }
    /// Goes on in TLS. Returns: trouble; empty: none.
    std::string secure(const redis_tls_context& context, const redis_settings& s)
    {
        return tls_.begin(context, s);
    }

    void close() noexcept
    {
        socket_ = {};
        tls_ = {};
        out.clear();
        bytes_.clear();
        sent_ = 0;
        write_trouble_.clear();
        read_trouble_.clear();
        reader_ = {};
    }

    /// What is to be sent is appended here.
    std::string out;

    /// Sends as much as goes.
    void send() noexcept
    {
        try {
            flush();
        } catch (...) {
            write_trouble_ = "no memory"; // so short that it needs none
        }
    }
    /// The other side does not take it as fast as it comes.
    bool unsent() const noexcept { return sent_ != bytes_.size(); }
    /// Met by whoever sent; the I/O thread draws the consequence.
    const std::string& write_trouble() const noexcept { return write_trouble_; }

    /// Reads what has come. Without the mutex.
    void receive(std::mutex& mutex);
    /// What was read, until `forget_replies`. The I/O thread's alone.
    const std::vector<redis_reply_ptr>& replies() const noexcept { return replies_; }
    void forget_replies() noexcept { replies_.clear(); }
    std::string take_read_trouble() noexcept { return std::exchange(read_trouble_, {}); }

private:
    void flush();
    void feed(std::string_view bytes)
    {
        if (auto trouble = reader_.feed(bytes, replies_); !trouble.empty())
            read_trouble_ = "the answer of the server is " + trouble;
    }

    redis_socket socket_;
    redis_tls tls_;
    std::string bytes_; // on their way
    std::size_t sent_ = 0; // of them
    std::string write_trouble_;

    // The I/O thread's alone.
    redis_reply_reader reader_;
    std::vector<redis_reply_ptr> replies_;
    std::string read_trouble_;
};

inline void redis_wire::flush()
{
    if (tls_.active())
        write_trouble_ = tls_.encrypt(out, bytes_);
    else if (!unsent())
        bytes_.swap(out);
    while (unsent() && write_trouble_.empty()) {
        const auto done = socket_.write(std::string_view{bytes_}.substr(sent_));
        sent_ += done.bytes;
        if (done.error != 0)
            write_trouble_ = redis_socket::text_of(done.error);
        else if (done.bytes == 0)
            return;
    }
    bytes_.clear();
    sent_ = 0;
}

inline void redis_wire::receive(std::mutex& mutex)
{
    char bytes[16 * 1024];
    const auto got = socket_.read(bytes, sizeof bytes);
    if (got.ended)
        read_trouble_ = "the server has closed it";
    else if (got.error != 0)
        read_trouble_ = redis_socket::text_of(got.error);
    if (got.bytes == 0)
        return;
    if (!tls_.active())
        return feed({bytes, got.bytes});
    std::string plain;
    {
        const std::lock_guard lock{mutex};
        read_trouble_ = tls_.decrypt({bytes, got.bytes}, plain);
    }
    if (read_trouble_.empty())
        feed(plain);
}

} // namespace amux::detail

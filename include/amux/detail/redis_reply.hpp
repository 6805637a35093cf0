// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <hiredis/hiredis.h>

namespace amux::detail {

struct free_redis_reply {
    void operator()(redisReply* r) const noexcept { freeReplyObject(r); }
};
using redis_reply_ptr = std::unique_ptr<redisReply, free_redis_reply>;

inline std::string_view redis_text(const redisReply& r) noexcept
{
    return r.str ? std::string_view{r.str, static_cast<std::size_t>(r.len)} : std::string_view{};
}

/// Cuts what a server sends into replies.
class redis_reply_reader {
public:
    /// No reply that amux asks for is longer, as long as keys and metadata are not.
    static constexpr std::size_t longest = 1 << 20;

    /// Adds to `replies` those that are complete.
    ///
    /// Returns: what is wrong with what the server sends; empty: nothing.
    std::string feed(std::string_view bytes, std::vector<redis_reply_ptr>& replies)
    {
        if (!reader_)
            return "no memory to read with";
        unfinished_ += bytes.size();
        if (redisReaderFeed(reader_.get(), bytes.data(), bytes.size()) != REDIS_OK)
            return trouble();
        for (;;) {
            void* reply = nullptr;
            if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK)
                return trouble();
            if (!reply)
                break;
            replies.emplace_back(static_cast<redisReply*>(reply));
            unfinished_ = reader_->len - reader_->pos;
        }
        return unfinished_ > longest ? "longer than a megabyte" : "";
    }

private:
    /// Of one reply: what has more was not said to amux.
    static constexpr std::size_t most_parts = 64;

    struct free_reader {
        void operator()(redisReader* r) const noexcept { redisReaderFree(r); }
    };
    using reader = std::unique_ptr<redisReader, free_reader>;

    static reader make_reader()
    {
        reader r{redisReaderCreate()};
        if (r)
            r->fn = with_limit();
        return r;
    }

    static const redisReplyObjectFunctions* usual()
    {
        static const redisReplyObjectFunctions* const functions = [] {
            const reader r{redisReaderCreate()};
            return r->fn;
        }();
        return functions;
    }
    static redisReplyObjectFunctions* with_limit()
    {
        static redisReplyObjectFunctions functions = [] {
            redisReplyObjectFunctions f = *usual();
            f.createArray = &create_array;
            return f;
        }();
        return &functions;
    }
    /// hiredis 0.14 makes room for as many parts as are announced, be it a billion. `Size` differs between its versions.
    template <class Size>
    static void* create_array(const redisReadTask* task, Size parts)
    {
        if (static_cast<std::size_t>(parts) > most_parts)
            return nullptr;
        return usual()->createArray(task, parts);
    }

    std::string trouble() const
    {
        if (reader_->err == REDIS_ERR_OOM)
            return "longer than what amux asks for";
        return std::string{"not understood: "} + reader_->errstr;
    }

    reader reader_ = make_reader();
    std::size_t unfinished_ = 0; // bytes since the last complete reply
};

/// Appends commands to what is sent to a server: `begin(2)`, then two `add`s.
class redis_command_text {
public:
    explicit redis_command_text(std::string& out) noexcept : out_{out} {}

    void begin(std::size_t words) { number('*', words); }
    void add(std::string_view word) { add(word, {}); }
    /// One word, of two parts.
    void add(std::string_view head, std::string_view tail)
    {
        number('$', head.size() + tail.size());
        out_.append(head).append(tail).append("\r\n");
    }

private:
    void number(char mark, std::size_t n)
    {
        out_ += mark;
        out_.append(std::to_string(n)).append("\r\n");
    }

    std::string& out_;
};

} // namespace amux::detail

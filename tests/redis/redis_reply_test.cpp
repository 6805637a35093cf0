// SPDX-License-Identifier: BSL-1.0
// Without this file a server that answers nonsense could make a lease out of nothing, or fill the memory.
#include <amux/detail/redis_operation.hpp>
#include <amux/detail/redis_reply.hpp>
#include <amux/detail/redis_script.hpp>
#include <amux/detail/redis_settings.hpp>

#include <redis/support/redis_server.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

using namespace std::chrono_literals;
using namespace std::string_literals;
using amux::detail::redis_operation;
using amux::detail::redis_text;
using asks = redis_operation::kind;
using verdict = redis_operation::verdict;

namespace {

struct operation : redis_operation {
    using redis_operation::redis_operation;
    void answered() noexcept override {}
};

std::vector<amux::detail::redis_reply_ptr> replies_in(std::string_view bytes, std::string& trouble)
{
    amux::detail::redis_reply_reader reader;
    std::vector<amux::detail::redis_reply_ptr> replies;
    for (const char c : bytes) {
        if (trouble = reader.feed({&c, 1}, replies); !trouble.empty())
            break;
    }
    return replies;
}

verdict read(redis_operation& op, std::string_view bytes)
{
    std::string trouble;
    const auto replies = replies_in(bytes, trouble);
    REQUIRE(replies.size() == 1);
    return redis_operation::time_of(*replies.front()) ? op.read(*replies.front())
                                                      : verdict::nonsense;
}

} // namespace

TEST_CASE("redis reply: it is read whole, however it is cut", "[redis]")
{
    std::string trouble;
    const auto replies = replies_in("+OK\r\n*2\r\n:1\r\n$3\r\na\r\n\r\n-ERR x\r\n$-1\r\n", trouble);
    REQUIRE(replies.size() == 4);
    CHECK(redis_text(*replies[0]) == "OK");
    CHECK(redis_text(*replies[1]->element[1]) == "a\r\n");
    CHECK(replies[2]->type == REDIS_REPLY_ERROR);
    CHECK(redis_text(*replies[3]).empty());
    CHECK(trouble.empty());
}

TEST_CASE("redis reply: what is no reply, or too long, is trouble", "[redis]")
{
    std::string trouble;
    replies_in("HTTP/1.1 400 Bad Request\r\n", trouble);
    CHECK(!trouble.empty());

    std::vector<amux::detail::redis_reply_ptr> replies;
    {
        amux::detail::redis_reply_reader gives_up;
        CHECK(!gives_up.feed("nonsense\r\n", replies).empty());
        CHECK(!gives_up.feed("+OK\r\n", replies).empty()); // and reads no more
        CHECK(replies.empty());
    }
    amux::detail::redis_reply_reader reader;
    trouble = reader.feed("$500000000\r\n", replies);
    const std::string chunk(16 * 1024, 'x');
    int chunks = 0;
    for (; trouble.empty() && chunks < 100; ++chunks)
        trouble = reader.feed(chunk, replies);
    CHECK(trouble.find("megabyte") != std::string::npos);
    CHECK(chunks == 64);
}

TEST_CASE("redis reply: a long one is no trouble once it is complete", "[redis]")
{
    amux::detail::redis_reply_reader reader;
    std::vector<amux::detail::redis_reply_ptr> replies;
    std::string one = "$16000\r\n" + std::string(16'000, 'x') + "\r\n";
    for (int n = 0; n < 200; ++n)
        REQUIRE(reader.feed(one, replies).empty());
    CHECK(replies.size() == 200);
}

TEST_CASE("redis reply: a grant has its fence, a refusal the time of the holder", "[redis]")
{
    operation granted{asks::acquire, "k", "t", 1s};
    CHECK(read(granted, "*3\r\n:17\r\n:1\r\n$16\r\n1790000000000001\r\n") == verdict::answered);
    CHECK(granted.yes);
    CHECK(granted.fence == 1'790'000'000'000'001u);

    operation refused{asks::acquire, "k", "t", 1s};
    CHECK(read(refused, "*3\r\n:17\r\n:0\r\n:250\r\n") == verdict::answered);
    CHECK(!refused.yes);
    CHECK(refused.remaining == 250ms);

    operation for_ever{asks::acquire, "k", "t", 1s};
    CHECK(read(for_ever, "*3\r\n:17\r\n:0\r\n:-1\r\n") == verdict::answered);
    CHECK(!for_ever.remaining);
}

TEST_CASE("redis reply: too late is no answer", "[redis]")
{
    operation op{GENERATE(asks::acquire, asks::extend, asks::release, asks::look), "k", "t", 1s};
    CHECK(read(op, "*2\r\n:17\r\n:-1\r\n") == verdict::too_late);
}

TEST_CASE("redis reply: nonsense is not believed", "[redis]")
{
    const char* const bytes =
        GENERATE("+OK\r\n", ":1\r\n", "$-1\r\n", "*0\r\n", "*1\r\n:1\r\n", "*2\r\n+1\r\n:1\r\n",
                 "*2\r\n:1\r\n+1\r\n", "*2\r\n:1\r\n:2\r\n", "*2\r\n:17\r\n:1\r\n",
                 "*3\r\n:17\r\n:1\r\n:1\r\n", "*3\r\n:17\r\n:1\r\n$2\r\n-1\r\n",
                 "*3\r\n:17\r\n:1\r\n$21\r\n999999999999999999999\r\n");
    operation op{asks::acquire, "k", "t", 1s};
    INFO(bytes);
    CHECK(read(op, bytes) == verdict::nonsense);
}

TEST_CASE("redis script: the server knows each by the name that we have reckoned", "[redis]")
{
    support::redis_server server;
    using namespace amux::detail;
    for (const auto* script :
         {&redis_acquire, &redis_extend, &redis_release, &redis_look, &redis_look_at_ttl}) {
        CHECK(server.cli("SCRIPT", "LOAD", script->text).text == script->name());
    }
    for (const std::size_t size : {0u, 55u, 56u, 63u, 64u, 65u, 119u, 120u}) {
        const std::string comment = "--" + std::string(size, 'x');
        const auto name = sha1::hex(comment);
        CHECK(server.cli("SCRIPT", "LOAD", comment).text == std::string(name.begin(), name.end()));
    }
}

TEST_CASE("redis command: it carries keys and texts of any bytes", "[redis]")
{
    const amux::detail::redis_settings settings{amux::redis_options{}};
    const std::string key{"a\0b\r\n", 5};
    operation op{asks::acquire, key, "t", 1500ms, "text"};
    op.number = 12;
    std::string out;
    op.write(amux::detail::redis_command_text{out}, settings, 17us);
    CHECK(out.starts_with("*11\r\n$7\r\nEVALSHA\r\n$40\r\n"));
    CHECK(
        out.ends_with("$17\r\n{amux}:lock:a\0b\r\n\r\n$12\r\n{amux}:fence\r\n$2\r\n17\r\n"
                      "$10\r\namux1:1:t:\r\n$1\r\nt\r\n$4\r\n1500\r\n$4\r\ntext\r\n$2\r\n12\r\n"s));
}

TEST_CASE("redis_reply_reader: a reply of more parts than amux asks for is refused at its head",
          "[redis]")
{
    const std::string head = GENERATE("*65\r\n"s, "*1073741824\r\n"s, "*2\r\n*2147483647\r\n"s);
    std::string trouble;
    CHECK(replies_in(head, trouble).empty());
    CHECK_FALSE(trouble.empty());
}

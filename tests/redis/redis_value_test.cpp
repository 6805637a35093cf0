// SPDX-License-Identifier: BSL-1.0
// Without this file a token or metadata with unlucky bytes could be taken for something else.
#include <amux/detail/redis_value.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <string>
#include <string_view>

using amux::detail::redis_value;

TEST_CASE("redis_value: token, fence and metadata are told apart, whatever they consist of",
          "[redis]")
{
    using std::string;
    const string token = GENERATE(string{}, string{"abc"}, string{"12:34:"}, string{"a\0b\r\n%", 6},
                                  string{"amux1:3:abc:7:x"}, string(70'000, ':'));
    const string metadata =
        GENERATE(string{}, string{"host=a"}, string{"9:8:7"}, string{"\0\xFF", 2});
    const string text = redis_value::beginning(token) + "1790000000000000:" + metadata;
    const redis_value v = redis_value::read(text);
    CHECK(v.token == token);
    CHECK(v.fence == 1'790'000'000'000'000u);
    CHECK(v.metadata == metadata);
    CHECK(redis_value::own(text).has_value());
}

TEST_CASE("redis_value: people can read it", "[redis]")
{
    CHECK(redis_value::beginning("0123456789abcdef") + "42:host=a" ==
          "amux1:16:0123456789abcdef:42:host=a");
}

TEST_CASE("redis_value: the whole of a stranger's value is his token", "[redis]")
{
    const char* const text = GENERATE(
        "", "maintenance", "amux1", "amux1:", "amux1:3", "amux1:3:", "amux1:3:abc",
        "amux1:3:abc:", "amux1:3:abc:7", "amux1:4:abc:7:", "amux1:-1:abc:7:", "amux1:3:abc:x:",
        "amux1:99999999999999999999:abc:7:", "amux1:3:abc:-7:", "amux1: 3:abc:7:", "amux1:3-abc:7:",
        "amux2:3:abc:7:", "amux1:3:abc:99999999999999999999:");
    const redis_value v = redis_value::read(text);
    CHECK(v.token == text);
    CHECK(!v.fence);
    CHECK(v.metadata.empty());
    CHECK(!redis_value::own(text));
}

// SPDX-License-Identifier: BSL-1.0
// Without this file a mistyped address could reach another server than was meant, or print a password.
#include <amux/detail/redis_settings.hpp>
#include <amux/detail/redis_url.hpp>
#include <amux/redis_options.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

using namespace std::chrono_literals;
using amux::redis_options;
using amux::detail::redis_settings;
using amux::detail::redis_url;

static_assert(std::is_trivially_copyable_v<redis_options>);

namespace {

template <class F>
std::string refusal(F make)
{
    try {
        make();
    } catch (const std::invalid_argument& e) {
        return e.what();
    }
    return "taken";
}

std::string refusal_of(const redis_options& o)
{
    return refusal([&o] { redis_settings{o}; });
}

std::string refusal_of(std::string_view url)
{
    return refusal([url] { redis_url::read(url); });
}

} // namespace

TEST_CASE("redis_url: a host alone has the defaults of the options", "[redis]")
{
    const redis_settings s = redis_url::read("redis://db.example");
    const redis_settings plain{redis_options{.host = "db.example"}};
    CHECK(s.where() == "db.example:6379");
    CHECK(s.database == 0);
    CHECK(s.username.empty());
    CHECK(s.password.empty());
    CHECK(!s.tls);
    CHECK(s.lock_prefix == "{amux}:lock:");
    CHECK(s.lock_prefix == plain.lock_prefix);
    CHECK(s.client_name == plain.client_name);
    CHECK(s.connect_timeout == plain.connect_timeout);
    CHECK(s.command_timeout == plain.command_timeout);
}

TEST_CASE("redis_url: every part is read", "[redis]")
{
    const redis_settings s = redis_url::read(
        "redis://us%65r:p%40ss%2Fw%3a%25@10.0.0.1:7000/12"
        "?prefix=my%20app&connect_timeout=250&command_timeout=1500&client_name=worker");
    CHECK(s.username == "user");
    CHECK(s.password == "p@ss/w:%");
    CHECK(s.where() == "10.0.0.1:7000");
    CHECK(s.database == 12);
    CHECK(s.lock_prefix == "{my app}:lock:");
    CHECK(s.channel_prefix == "{my app}:free:");
    CHECK(s.fence_key == "{my app}:fence");
    CHECK(s.connect_timeout == 250ms);
    CHECK(s.command_timeout == 1500ms);
    CHECK(s.client_name == "worker");
}

TEST_CASE("redis_url: a password may come without a user", "[redis]")
{
    const redis_settings s = redis_url::read("redis://:secret@h/");
    CHECK(s.username.empty());
    CHECK(s.password == "secret");
    CHECK(s.database == 0);
}

TEST_CASE("redis_url: an IPv6 address stands in brackets", "[redis]")
{
    const redis_settings s = redis_url::read("redis://[::1]:6380/2");
    CHECK(s.host == "::1");
    CHECK(s.where() == "[::1]:6380");
    CHECK(s.database == 2);
    CHECK(redis_url::read("redis://[fe80::1]").port == 6379);
}

TEST_CASE("redis_url: a Unix socket has a path, and its database in the query", "[redis]")
{
    const redis_settings s = redis_url::read("unix://:pw@/run/redis%20a/s?database=3&prefix=x");
    CHECK(s.path == "/run/redis a/s");
    CHECK(s.where() == "/run/redis a/s");
    CHECK(s.password == "pw");
    CHECK(s.database == 3);
    CHECK(s.fence_key == "{x}:fence");
}

TEST_CASE("redis_url: the database has two names, and a path may have an '@'", "[redis]")
{
    CHECK(redis_url::read("redis://h?db=4").database == 4);
    CHECK(redis_url::read("unix:///run/a@b").path == "/run/a@b");
}

#ifdef AMUX_REDIS_TLS
TEST_CASE("redis_url: TLS has files", "[redis]")
{
    const redis_settings s =
        redis_url::read("rediss://h?ca_file=/a&certificate_file=/c&key_file=/k");
    CHECK(s.tls);
    CHECK(s.ca_file == "/a");
    CHECK(s.certificate_file == "/c");
    CHECK(s.key_file == "/k");
}
#endif

TEST_CASE("redis_url: what is wrong is named", "[redis]")
{
    struct wrong {
        const char* url;
        const char* part;
    };
    const auto [url, part] = GENERATE(
        wrong{"", "scheme"}, wrong{"localhost", "scheme"}, wrong{"http://h", "scheme"},
        wrong{"redis:h", "scheme"}, wrong{"redis://", "host"}, wrong{"redis://:6379", "host"},
        wrong{"redis://[::1", "bracket"}, wrong{"redis://[::1]x", "host"},
        wrong{"redis://h:", "port"}, wrong{"redis://h:0", "port"}, wrong{"redis://h:70000", "port"},
        wrong{"redis://h:12x", "port"}, wrong{"redis://h:-1", "port"},
        wrong{"redis://h/x", "database"}, wrong{"redis://h/1/2", "database"},
        wrong{"redis://h/-1", "database"}, wrong{"redis://h/99999999999", "database"},
        wrong{"redis://u%4@h", "user name"}, wrong{"redis://:%zz@h", "password"},
        wrong{"redis://u@h", "password"}, wrong{"redis://h?color=red", "parameter"},
        wrong{"redis://h?prefix=", "prefix"}, wrong{"redis://h?prefix=%7Ba%7D", "prefix"},
        wrong{"redis://h?prefix=a%00", "prefix"}, wrong{"redis://h?command_timeout=0", "time-out"},
        wrong{"redis://h?command_timeout=fast", "time-out"},
        wrong{"redis://h?connect_timeout=-5", "time-out"},
        wrong{"redis://h?client_name=two%20words", "client name"}, wrong{"redis://h#x", "fragment"},
        wrong{"unix://h/path", "Unix socket"}, wrong{"unix://", "Unix socket"},
        wrong{"redis://h?ca_file=x", "TLS"}, wrong{"redis://h?prefix=%2/", "parameter"},
        wrong{"redis://h?prefix=%2g", "parameter"});
    INFO(url);
    const std::string text = refusal_of(std::string_view{url});
    CHECK(text.starts_with("amux: Redis"));
    CHECK(text.find(part) != text.npos);
}

TEST_CASE("redis_url: a password whose special characters are not encoded is never repeated",
          "[redis]")
{
    const std::string url = GENERATE(
        "redis://:hun/ter2@host:6379/0", "redis://user:hun?ter2@host", "redis://user:hun#ter2@host",
        "redis://user:hun:ter2@host:x", "redis://user:hun@ter2@host:x", "redis://hun:ter2",
        "redis://user:hun%ter2@host", "redis://h/0?hun=ter2", "rediss://user:hunter2@host:x");
    INFO(url);
    const std::string text = refusal_of(std::string_view{url});
    CHECK(text != "taken");
    CHECK(text.find("hun") == text.npos);
    CHECK(text.find("ter2") == text.npos);
}

TEST_CASE("redis_options: what cannot be is refused, and named", "[redis]")
{
    using std::string_view;
    const std::string long_path(101, 'x');
    CHECK(refusal_of(redis_options{}) == "taken");
    CHECK(refusal_of({.host = ""}).find("host") != std::string::npos);
    CHECK(refusal_of({.host = string_view{"a\0b", 3}}).find("host") != std::string::npos);
    CHECK(refusal_of({.port = 0}).find("port") != std::string::npos);
    CHECK(refusal_of({.port = 65'536}).find("port") != std::string::npos);
    CHECK(refusal_of({.path = long_path}).find("path") != std::string::npos);
    CHECK(refusal_of({.host = "", .port = 0, .path = "/s"}) == "taken");
    CHECK(refusal_of({.username = "u"}).find("password") != std::string::npos);
    CHECK(refusal_of({.database = -1}).find("database") != std::string::npos);
    CHECK(refusal_of({.key_prefix = ""}).find("prefix") != std::string::npos);
    CHECK(refusal_of({.key_prefix = "a{b"}).find("prefix") != std::string::npos);
    CHECK(refusal_of({.connect_timeout = 0ms}).find("connect time-out") != std::string::npos);
    CHECK(refusal_of({.command_timeout = (std::chrono::milliseconds::max)()})
              .find("command time-out") != std::string::npos);
    CHECK(refusal_of({.connect_timeout = 25h}).find("connect time-out") != std::string::npos);
    CHECK(refusal_of({.client_name = "a b"}).find("client name") != std::string::npos);
    CHECK(refusal_of({.client_name = "a\x7f"}).find("client name") != std::string::npos);
    CHECK(refusal_of({.path = std::string_view{"/a\0b", 4}}).find("path") != std::string::npos);
    redis_options tls;
    tls.tls.certificate_file = "c";
    CHECK(refusal_of(tls).find("not enabled") != std::string::npos);
    tls.tls.certificate_file = {};
    tls.tls.key_file = "k";
    CHECK(refusal_of(tls).find("not enabled") != std::string::npos);
    tls.tls.key_file = {};
    tls.tls.server_name = "s";
    CHECK(refusal_of(tls).find("not enabled") != std::string::npos);
    tls.tls.enabled = true;
    tls.path = "/a";
    CHECK(refusal_of(tls).find("TCP only") != std::string::npos);
}

TEST_CASE("redis_options: the settings own their text", "[redis]")
{
    std::string host = "a.host.with.a.long.name.example";
    std::string prefix = "a prefix that is not short either";
    const redis_settings s{redis_options{.host = host, .key_prefix = prefix}};
    host.assign(host.size(), '-');
    prefix.assign(prefix.size(), '-');
    CHECK(s.host == "a.host.with.a.long.name.example");
    CHECK(s.fence_key == "{a prefix that is not short either}:fence");
}

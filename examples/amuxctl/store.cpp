// SPDX-License-Identifier: BSL-1.0
#include "store.hpp"

#include "json.hpp"
#include "report.hpp"
#include "scan.hpp"
#include "wake.hpp"

#include <amux/detail/lease_terms.hpp>
#include <amux/distributed_lock.hpp>
#include <amux/loop_thread.hpp>
#include <amux/redis_backend.hpp>
#include <amux/sync_wait.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>

#include <poll.h>
#include <sys/signalfd.h>

namespace amuxctl {

namespace {

using namespace std::chrono_literals;
using lease_locks = amux::distributed_lock<amux::redis_backend>;

constexpr milliseconds watch_interval = 200ms;

std::string seconds_text(milliseconds d)
{
    char text[32];
    std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(d.count()) / 1000);
    return text;
}

/// For people. What has no fence is no lease of ours, but the key is taken all the same.
std::string holder(const amux::lease_info& lease)
{
    if (!lease.fence)
        return "something else than amux";
    return lease.metadata.empty() ? "somebody" : lease.metadata;
}

json_line described(std::string_view key, const amux::lease_info& lease)
{
    json_line line;
    line.add("key", key).add("token", lease.token);
    // As text: fences have 64 bits, and many a reader of JSON has 53.
    lease.fence ? line.add("fence", std::to_string(*lease.fence)) : line.null("fence");
    lease.remaining ? line.add("remaining_ms", std::int64_t{lease.remaining->count()})
                    : line.null("remaining_ms");
    line.add("metadata", lease.metadata);
    return line;
}

void print(const std::string& line)
{
    std::puts(line.c_str());
}

void print_lease(const request& r, std::string_view key, const amux::lease_info& lease)
{
    if (r.json)
        return print(described(key, lease).done());
    std::string text = plain_text(key) + "  token " + plain_text(lease.token);
    text += lease.fence ? "  fence " + std::to_string(*lease.fence)
                        : "  (no lease: set by something else than amux)";
    if (lease.remaining)
        text += "  " + seconds_text(*lease.remaining) + " left";
    if (!lease.metadata.empty())
        text += "  " + plain_text(lease.metadata);
    print(text);
}

bool is_written()
{
    return std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
}

/// What was written is out. Nobody who reads a part takes it for the whole.
exit_code finished(const request& r, exit_code code)
{
    if (is_written())
        return code;
    tell(r.json, "failed", {}, "the standard output cannot be written");
    return exit_code::failed;
}

std::string now_text()
{
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

/// Blocks the signals that end a watch. Returns: what can be read when one has come.
descriptor blocked_signals()
{
    sigset_t ends;
    sigemptyset(&ends);
    for (const int s : {SIGINT, SIGTERM, SIGHUP})
        sigaddset(&ends, s);
    sigprocmask(SIG_BLOCK, &ends, nullptr);
    return descriptor{signalfd(-1, &ends, SFD_CLOEXEC)};
}

class watcher {
public:
    explicit watcher(const request& r) : r_{r}, backend_{std::string_view{r.url}} {}

    /// Until a signal comes, or nobody reads.
    exit_code run()
    {
        look(); // the first trouble ends it, later ones do not
        while (is_written() && !interrupted()) {
            try {
                look();
                troubled_ = false;
            } catch (const amux::backend_error& e) {
                if (!troubled_)
                    reporter{r_}.warning("trouble", e.what());
                troubled_ = true;
            }
        }
        return finished(r_, exit_code::done);
    }

private:
    void look()
    {
        const auto now = amux::sync_wait(backend_.inspect(r_.key));
        if (seen_ && (!now || now->token != seen_->token))
            tell("released", *seen_);
        if (now && (!seen_ || now->token != seen_->token))
            tell("acquired", *now);
        if (!now && !begun_)
            tell_free();
        begun_ = true;
        seen_ = now;
    }

    /// By a signal, or because nobody reads any more: who waits for a line to be refused may wait for ever.
    bool interrupted() const
    {
        pollfd fds[] = {{signals_.get(), POLLIN, 0}, {STDOUT_FILENO, 0, 0}};
        return poll(fds, 2, static_cast<int>(watch_interval.count())) > 0;
    }

    void tell(const char* event, const amux::lease_info& lease) const
    {
        if (r_.json)
            return print(described(r_.key, lease)
                             .add("event", std::string_view{event})
                             .add("time", now_text())
                             .done());
        std::printf("%s %s  ", now_text().c_str(), event);
        print_lease(r_, r_.key, lease);
    }
    void tell_free() const
    {
        json_line line;
        line.add("key", r_.key).add("event", std::string_view{"free"}).add("time", now_text());
        print(r_.json ? line.done() : now_text() + " free      " + plain_text(r_.key));
    }

    const request& r_;
    const descriptor signals_ = blocked_signals(); // before the backend starts its thread
    amux::redis_backend backend_;
    bool begun_ = false;
    bool troubled_ = false;
    std::optional<amux::lease_info> seen_;
};

} // namespace

void require_url(const std::string& url)
{
    try {
        amux::detail::redis_url::read(url);
    } catch (const std::invalid_argument&) {
        throw usage_error{amux::detail::what_of(std::current_exception())};
    }
}

std::string url_for(const request& r)
{
    std::string url = r.url;
    const auto add = [&](const char* name, milliseconds limit) {
        if (url.find(std::string{name} + "=") != url.npos)
            return;
        url += url.find('?') == url.npos ? '?' : '&';
        url += name + ("=" + std::to_string(limit.count()));
    };
    const milliseconds limit = std::clamp(r.ttl / 4, 100ms, 2'000ms);
    add("command_timeout", limit);
    add("connect_timeout", (std::min)(limit, 1'000ms));
    return url;
}

exit_code inspect(const request& r)
{
    require_server(r.url);
    amux::redis_backend backend{std::string_view{r.url}};
    const auto lease = amux::sync_wait(backend.inspect(r.key));
    if (lease)
        print_lease(r, r.key, *lease);
    else if (!r.json)
        print(plain_text(r.key) + "  free");
    return finished(r, lease ? exit_code::done : exit_code::no);
}

exit_code list(const request& r)
{
    amux::redis_backend backend{std::string_view{r.url}};
    const reporter say{r};
    exit_code code = exit_code::done;
    for (const std::string& key : held_keys(r.url, r.key)) {
        try {
            if (const auto lease = amux::sync_wait(backend.inspect(key)))
                print_lease(r, key, *lease);
        } catch (const amux::backend_error& e) {
            if (e.kind() != amux::backend_error_kind::permanent)
                throw;
            say.error("store", e.what()); // it names the key; the others are no worse for it
            code = exit_code::store;
        }
    }
    return finished(r, code);
}

bool release_token(const request& r, std::string_view token)
{
    amux::redis_backend backend{url_for(r)};
    return amux::sync_wait(backend.release(r.key, token));
}

exit_code release(const request& r)
{
    require_server(r.url);
    const reporter say{r};
    std::string token = r.token;
    if (r.force) {
        amux::redis_backend backend{std::string_view{r.url}};
        const auto lease = amux::sync_wait(backend.inspect(r.key));
        if (!lease) {
            say.error("free", "free");
            return exit_code::no;
        }
        token = lease->token;
        say.error("forced", "RELEASED BY FORCE from " + holder(*lease) + " (token " + token +
                                "), which may be at work until its next renewal");
    }
    const bool done = release_token(r, token);
    if (!done)
        say.error("refused", "that token does not hold it");
    if (done && r.json)
        print(json_line{}
                  .add("key", r.key)
                  .add("event", std::string_view{"released"})
                  .add("token", token)
                  .done());
    return finished(r, done ? exit_code::done : exit_code::no);
}

exit_code watch(const request& r)
{
    require_server(r.url);
    return watcher{r}.run();
}

std::string holder_of(const request& r)
{
    amux::redis_backend backend{url_for(r)};
    const auto lease = amux::sync_wait(backend.inspect(r.key));
    if (!lease)
        return "it was held, and is free by now";
    return "held by " + holder(*lease) +
           (lease->remaining ? ", its lease lasts " + seconds_text(*lease->remaining) : "");
}

} // namespace amuxctl

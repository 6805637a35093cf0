// SPDX-License-Identifier: BSL-1.0
// Two processes contend for a key in a Redis server. One of them is killed while it holds the key, and the other takes
// over as soon as the lease of the dead one has run out. The server is the one in AMUX_REDIS_URL.
#include "check.hpp"

#include <amux/amux.hpp>
#include <amux/redis_backend.hpp>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;

using redis_locks = amux::distributed_lock<amux::redis_backend>;

constexpr auto ttl = 1s;
constexpr std::string_view key = "till";

std::string server()
{
    const char* url = std::getenv("AMUX_REDIS_URL");
    return url ? url : "redis://127.0.0.1:6379";
}

// What each of the two processes does. It writes a line for every event: "anna holds 17".

amux::lock_hooks tell(const std::string& name)
{
    const auto line = [name](const char* what, const amux::lock_event& e) {
        std::printf("%s %s %llu\n", name.c_str(), what,
                    static_cast<unsigned long long>(e.fence.value_or(0)));
        std::fflush(stdout);
    };
    amux::lock_hooks hooks;
    hooks.on_acquire = [line](const amux::lock_event& e) { line("holds", e); };
    hooks.on_release = [line](const amux::lock_event& e) { line("gives back", e); };
    hooks.on_lost = [line](const amux::lock_event& e) {
        line(e.reason == amux::end_reason::aborted ? "is stopped" : "loses", e);
    };
    return hooks;
}

amux::task<> work(redis_locks& locks, amux::event_loop& loop, std::string_view name,
                  std::stop_token stop)
{
    try {
        for (;;) {
            auto lease = co_await locks.acquire(key, {.renew = true, .metadata = name}, stop);
            co_await loop.sleep_for(150ms, lease.lost_token());
            co_await lease.release();
            co_await loop.sleep_for(20ms); // a rest: the other one gets a turn
        }
    } catch (const amux::lock_cancelled_error&) {
        co_return; // it is time to go home
    }
}

/// Works until its standard input ends, also when that is because the demo has died.
int be_a_worker(const std::string& name)
{
    amux::event_loop loop;
    redis_locks locks =
        amux::make_redis_lock(server(), loop, {.default_ttl = ttl, .max_wait = 10s}, tell(name));
    const std::stop_source stop;
    std::thread{[stop]() mutable {
        for (char c = 0; ::read(STDIN_FILENO, &c, 1) > 0;) {
        }
        stop.request_stop();
    }}.detach(); // nothing but the end of the input ends it
    loop.block_on(work(locks, loop, name, stop.get_token()));
    return loop.block_on(locks.drain(5s)) ? 0 : 1;
}

// The demo itself: it starts the two, reads their lines, and kills one.

/// A process that runs this program as a worker; its lines go to `news`.
class worker {
public:
    worker(std::string name, int news) : name_{std::move(name)}
    {
        std::array<int, 2> door{};
        check(::pipe2(door.data(), O_CLOEXEC) == 0, "there is a pipe");
        pid_ = ::fork();
        if (pid_ == 0) {
            ::dup2(door[0], STDIN_FILENO);
            ::dup2(news, STDOUT_FILENO);
            ::execl("/proc/self/exe", "redis", "worker", name_.c_str(), nullptr);
            ::_exit(127);
        }
        check(pid_ > 0, "there is a process");
        ::close(door[0]);
        door_ = door[1];
    }
    worker(const worker&) = delete;
    worker& operator=(const worker&) = delete;
    ~worker() { send(SIGKILL); }

    const std::string& name() const { return name_; }
    void send(int signal) const { ::kill(pid_, signal); }
    void go_home() { ::close(door_); }
    /// Whether it has ended by itself, and in good order.
    bool has_ended_well() const
    {
        int status = 0;
        return ::waitpid(pid_, &status, 0) == pid_ && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }

private:
    std::string name_;
    pid_t pid_ = 0;
    int door_ = -1;
};

struct event {
    std::string who;
    std::string what;
    amux::fencing_token fence = 0;
};

/// The lines of the workers, printed with the time since the start.
class newspaper {
public:
    explicit newspaper(int from) : file_{::fdopen(from, "r")} {}
    newspaper(const newspaper&) = delete;
    newspaper& operator=(const newspaper&) = delete;
    ~newspaper() { std::fclose(file_); }

    /// None when all workers have ended.
    std::optional<event> next()
    {
        char text[200];
        if (!std::fgets(text, sizeof text, file_))
            return std::nullopt;
        std::string line{text};
        const auto first = line.find(' ');
        const auto last = line.rfind(' ');
        event e{line.substr(0, first), line.substr(first + 1, last - first - 1),
                std::strtoull(line.c_str() + last, nullptr, 10)};
        print(e.who, e.what + ", fence " + std::to_string(e.fence));
        return e;
    }
    /// The next grant; to that one, if a name is given.
    event next_grant(std::string_view name = {})
    {
        for (;;) {
            const auto e = next();
            check(e.has_value(), "somebody is there to take the key");
            if (e->what == "holds" && (name.empty() || e->who == name))
                return *e;
        }
    }
    void print(std::string_view who, const std::string& what) const
    {
        const std::chrono::duration<double> t = amux::clock::now() - start_;
        std::printf("%6.2f s  %-5s %s\n", t.count(), std::string{who}.c_str(), what.c_str());
        std::fflush(stdout);
    }

private:
    const amux::clock::time_point start_ = amux::clock::now();
    std::FILE* const file_;
};

/// Kills a worker while it holds the key. Gives the lease that it leaves behind.
amux::lease_info kill_a_holder(newspaper& news, const std::map<std::string, worker*>& workers,
                               redis_locks& locks, amux::event_loop& loop)
{
    for (;;) {
        const event e = news.next_grant();
        const worker& holder = *workers.at(e.who);
        holder.send(SIGSTOP); // so that it does not give the key back in this moment
        const auto lease = loop.block_on(locks.inspect(key));
        if (lease && lease->metadata == e.who) {
            holder.send(SIGKILL);
            news.print(e.who, "IS KILLED, with " + std::to_string(lease->remaining->count()) +
                                  " ms left of its lease");
            return *lease;
        }
        holder.send(SIGCONT); // it had given it back already
    }
}

int demo()
{
    ::alarm(50); // should anything hang
    std::array<int, 2> pipe{};
    check(::pipe2(pipe.data(), O_CLOEXEC) == 0, "there is a pipe");
    worker anna{"anna", pipe[1]};
    worker ben{"ben", pipe[1]};
    ::close(pipe[1]);
    newspaper news{pipe[0]};

    std::map<std::string, int> turns;
    while (turns["anna"] < 3 || turns["ben"] < 3)
        ++turns[news.next_grant().who];

    amux::event_loop loop;
    redis_locks locks = amux::make_redis_lock(server(), loop);
    const amux::lease_info left =
        kill_a_holder(news, {{"anna", &anna}, {"ben", &ben}}, locks, loop);
    const auto killed = amux::clock::now();
    worker& other = left.metadata == "anna" ? ben : anna;
    const event heir = news.next_grant(other.name());
    const auto took =
        std::chrono::duration_cast<std::chrono::milliseconds>(amux::clock::now() - killed);
    news.print(heir.who, "HAS TAKEN OVER, " + std::to_string(took.count()) + " ms after the death");
    check(heir.fence > left.fence, "the fence has risen");

    other.go_home();
    while (news.next()) {
    }
    check(other.has_ended_well(), "the other one has ended in good order");
    check(!loop.block_on(locks.inspect(key)), "no lease is left");
    return 0;
}

} // namespace

int main(int count, char** arguments)
{
    try {
        if (count == 3 && std::string_view{arguments[1]} == "worker")
            return be_a_worker(arguments[2]);
        return demo();
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}

// SPDX-License-Identifier: BSL-1.0
// Without this program no lease is held by a process that can be killed or stopped.
//
// usage: contender url=URL key=KEY [ttl=MS] [wait=MS] [poll=MS] [renew=1] [name=N] [history=FILE] [resource=FILE]
//                  [rounds=N | until=told] [coroutines=N] [keys=N] [work=MS]
//
// With `rounds` or `until` it takes the lease again and again, and adds one to the resource each time; at the end, or
// told `finish`, which asks for one more round of each coroutine, it says `done ROUNDS FAILURES`. Otherwise it does as
// it reads: acquire, held, add, extend, release.
#include "redis/support/protected_resource.hpp"

#include <amux/distributed_lock.hpp>
#include <amux/loop_thread.hpp>
#include <amux/redis_backend.hpp>
#include <amux/spawn.hpp>
#include <amux/sync_wait.hpp>
#include <amux/task.hpp>
#include <amux/task_group.hpp>
#include <amux/testing/history.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace {

using amux::acquired_lock;
using amux::clock;
using amux::task;
using amux::testing::history;
using amux::testing::history_event;
using std::chrono::milliseconds;

class arguments {
public:
    arguments(int count, char** words)
    {
        for (int n = 1; n < count; ++n) {
            const std::string_view word = words[n];
            const auto equals = word.find('=');
            values_[std::string{word.substr(0, equals)}] = word.substr(equals + 1);
        }
    }
    bool has(const char* name) const { return values_.contains(name); }
    std::string text(const char* name, const char* otherwise = "") const
    {
        const auto found = values_.find(name);
        return found == values_.end() ? otherwise : found->second;
    }
    long number(const char* name, long otherwise) const
    {
        return has(name) ? std::atol(text(name).c_str()) : otherwise;
    }

private:
    std::map<std::string, std::string> values_;
};

void say(const std::string& line)
{
    static std::mutex mutex;
    const std::lock_guard hold{mutex};
    std::cout << line << std::endl;
}

/// Lines that a test reads when the process is gone, however it went.
class journal {
public:
    explicit journal(const arguments& a) : process_{a.text("name", "p")}
    {
        if (a.has("history"))
            file_ =
                open(a.text("history").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    journal(const journal&) = delete;
    journal& operator=(const journal&) = delete;
    ~journal()
    {
        if (file_ >= 0)
            close(file_);
    }
    void write(history::kind what, const std::string& key, const std::string& call,
               clock::time_point at = clock::now(), const acquired_lock* l = nullptr)
    {
        if (file_ < 0)
            return;
        history_event e{what, at, process_, key, call};
        if (l != nullptr) {
            e.fence = l->fence();
            e.until = l->valid_until();
        }
        const std::string line = history::to_line(e) + '\n';
        if (::write(file_, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
            std::abort();
    }

private:
    std::string process_;
    int file_ = -1;
};

/// What the coroutines of a process share; all of it is used on the loop.
struct world {
    explicit world(const arguments& a)
        : args{a},
          notes{a},
          backend{std::string_view{url}},
          locks{backend, thread.loop(), lock_options(), hooks()}
    {
        for (long n = 0; n < keys() && a.has("resource"); ++n)
            resources.try_emplace(key_of(n), a.text("resource") + (keys() > 1 ? key_of(n) : ""));
    }
    long keys() const { return args.number("keys", 1); }
    std::string key_of(long n) const
    {
        return args.text("key") + (keys() > 1 ? std::to_string(n) : "");
    }

    amux::distributed_lock_options lock_options() const
    {
        amux::distributed_lock_options o;
        o.default_ttl = milliseconds{args.number("ttl", 1000)};
        o.max_wait = milliseconds{args.number("wait", 60'000)};
        o.poll_interval = milliseconds{args.number("poll", 10'000)};
        o.local_turns = static_cast<unsigned>(args.number("turns", 64));
        return o;
    }
    amux::lock_hooks hooks()
    {
        amux::lock_hooks h;
        h.on_renew = [this](const amux::lock_event& e) {
            if (const auto found = held.find(e.token); found != held.end())
                notes.write(history::kind::believes, e.key, found->second.first, clock::now(),
                            found->second.second);
        };
        if (puppet()) {
            h.on_lost = [](const amux::lock_event& e) { say("lost " + e.key); };
            h.on_error = [](const amux::lock_event& e) { say("trouble " + what_of(e.cause)); };
        }
        return h;
    }
    static std::string what_of(const std::exception_ptr& cause)
    {
        try {
            std::rethrow_exception(cause);
        } catch (const std::exception& e) {
            return e.what();
        }
    }
    bool puppet() const { return !args.has("rounds") && !args.has("until"); }

    const arguments& args;
    std::string url = args.text("url");
    journal notes;
    std::map<std::string, support::protected_resource> resources; // by key
    std::map<std::string, std::pair<std::string, const acquired_lock*>> held; // by token
    std::atomic<bool> last_round{false};
    long rounds = 0;
    long failures = 0;
    amux::loop_thread thread;
    amux::redis_backend backend;
    amux::distributed_lock<amux::redis_backend&> locks;
};

task<> protect(world& w, const acquired_lock& l, milliseconds work)
{
    const auto found = w.resources.find(l.key());
    if (found == w.resources.end())
        co_return;
    support::protected_resource& resource = found->second;
    if (w.args.has("unfenced")) {
        resource.add_unfenced();
        co_return;
    }
    const auto seen = resource.read(*l.fence());
    if (work.count() > 0)
        co_await w.thread.loop().sleep_for(work);
    if (seen)
        resource.write(*l.fence(), *seen + 1);
}

/// True when it had the lease.
task<bool> one_round(world& w, std::string key, std::string call, milliseconds work)
{
    amux::acquire_options o;
    o.renew = w.args.has("renew");
    w.notes.write(history::kind::asked, key, call);
    std::optional<acquired_lock> l;
    try {
        l.emplace(co_await w.locks.acquire(key, o));
    } catch (const amux::lock_error&) {
    }
    if (!l) {
        w.notes.write(history::kind::failed, key, call);
        co_return false;
    }
    w.held[l->token()] = {call, &*l};
    w.notes.write(history::kind::granted, key, call, clock::now(), &*l);
    co_await protect(w, *l, work);
    w.held.erase(l->token());
    // Belief ends with the call of release, before anybody else can be granted: so the clock is read first.
    w.notes.write(history::kind::ended, key, call, clock::now());
    try {
        co_await l->release();
    } catch (const amux::backend_error&) { // it goes on in the background
    }
    co_return true;
}

task<> contend(world& w, long id)
{
    std::mt19937 random{static_cast<unsigned>(getpid() * 1000 + id)};
    const long rounds = w.args.number("rounds", -1);
    const long work = w.args.number("work", 0);
    for (long n = 0; rounds < 0 || n < rounds; ++n) {
        const bool last = w.last_round;
        const std::string key = w.key_of(static_cast<long>(random() % 1'000'000) % w.keys());
        const milliseconds pause{work > 0 ? static_cast<long>(random() % 1'000'000) % work : 0};
        const bool done =
            co_await one_round(w, key, std::to_string(id) + '-' + std::to_string(n), pause);
        ++(done ? w.rounds : w.failures);
        if (rounds > 0 && !done)
            --n;
        if (last && done)
            co_return;
        if (!done)
            co_await w.thread.loop().sleep_for(milliseconds{5});
    }
}

task<> contend_all(world& w)
{
    amux::task_group all{w.thread.loop()};
    for (long id = 0; id < w.args.number("coroutines", 1); ++id)
        all.spawn(contend(w, id));
    co_await all.join();
    co_await w.locks.drain(milliseconds{20'000});
}

void obey(world& w, const std::string& order, std::optional<acquired_lock>& l)
{
    const std::string key = w.args.text("key");
    try {
        if (order == "acquire") {
            amux::acquire_options o;
            o.renew = w.args.has("renew");
            l.reset();
            l.emplace(amux::sync_wait(w.locks.acquire(key, o)));
            say("granted " + std::to_string(l->fence().value_or(0)));
        } else if (order == "held") {
            say("held " + std::to_string(l && l->is_held()));
        } else if (order == "extend") {
            amux::sync_wait(l->extend());
            say("extended");
        } else if (order == "read") {
            const auto seen = w.resources.begin()->second.read(*l->fence());
            say("seen " + (seen ? std::to_string(*seen) : "nothing"));
        } else if (order.starts_with("write ")) {
            say("written " + std::to_string(w.resources.begin()->second.write(
                                 *l->fence(), std::atol(order.c_str() + 6))));
        } else if (order == "release") {
            say("released " + std::to_string(amux::sync_wait(l->release())));
            l.reset();
        } else {
            say("no such order: " + order);
        }
    } catch (const std::exception& e) {
        say("failed " + std::string{e.what()});
    }
}

/// Open files and threads.
std::size_t belongings()
{
    std::size_t count = 0;
    for (const char* const folder : {"/proc/self/fd", "/proc/self/task"}) {
        for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator{folder})
            ++count;
    }
    return count;
}

void be_puppet(const arguments& args)
{
    world w{args};
    std::optional<acquired_lock> l;
    say("ready");
    for (std::string order; std::getline(std::cin, order);)
        obey(w, order, l);
}

void contend(const arguments& args)
{
    std::thread{[] {}}.join(); // with the first one a sanitizer starts a thread of its own
    const std::size_t before = belongings();
    long rounds = 0;
    long failures = 0;
    {
        world w{args};
        say("ready");
        std::thread listener;
        if (args.has("until")) {
            listener = std::thread{[&w] {
                std::string told;
                std::getline(std::cin, told);
                w.last_round = true;
            }};
        }
        amux::sync_wait([](world& on) -> task<> {
            amux::task_group one{on.thread.loop()}; // where everything of `world` is used
            one.spawn(contend_all(on));
            co_await one.join();
        }(w));
        if (listener.joinable())
            listener.join();
        rounds = w.rounds;
        failures = w.failures;
    }
    // A thread that was joined may be listed for a moment yet.
    for (int n = 0; n < 1'000 && belongings() != before; ++n)
        std::this_thread::sleep_for(milliseconds{5});
    say(belongings() == before ? "clean" : "something is left open");
    say("done " + std::to_string(rounds) + ' ' + std::to_string(failures));
}

} // namespace

int main(int count, char** words)
{
    const arguments args{count, words};
    if (args.has("rounds") || args.has("until"))
        contend(args);
    else
        be_puppet(args);
}

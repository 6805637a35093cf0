// SPDX-License-Identifier: BSL-1.0
// Without this program a child may renew or release its parent's leases after a fork, or take the parent's tokens for its own.
#include "support/lease_bench.hpp"

#include <amux/distributed_lock.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/memory_backend.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace std::chrono_literals;
using amux::acquired_lock;
using support::asked;
using course = amux::testing::course;
using operation = amux::testing::operation;

namespace {

int failures = 0;

// One in a frame makes g++ 12 say, in a program that calls its function once, that it is not initialized.
std::unique_ptr<std::stop_source> new_stop_source()
{
    return std::make_unique<std::stop_source>();
}

void check(bool good, const char* what)
{
    if (good)
        return;
    ++failures;
    std::fprintf(stderr, "not so: %s\n", what);
}

/// Runs `f` in a copy of this process, and fails if something failed there.
template <class F>
void in_child(F f)
{
    const pid_t child = fork();
    if (child == 0) {
        failures = 0;
        f();
        std::fflush(nullptr);
        _exit(failures == 0 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    check(child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child was content");
}

/// Whether a call of `op` was made since the calls were forgotten, with this token if one is given.
bool asked_for(const support::lease_bench& b, operation op, std::string_view token = {})
{
    for (const auto& call : b.store.calls()) {
        if (call.op == op && (token.empty() || call.token == token))
            return true;
    }
    return false;
}

void a_held_lease_is_the_parents()
{
    support::lease_bench b;
    const auto stop = new_stop_source();
    std::optional<acquired_lock> l{b.hold("k", {.ttl = 1s, .renew = true}, stop->get_token())};
    const std::string token = l->token();
    for (int how = 0; how < 5; ++how) {
        in_child([&] {
            b.store.forget_calls();
            check(!l->is_held(), "a child does not hold its parent's lease");
            check(l->remaining() == 0ns, "nothing of it remains");
            check(l->token() == token, "what it was can be read");
            std::optional<asked<bool>> answer;
            std::optional<asked<amux::clock::time_point>> extended;
            if (how == 0)
                l.reset();
            if (how == 1)
                stop->request_stop();
            if (how == 2)
                answer.emplace(b.ask(l->release()));
            if (how == 3)
                extended.emplace(b.ask(l->extend()));
            b.pass();
            if (answer)
                check(answer->state() == "done" && !answer->value(), "it has nothing to release");
            if (extended)
                check(extended->state() == "ended", "it has nothing to extend");
            b.pass_slowly(3s, 10ms); // its copy of the timers fires
            check(!asked_for(b, operation::extend), "a child renews nothing");
            check(!asked_for(b, operation::release), "a child releases nothing");
            l.reset();
            b.pass();
            check(!asked_for(b, operation::release), "a child releases nothing in the end");
        });
    }
    check(l->is_held(), "the parent holds it still");
    b.pass_slowly(3s, 10ms);
    check(l->is_held(), "and renews it");
    auto answer = b.ask(l->release());
    b.pass();
    check(answer.value(), "and releases it");
}

void a_release_in_the_background_is_the_parents()
{
    support::lease_bench b;
    std::optional<acquired_lock> l{b.hold("k", {.ttl = 10s})};
    b.store.next(operation::release, course::fails(amux::backend_error_kind::not_applied));
    b.store.next(operation::release, course::fails(amux::backend_error_kind::not_applied));
    l.reset();
    b.pass();
    b.store.forget_calls();
    in_child([&] {
        b.pass_slowly(5s, 10ms);
        check(!asked_for(b, operation::release), "a child does not go on with a release");
        auto d = b.ask(b.locks.drain(1s));
        b.pass();
        check(d.value(), "nothing is outstanding in the child");
    });
    b.pass_slowly(5s, 10ms);
    check(asked_for(b, operation::release), "the parent does");
    check(b.store.size() == 0, "the key is free");
}

void a_wait_goes_on_with_a_token_of_its_own(bool in_flight)
{
    support::lease_bench b;
    b.store.usurp("k", "stranger", 1h);
    auto l = b.ask(b.locks.acquire("k", {.max_wait = amux::forever}));
    b.pass();
    if (in_flight) { // granted, and answered in both processes
        b.store.drop("k");
        b.store.always(operation::acquire, course::held());
        b.pass(250ms);
        b.store.always(operation::acquire, course::at_once());
    }
    std::string token; // of the last question
    for (const auto& call : b.store.calls())
        token = call.op == operation::acquire ? call.token : token;
    const auto number = b.store.oldest_in_flight(operation::acquire);
    check((number != 0) == in_flight, "the question is in flight");
    in_child([&] {
        b.store.forget_calls();
        if (in_flight)
            b.store.answer(number);
        else
            b.store.drop("k");
        b.pass();
        check(l.state() == "waits" || l.value().token() != token, "not with the parent's token");
        // Here the child has a store of its own; what the parent got would run out.
        b.store.drop("k");
        b.pass_slowly(2s, 10ms);
        check(l.state() == "done", "a child that waits gets a lease, too");
        check(l.value().token() != token, "with a token of its own");
        check(l.value().is_held(), "which is held");
        check(!asked_for(b, operation::release, token), "the parent's is left alone");
        check(!asked_for(b, operation::acquire, token), "and not asked for again");
        l.drop();
        b.pass();
        check(b.store.size() == 0, "and released");
    });
    if (in_flight)
        b.store.answer(number);
    else
        b.store.drop("k");
    b.pass();
    check(l.state() == "done" && l.value().is_held(), "the parent goes on");
    check(!in_flight || l.value().token() == token, "with its own token");
}

void a_late_grant_is_the_parents()
{
    support::lease_bench b;
    const auto stop = new_stop_source();
    b.store.next(operation::acquire, course::held());
    auto l = b.ask(b.locks.acquire("k", {}, stop->get_token()));
    b.pass();
    stop->request_stop();
    b.pass();
    check(l.state() == "stopped", "the wait is stopped");
    in_child([&] {
        b.store.forget_calls();
        b.store.answer(1);
        b.pass_slowly(1s, 10ms);
        check(!asked_for(b, operation::release), "a child does not give it back");
    });
    b.store.answer(1);
    b.pass();
    check(b.store.size() == 0, "the parent does");
}

void new_leases_of_both_have_tokens_of_their_own()
{
    constexpr std::size_t tokens = 100;
    constexpr std::size_t bytes = tokens * 32;
    auto* const shared = static_cast<char*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    support::lease_bench b;
    const std::string before = b.hold("k").token();
    b.pass();
    in_child([&] {
        for (std::size_t i = 0; i < tokens; ++i)
            b.hold("k").token().copy(shared + i * 32, 32);
    });
    std::set<std::string> all{before};
    for (std::size_t i = 0; i < tokens; ++i) {
        all.insert(b.hold("k").token());
        all.emplace(shared + i * 32, 32);
    }
    check(all.size() == 2 * tokens + 1, "no token of a child is one of its parent's");
    munmap(shared, bytes);
}

/// What `say_tokens` writes in a process that runs this program from the start.
std::string tokens_of_new_process(int& pipe_end)
{
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(pipe_end, buffer, sizeof buffer)) > 0;)
        text.append(buffer, static_cast<std::size_t>(n));
    close(pipe_end);
    return text;
}

void say_tokens()
{
    support::lease_bench b;
    for (int i = 0; i < 100; ++i)
        std::printf("%s\n", b.hold("k").token().c_str());
}

void processes_that_start_together_differ(const char* self)
{
    constexpr std::size_t processes = 4;
    std::array<int, processes> read_ends{};
    for (std::size_t i = 0; i < processes; ++i) {
        int ends[2];
        check(pipe(ends) == 0, "a pipe");
        if (fork() == 0) {
            dup2(ends[1], STDOUT_FILENO);
            execl(self, self, "tokens", static_cast<char*>(nullptr));
            _exit(1);
        }
        close(ends[1]);
        read_ends[i] = ends[0];
    }
    std::set<std::string> all;
    for (int& end : read_ends) {
        const std::string text = tokens_of_new_process(end);
        for (std::size_t at = 0; at + 33 <= text.size(); at += 33)
            all.insert(text.substr(at, 32));
    }
    while (wait(nullptr) > 0) {
    }
    check(all.size() == 100 * processes, "tokens of processes that start together differ");
}

} // namespace

int main(int argc, char** argv)
{
    if (argc > 1 && std::string_view{argv[1]} == "tokens") {
        say_tokens();
        return 0;
    }
    a_held_lease_is_the_parents();
    a_release_in_the_background_is_the_parents();
    a_wait_goes_on_with_a_token_of_its_own(false);
    a_wait_goes_on_with_a_token_of_its_own(true);
    a_late_grant_is_the_parents();
    new_leases_of_both_have_tokens_of_their_own();
    processes_that_start_together_differ("/proc/self/exe");
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

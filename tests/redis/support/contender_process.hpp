// SPDX-License-Identifier: BSL-1.0
// Without this file no test starts, stops, kills or asks a process that holds leases.
#pragma once

#include "redis/support/loopback.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace support {

/// A process of the program `contender`. It dies with the thread that started it.
class contender {
public:
    /// Starts it, and waits until it can be spoken to.
    explicit contender(std::vector<std::string> args)
    {
        args.insert(args.begin(), AMUX_REDIS_CONTENDER);
        std::vector<char*> argv;
        for (auto& a : args)
            argv.push_back(a.data());
        argv.push_back(nullptr);
        // Sockets: writing to a pipe that nobody reads any more would end the tests.
        int in[2];
        int out[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0 ||
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, out) != 0)
            throw std::runtime_error("no sockets");
        pid_ = fork();
        if (pid_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            dup2(in[0], STDIN_FILENO);
            dup2(out[1], STDOUT_FILENO);
            for (int fd = 3; fd < 4096; ++fd)
                close(fd);
            execv(argv[0], argv.data());
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        in_ = descriptor{in[1]};
        out_ = descriptor{out[0]};
        expect("ready");
    }
    contender(contender&& other) noexcept
        : pid_{std::exchange(other.pid_, 0)},
          in_{std::move(other.in_)},
          out_{std::move(other.out_)},
          unread_{std::move(other.unread_)}
    {}
    contender& operator=(contender&& other) noexcept
    {
        std::swap(pid_, other.pid_);
        in_ = std::move(other.in_);
        out_ = std::move(other.out_);
        std::swap(unread_, other.unread_);
        std::swap(heard_, other.heard_);
        return *this;
    }
    ~contender() { kill9(); }

    pid_t pid() const { return pid_; }

    void say(std::string line)
    {
        line += '\n';
        if (send(in_.get(), line.data(), line.size(), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(line.size()))
            throw std::runtime_error("the contender does not listen");
    }
    /// The rest of the next line that begins so; other lines are dropped.
    std::string expect(std::string_view begin,
                       std::chrono::seconds limit = std::chrono::seconds{60})
    {
        const auto until = std::chrono::steady_clock::now() + limit;
        for (;;) {
            for (auto end = unread_.find('\n'); end != std::string::npos;
                 end = unread_.find('\n')) {
                std::string line = unread_.substr(0, end);
                unread_.erase(0, end + 1);
                heard_ += line + '\n';
                if (line.starts_with(begin))
                    return line.substr(std::min(line.size(), begin.size() + 1));
            }
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(
                until - std::chrono::steady_clock::now());
            pollfd readable{out_.get(), POLLIN, 0};
            char buffer[4096];
            if (left.count() <= 0 || poll(&readable, 1, static_cast<int>(left.count())) < 0)
                throw std::runtime_error("the contender does not say '" + std::string{begin} +
                                         "'; it said:\n" + heard_ + unread_);
            if (readable.revents == 0)
                continue;
            const auto got = read(out_.get(), buffer, sizeof buffer);
            if (got <= 0)
                throw std::runtime_error("the contender is gone before it said '" +
                                         std::string{begin} + "'; it said:\n" + heard_ + unread_);
            unread_.append(buffer, static_cast<std::size_t>(got));
        }
    }
    std::string ask(std::string order, std::string_view answer)
    {
        say(std::move(order));
        return expect(answer);
    }

    void kill9()
    {
        if (pid_ <= 0)
            return;
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }
    /// When it returns, the process stands still.
    void stop()
    {
        kill(pid_, SIGSTOP);
        waitpid(pid_, nullptr, WUNTRACED);
    }
    void go_on() { kill(pid_, SIGCONT); }
    /// Its exit code, once it has ended by itself.
    int wait()
    {
        int status = 0;
        waitpid(std::exchange(pid_, 0), &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }

private:
    pid_t pid_ = 0;
    descriptor in_;
    descriptor out_;
    std::string unread_;
    std::string heard_;
};

} // namespace support

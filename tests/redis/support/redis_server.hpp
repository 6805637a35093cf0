// SPDX-License-Identifier: BSL-1.0
// Without this file no test has a Redis server of its own that it may stop, kill, fill and bring back.
#pragma once

#include "redis/support/loopback.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace support {

/// What a server answered to one command.
struct redis_answer {
    int type = REDIS_REPLY_NIL;
    std::string text; // of a string, a status, an error
    long long number = 0;
    std::vector<redis_answer> parts;

    bool is_error() const { return type == REDIS_REPLY_ERROR; }
    bool is_nil() const { return type == REDIS_REPLY_NIL; }
};

/// A folder that goes away with its owner.
class temporary_folder {
public:
    temporary_folder()
    {
        std::string name = (std::filesystem::temp_directory_path() / "amux-test-XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr)
            throw std::runtime_error("no temporary folder");
        path_ = name;
    }
    temporary_folder(const temporary_folder&) = delete;
    temporary_folder& operator=(const temporary_folder&) = delete;
    ~temporary_folder()
    {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
};

/// While it lives, to write to who has gone is an error for this thread, as it should be for every user of hiredis.
class no_broken_pipe {
public:
    no_broken_pipe()
    {
        sigemptyset(&pipe_);
        sigaddset(&pipe_, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    }
    no_broken_pipe(const no_broken_pipe&) = delete;
    no_broken_pipe& operator=(const no_broken_pipe&) = delete;
    ~no_broken_pipe()
    {
        const timespec at_once{};
        while (sigtimedwait(&pipe_, nullptr, &at_once) < 0 && errno == EINTR) {
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }

private:
    sigset_t pipe_{};
    sigset_t before_{};
};

/// A `redis-server` process on a free loopback port and on a Unix socket, without persistence unless `args` ask for it.
///
/// It dies with the thread that started it: start and restart it on the main thread. Each has a port and a folder of its
/// own, so tests run beside each other. Not thread-safe.
class redis_server {
public:
    /// Starts it, and waits until it answers. `args` come last on its command line; `environment` is added to ours.
    explicit redis_server(std::vector<std::string> args = {},
                          std::vector<std::string> environment = {})
        : args_{std::move(args)}, environment_{std::move(environment)}
    {
        for (std::size_t n = 0; n + 1 < args_.size(); ++n) {
            if (args_[n] == "--requirepass")
                password_ = args_[n + 1];
        }
        start();
    }
    /// A Sentinel, with this in its configuration file.
    struct sentinel {
        std::string configuration;
    };
    explicit redis_server(const sentinel& s)
    {
        std::ofstream{configuration()} << s.configuration;
        start();
    }
    redis_server(const redis_server&) = delete;
    redis_server& operator=(const redis_server&) = delete;
    ~redis_server() { kill9(); }

    int port() const { return port_.number(); }
    std::string path() const { return (folder_.path() / "socket").string(); }
    std::string url() const { return "redis://127.0.0.1:" + std::to_string(port()); }
    pid_t pid() const { return pid_; }
    std::string log() const
    {
        std::ifstream file{folder_.path() / "log"};
        return {std::istreambuf_iterator<char>{file}, {}};
    }

    /// Ends it without a chance to write anything.
    void kill9()
    {
        if (pid_ == 0)
            return;
        connection_.reset();
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }
    /// Starts it again on the same port, with the data that it had put on the disk.
    void restart()
    {
        kill9();
        if (!launch())
            throw std::runtime_error("redis-server does not start again:\n" + log());
    }
    /// When it returns, the server stands still.
    void pause()
    {
        kill(pid_, SIGSTOP);
        waitpid(pid_, nullptr, WUNTRACED);
    }
    void resume() { kill(pid_, SIGCONT); }

    /// One command over the Unix socket, on a connection that no client sees.
    /// Throws: `std::runtime_error` without an answer within ten seconds. An error reply is an answer.
    template <class... Words>
    redis_answer cli(const Words&... words)
    {
        return run({to_text(words)...});
    }
    redis_answer run(const std::vector<std::string>& words)
    {
        const no_broken_pipe while_it_is_written_to;
        char byte = 0;
        if (!connection_ || recv(connection_->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
            connect(); // for the first time, or since it was closed
        std::vector<const char*> data;
        std::vector<std::size_t> sizes;
        for (const auto& w : words) {
            data.push_back(w.data());
            sizes.push_back(w.size());
        }
        auto* const reply = static_cast<redisReply*>(redisCommandArgv(
            connection_.get(), static_cast<int>(data.size()), data.data(), sizes.data()));
        if (reply == nullptr) {
            const std::string trouble = connection_->errstr;
            connection_.reset();
            throw std::runtime_error("no answer to " + words.front() + ": " + trouble);
        }
        redis_answer answer = copy(*reply);
        freeReplyObject(reply);
        return answer;
    }

private:
    struct close_context {
        void operator()(redisContext* c) const { redisFree(c); }
    };

    template <class Word>
    static std::string to_text(const Word& word)
    {
        if constexpr (std::is_arithmetic_v<Word>)
            return std::to_string(word);
        else
            return std::string{std::string_view{word}};
    }

    static redis_answer copy(const redisReply& r)
    {
        redis_answer a;
        a.type = r.type;
        a.number = r.integer;
        if (r.str != nullptr)
            a.text.assign(r.str, static_cast<std::size_t>(r.len));
        for (std::size_t n = 0; n < r.elements; ++n)
            a.parts.push_back(copy(*r.element[n]));
        return a;
    }

    void connect()
    {
        connection_.reset(redisConnectUnix(path().c_str()));
        if (!connection_ || connection_->err != 0)
            throw std::runtime_error("no connection to redis-server");
        redisSetTimeout(connection_.get(), timeval{10, 0});
        if (!password_.empty()) {
            auto* reply = redisCommand(connection_.get(), "AUTH %s", password_.c_str());
            if (reply != nullptr)
                freeReplyObject(reply);
        }
    }

    std::filesystem::path configuration() const { return folder_.path() / "configuration"; }

    void start()
    {
        for (int attempt = 0; attempt < 50; ++attempt) {
            if (launch())
                return;
            port_ = reserved_port{};
        }
        throw std::runtime_error("redis-server does not start:\n" + log());
    }

    /// False when the process has ended by itself: mostly since the port is taken.
    bool launch()
    {
        const auto folder = folder_.path().string();
        std::vector<std::string> words{"redis-server",
                                       "--port",
                                       std::to_string(port()),
                                       "--bind",
                                       "127.0.0.1",
                                       "--dir",
                                       folder,
                                       "--unixsocket",
                                       path(),
                                       "--logfile",
                                       folder + "/log",
                                       "--save",
                                       "",
                                       "--daemonize",
                                       "no",
                                       "--protected-mode",
                                       "no",
                                       "--set-proc-title",
                                       "no",
                                       "--enable-debug-command",
                                       "yes"};
        words.insert(words.end(), args_.begin(), args_.end());
        if (std::filesystem::exists(configuration()))
            words.insert(words.begin() + 1, {configuration().string(), "--sentinel"});
        std::vector<char*> argv;
        for (auto& w : words)
            argv.push_back(w.data());
        argv.push_back(nullptr);
        std::vector<char*> environment;
        for (auto& e : environment_)
            environment.push_back(e.data());
        for (char** e = environ; *e != nullptr; ++e)
            environment.push_back(*e);
        environment.push_back(nullptr);

        std::error_code ignored;
        std::filesystem::remove(path(), ignored); // else the one of a killed server looks alive
        const pid_t parent = getpid();
        pid_ = fork();
        if (pid_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(1);
            // A socket of the tests that stays open here would hide that they closed it.
            for (int fd = 0; fd < 4096; ++fd)
                close(fd);
            while (open("/dev/null", O_RDWR) < 2) {
            }
            execvpe(argv[0], argv.data(), environment.data());
            _exit(127);
        }
        if (pid_ < 0)
            throw std::runtime_error("no process for redis-server");

        for (;;) {
            int status = 0;
            if (waitpid(pid_, &status, WNOHANG) == pid_) {
                pid_ = 0;
                if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
                    throw std::runtime_error("redis-server is not installed");
                return false;
            }
            try {
                const redis_answer a = run({"PING"});
                if (a.text == "PONG" || a.text.starts_with("NOAUTH"))
                    return true;
            } catch (const std::runtime_error&) { // not yet
            }
            std::this_thread::sleep_for(std::chrono::milliseconds{2});
        }
    }

    temporary_folder folder_;
    std::vector<std::string> args_;
    std::vector<std::string> environment_;
    std::string password_;
    reserved_port port_;
    pid_t pid_ = 0;
    std::unique_ptr<redisContext, close_context> connection_;
};

} // namespace support

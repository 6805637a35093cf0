// SPDX-License-Identifier: BSL-1.0
// Without this file no test sees a program end over a misuse, nor what it says then.
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace support {

/// Destroys what is still in use. Out of line: the compiler would see the misuse, which is meant, and warn of it.
template <class Pointer>
[[gnu::noinline]] void destroy(Pointer& p)
{
    p.reset();
}

/// Runs `f` in a copy of this process. Gives what the copy wrote to its standard error stream if it aborted, else
/// "survived". Requires: no other thread runs.
template <class F>
std::string death_of(F f)
{
    int ends[2];
    if (pipe(ends) != 0)
        return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
        const rlimit no_core{0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        std::signal(SIGABRT, SIG_DFL); // not the handler of the test framework
        dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        f();
        _exit(0);
    }
    close(ends[1]);
    std::string text;
    char buffer[256];
    for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
        text.append(buffer, static_cast<std::size_t>(n));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    const bool aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    return aborted ? text : "survived: " + text;
}

} // namespace support

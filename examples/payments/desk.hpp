// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/acquired_lock.hpp>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <string>

#include <unistd.h>

/// Where payments are written down, one line when one begins and one when it ends. Several processes write to one file,
/// so that it shows whether two for one account were ever handled at a time.
class desk {
public:
    void begins(const std::string& account, const amux::acquired_lock* lease)
    {
        const auto fence = lease ? lease->fence().value_or(0) : 0;
        line("begins", account, fence);
    }
    std::string ends(const std::string& account)
    {
        line("ends", account, static_cast<unsigned long long>(++paid_));
        return "paid from " + account + " by process " + std::to_string(::getpid()) + "\n";
    }

private:
    static void line(const char* what, const std::string& account, unsigned long long number)
    {
        char text[160];
        const int size =
            std::snprintf(text, sizeof text, "process %ld: account %s %s (%llu)\n",
                          static_cast<long>(::getpid()), account.c_str(), what, number);
        if (size > 0 && ::write(STDOUT_FILENO, text, static_cast<std::size_t>(size)) < 0)
            std::perror("write");
    }

    std::atomic<unsigned long long> paid_ = 0;
};

// [signals]
/// SIGINT and SIGTERM, for `sigwait` only. Called before the first thread is started, which then has it too.
inline sigset_t block_end_signals()
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    return signals;
}
// [/signals]

inline void wait_for(const sigset_t& signals)
{
    int which = 0;
    sigwait(&signals, &which);
}

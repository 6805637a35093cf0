// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <initializer_list>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <signal.h>
#endif

namespace amux::detail {

/// While it lives the calling thread, and each that it starts, takes no signals but those of its own mistakes: they are
/// for the program's own threads, which know what they may be interrupted in. Those that are started keep it so.
class no_signals {
#if defined(__unix__) || defined(__APPLE__)
public:
    no_signals() noexcept
    {
        sigset_t all;
        ::sigfillset(&all);
        for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
            ::sigdelset(&all, own);
        ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    no_signals(const no_signals&) = delete;
    no_signals& operator=(const no_signals&) = delete;
    ~no_signals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_{};
#else
public:
    no_signals() noexcept {} // the system has none
#endif
};

} // namespace amux::detail

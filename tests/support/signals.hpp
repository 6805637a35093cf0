// SPDX-License-Identifier: BSL-1.0
// Without this file nobody sees which signals a thread of the library would take from the program.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace support {

/// Whether the calling thread takes neither what ends a program nor what a program sends itself, but its own mistakes.
inline bool takes_no_signals()
{
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    return sigismember(&blocked, SIGTERM) == 1 && sigismember(&blocked, SIGINT) == 1 &&
           sigismember(&blocked, SIGUSR1) == 1 && sigismember(&blocked, SIGSEGV) == 0;
}

} // namespace support

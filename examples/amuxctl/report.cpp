// SPDX-License-Identifier: BSL-1.0
#include "report.hpp"

#include "json.hpp"

#include <csignal>
#include <ctime>

#include <poll.h>
#include <unistd.h>

namespace amuxctl {

namespace {

volatile std::sig_atomic_t late = 0;

/// While it lives, a system call that waits is interrupted after a tenth of a second.
///
/// Not by O_NONBLOCK: that would be everybody's who has the same terminal or pipe. Not by SIGALRM: the caller may have set
/// an alarm for us.
class impatience {
public:
    impatience()
    {
        late = 0;
        struct sigaction a{};
        a.sa_handler = [](int) { late = 1; };
        sigaction(signal_, &a, &old_action_);
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, signal_);
        sigprocmask(SIG_UNBLOCK, &one, &old_mask_);
        sigevent e{};
        e.sigev_notify = SIGEV_SIGNAL;
        e.sigev_signo = signal_;
        runs_ = timer_create(CLOCK_MONOTONIC, &e, &timer_) == 0;
        // Again and again: the first one may come just before the call.
        constexpr timespec tenth{0, 100'000'000};
        const itimerspec times{tenth, tenth};
        if (runs_)
            timer_settime(timer_, 0, &times, nullptr);
    }
    impatience(const impatience&) = delete;
    impatience& operator=(const impatience&) = delete;
    ~impatience()
    {
        if (runs_)
            timer_delete(timer_);
        sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
        sigaction(signal_, &old_action_, nullptr);
    }

private:
    const int signal_ = SIGRTMAX;
    struct sigaction old_action_;
    sigset_t old_mask_;
    timer_t timer_;
    bool runs_;
};

void write_to_error_stream(std::string_view bytes)
{
    pollfd p{STDERR_FILENO, POLLOUT, 0};
    if (poll(&p, 1, 0) <= 0)
        return;
    const impatience limit; // somebody else may fill it meanwhile
    while (!bytes.empty() && !late) {
        const auto done = write(STDERR_FILENO, bytes.data(), bytes.size());
        if (done < 0)
            return;
        bytes.remove_prefix(static_cast<std::size_t>(done));
    }
}

} // namespace

void tell(bool json, std::string_view event, std::string_view key, std::string_view text)
{
    constexpr std::string_view library = "amux: ";
    if (text.starts_with(library))
        text.remove_prefix(library.size());
    std::string line;
    if (json) {
        json_line object;
        object.add("event", event);
        if (!key.empty())
            object.add("key", key);
        line = object.add("text", text).done();
    } else {
        line = "amuxctl: " + (key.empty() ? "" : plain_text(key) + ": ") + plain_text(text);
    }
    write_to_error_stream(line + '\n'); // at once: the command may be writing too
}

} // namespace amuxctl

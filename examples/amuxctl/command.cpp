// SPDX-License-Identifier: BSL-1.0
#include "command.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace amuxctl {

namespace {

constexpr int passed_on[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP};

bool is_ignored(int signal)
{
    struct sigaction a;
    return sigaction(signal, nullptr, &a) == 0 && a.sa_handler == SIG_IGN;
}

} // namespace

signals::signals()
    : fd_{[this] {
          sigemptyset(&caught_);
          for (const int s : passed_on) {
              if (!is_ignored(s))
                  sigaddset(&caught_, s);
          }
          sigaddset(&caught_, SIGCHLD);
          sigaddset(&caught_, SIGCONT);
          sigset_t blocked = caught_;
          sigaddset(&blocked, SIGTTOU); // so that the terminal can be given away and taken back
          sigprocmask(SIG_BLOCK, &blocked, &old_mask_);
          struct sigaction a{};
          a.sa_handler =
              SIG_DFL; // with SIG_IGN the kernel would bury the command, and its exit code
          sigaction(SIGCHLD, &a, &old_child_);
          a.sa_handler = SIG_IGN;
          sigaction(SIGPIPE, &a, &old_pipe_);
          return signalfd(-1, &caught_, SFD_CLOEXEC | SFD_NONBLOCK);
      }()}
{}

int signals::take()
{
    signalfd_siginfo info;
    if (read(fd_.get(), &info, sizeof info) != sizeof info)
        return 0;
    was_typed_ = info.ssi_code == SI_KERNEL;
    return static_cast<int>(info.ssi_signo);
}

void signals::restore() const
{
    sigaction(SIGCHLD, &old_child_, nullptr);
    sigaction(SIGPIPE, &old_pipe_, nullptr);
    sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

bool signals::stop(int signal, pid_t whom) const
{
    pass_to_ourselves(signal, whom); // which takes away a SIGCONT that waits
    sigset_t waiting;
    return sigpending(&waiting) == 0 && sigismember(&waiting, SIGCONT) == 1;
}

void signals::pass_to_ourselves(int signal, pid_t whom) const
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    kill(whom, signal);
    sigprocmask(SIG_UNBLOCK, &one, nullptr); // it comes now
    sigprocmask(SIG_BLOCK, &one, nullptr);
}

terminal::terminal() : fd_{open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY)}
{
    struct stat out;
    is_shared_ = !isatty(STDIN_FILENO) || fstat(STDOUT_FILENO, &out) != 0 || S_ISFIFO(out.st_mode);
}

terminal::~terminal()
{
    if (fd_ >= 0)
        close(fd_);
}

bool terminal::ours() const
{
    return fd_ >= 0 && tcgetpgrp(fd_) == getpgrp();
}

bool terminal::is_out_of_reach() const
{
    const auto is_outside = [](pid_t parent) {
        return getpgid(parent) != getpgrp() && getsid(parent) == getsid(0);
    };
    if (fd_ < 0 || ours() || is_outside(getppid()))
        return false;
    const auto all = all_processes();
    return all && std::none_of(all->begin(), all->end(), [&](const process& p) {
               return p.group == getpgrp() && !p.ended && is_outside(p.parent);
           });
}

bool terminal::is_given_to(pid_t group) const
{
    return fd_ >= 0 && tcgetpgrp(fd_) == group;
}

void terminal::prepare()
{
    is_given_ = true;
    termios mode;
    if (!mode_ && tcgetattr(fd_, &mode) == 0)
        mode_ = mode;
}

void terminal::give_to(pid_t group)
{
    prepare();
    tcsetpgrp(fd_, group);
}

bool terminal::take_back_from(pid_t group)
{
    const bool was_given = std::exchange(is_given_, false);
    const pid_t front = fd_ >= 0 ? tcgetpgrp(fd_) : 0;
    // A shell that is killed leaves it with the job that was in front.
    const bool is_nobodys = was_given && front > 1 && kill(-front, 0) != 0 && errno == ESRCH;
    return (front == group || is_nobodys) && tcsetpgrp(fd_, getpgrp()) == 0;
}

void terminal::restore_mode() const
{
    if (mode_)
        tcsetattr(fd_, TCSANOW, &*mode_); // a terminal that takes no bytes is not waited for
}

command::command(const request& r, const note& granted, const bond& b, const signals& s,
                 terminal& t, const std::vector<pid_t>& others)
    : front_{getpid()}, others_{others}, family_{front_, others}
{
    const bool in_front = t.ours() && !t.is_shared();
    if (in_front)
        t.prepare();
    // We could continue it: where reading fails without us, it would be stopped for ever. And what ignores to be stopped, as
    // in the x=$(...) of bash, would not be heard when it wants to read.
    std::optional<sighandler_t> on_reading;
    if (t.is_out_of_reach())
        on_reading = SIG_IGN;
    else if (t.ours())
        on_reading = SIG_DFL;
    id_ = fork();
    if (id_ == 0)
        begin(r, granted, b, s, t, in_front, on_reading);
    if (id_ < 0)
        throw std::system_error{errno, std::generic_category(), "no process for the command"};
    setpgid(id_, id_); // the command does it too: whoever is first
}

void command::begin(const request& r, const note& granted, const bond& b, const signals& s,
                    terminal& t, bool in_front, std::optional<sighandler_t> on_reading) const
{
    const pid_t self = getpid();
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // In this order: the keeper must know it before it begins, and a parent that ended before the prctl is not noticed.
    pid_t none = 0;
    const bool in_time = b.shared().command.compare_exchange_strong(none, self) &&
                         amux::clock::now() < r.times().term_due(b.until());
    if (!in_time || getppid() != front_) {
        b.shared().trouble = ETIME;
        _exit(1);
    }
    if (in_front)
        t.give_to(self);
    setenv("AMUX_KEY", r.key.c_str(), 1);
    setenv("AMUX_TOKEN", granted.token, 1);
    const char* const outer = std::getenv("AMUX_TOKENS");
    setenv("AMUX_TOKENS", ((outer ? outer + std::string{" "} : "") + granted.token).c_str(), 1);
    if (granted.yes)
        setenv("AMUX_FENCE", std::to_string(granted.fence).c_str(), 1);
    else
        unsetenv("AMUX_FENCE");
    std::vector<char*> words;
    for (const std::string& w : r.command)
        words.push_back(const_cast<char*>(w.c_str()));
    words.push_back(nullptr);
    s.restore();
    if (on_reading && !in_front)
        signal(SIGTTIN, *on_reading);
    execvp(words[0], words.data());
    b.shared().trouble = errno;
    _exit(1);
}

void command::send(int signal) const
{
    kill(-id_, signal);
    if (signal == SIGTERM || signal == SIGHUP)
        kill(-id_, SIGCONT);
}

int command::stopped() const
{
    siginfo_t info{};
    const bool is = waitid(P_PID, static_cast<id_t>(id_), &info, WSTOPPED | WNOHANG) == 0;
    return is && info.si_pid == id_ ? info.si_status : 0;
}

std::optional<outcome> command::ended() const
{
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid != id_)
        return std::nullopt;
    if (info.si_code == CLD_EXITED)
        return outcome{info.si_status, 0};
    return outcome{128 + info.si_status, info.si_status};
}

void command::bury_orphans() const
{
    for (const pid_t id : family_.children().value_or(std::vector<pid_t>{})) {
        if (id != id_ && std::find(others_.begin(), others_.end(), id) == others_.end())
            waitpid(id, nullptr, WNOHANG);
    }
}

bool command::is_over() const
{
    return family_.none();
}

void command::end_all() const
{
    send(SIGTERM);
    for (const auto& [id, p] : family_.running()) {
        if (getpgid(id) == id_)
            continue; // told already
        for (const int s : {SIGTERM, SIGCONT}) {
            if (p.parent == front_)
                kill(id, s); // its number stays its own until we bury it
            else
                send_signal(p, s);
        }
    }
}

duration command::kill_all()
{
    send(SIGKILL);
    return family_.kill_all();
}

void command::bury()
{
    waitpid(id_, nullptr, 0);
}

} // namespace amuxctl

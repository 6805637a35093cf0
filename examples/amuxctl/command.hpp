// SPDX-License-Identifier: BSL-1.0
// The command: how it begins, what a terminal makes of it, what is left of it.
#pragma once

#include "bond.hpp"
#include "processes.hpp"
#include "wake.hpp"
#include "words.hpp"

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>
#include <termios.h>

namespace amuxctl {

/// The signals that are passed on to the command, and those that the front needs itself, for `signalfd`.
///
/// What the caller has ignored (nohup) stays ignored, here and in the command.
class signals {
public:
    /// Blocks them, in this process and its threads. Throws: `std::system_error`.
    signals();
    signals(const signals&) = delete;
    signals& operator=(const signals&) = delete;

    int fd() const { return fd_.get(); }
    /// One that has come, or 0.
    int take();
    /// Whether the last one was typed (Ctrl-C): then all of our group got it.
    bool was_typed() const { return was_typed_; }
    /// Everything as the caller had it: in the command.
    void restore() const;
    /// What `signal`, one that stops, does by default: to `whom`, which we are in, as to `kill`.
    ///
    /// Returns: true when we are continued, false at once when nobody is there who could continue us.
    bool stop(int signal, pid_t whom) const;
    /// To `whom`, which we are in, as to `kill`. Whatever it does by default, it does it now.
    void pass_to_ourselves(int signal, pid_t whom) const;

private:
    sigset_t caught_;
    sigset_t old_mask_;
    struct sigaction old_child_;
    struct sigaction old_pipe_;
    descriptor fd_;
    bool was_typed_ = false;
};

/// The terminal that we have been started from, if any. Its foreground group may read from it, and is what Ctrl-C and
/// Ctrl-Z go to.
class terminal {
public:
    terminal();
    terminal(const terminal&) = delete;
    terminal& operator=(const terminal&) = delete;
    ~terminal();

    bool exists() const { return fd_ >= 0; }
    /// Whether our own group is in the foreground.
    bool ours() const;
    /// Whether others of our group may want to read from it, so that it is given to the command only when that reads: in a
    /// pipeline (`hold ... | less`), and when standard input is something else, which is what a script does to a job
    /// behind which it goes on.
    bool is_shared() const { return is_shared_; }
    /// Whether the kernel refuses our group to read from it, and stops nobody: another one is in the foreground, and no shell
    /// is there that could continue us.
    bool is_out_of_reach() const;
    bool is_given_to(pid_t group) const;
    /// Before somebody may change it: its mode is kept.
    void prepare();
    /// Requires: SIGTTOU is blocked.
    void give_to(pid_t group);
    /// Returns: whether that group had it, or, since it was given, has passed it on to one that is no more.
    bool take_back_from(pid_t group);
    /// As it was before it was first given away, for a command that was killed in the middle of an editor.
    void restore_mode() const;

private:
    int fd_; // -1: there is none
    bool is_shared_;
    bool is_given_ = false;
    std::optional<termios> mode_;
};

/// How a command has ended.
struct outcome {
    int status = 0; // its exit code, or 128 and the signal
    int signal = 0; // or 0
};

class command {
public:
    /// Starts it, in a group of its own, which gets the terminal if we have it. It does not begin when it is too late, or we
    /// have ended. `others` are our children that have nothing to do with it.
    /// Throws: `std::system_error` when there is no process to be had.
    command(const request& r, const note& granted, const bond& b, const signals& s, terminal& t,
            const std::vector<pid_t>& others);
    command(const command&) = delete;
    command& operator=(const command&) = delete;

    pid_t id() const { return id_; }
    /// To its group; it is continued when it would not notice. Requires: not yet buried.
    void send(int signal) const;
    /// The signal that has stopped it since the last question, or 0.
    int stopped() const;
    /// None while it runs. It stays a zombie, so that nothing else gets its number.
    std::optional<outcome> ended() const;

    /// Buries what has fallen to us and has died. Not the command itself.
    void bury_orphans() const;
    /// Whether nothing runs of it and of what it has started, wherever that has gone.
    bool is_over() const;
    /// SIGTERM to all of that, as far as one look finds it.
    void end_all() const;
    /// SIGKILL, until it is over or a tenth of a second has passed. Returns: how long to wait before the next time.
    duration kill_all();

    void bury();

private:
    [[noreturn]] void begin(const request& r, const note& granted, const bond& b, const signals& s,
                            terminal& t, bool in_front,
                            std::optional<sighandler_t> on_reading) const;

    pid_t front_;
    std::vector<pid_t> others_;
    descendants family_;
    pid_t id_;
};

} // namespace amuxctl

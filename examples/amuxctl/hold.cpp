// SPDX-License-Identifier: BSL-1.0
#include "hold.hpp"

#include "bond.hpp"
#include "command.hpp"
#include "exit_code.hpp"
#include "partner.hpp"
#include "processes.hpp"
#include "report.hpp"
#include "store.hpp"
#include "streams.hpp"

#include <amux/error.hpp>
#include <amux/lock_options.hpp>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace amuxctl {

namespace {

using namespace std::chrono_literals;

int number(exit_code code)
{
    return static_cast<int>(code);
}

class front {
public:
    explicit front(const request& r) : r_{r}, times_{r.times()}, say_{r}
    {
        require_proc();
        const auto ours = descendants{getpid(), {}}.children();
        if (!ours)
            throw std::runtime_error{"/proc cannot be read"};
        others_ = *ours; // a shell that has become us by `exec` may have some
        prctl(PR_SET_CHILD_SUBREAPER, 1);
    }

    int run()
    {
        keeper_.start(others_);
        if (const auto code = wait_for_lease())
            return finish(*code);
        try {
            command_.emplace(r_, granted_, keeper_.bond(), signals_, terminal_, others_);
        } catch (const std::system_error& e) {
            say_.error("failed", e.what());
            keeper_.give_back(granted_.token);
            return finish(number(exit_code::failed));
        }
        let_go_of_streams();
        // What the caller has handed down is the command's too; ours are closed by an exec.
        close_descriptors([](int fd) { return (fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0; });
        while (!step()) {
        }
        return finish(leave());
    }

private:
    /// None when there is a lease, else the exit code.
    std::optional<int> wait_for_lease()
    {
        int ended_by = 0;
        time_point limit = r_.wait == amux::forever ? never : amux::clock::now() + r_.wait;
        bool overdue = false;
        for (;;) {
            keeper_.wait_until(ended_by ? cancelled_at_ + keeper_limit : limit);
            while (const int s = signals_.take()) {
                if (s == SIGTSTP)
                    signals_.stop(s, getpid());
                else if (s != SIGCHLD && s != SIGCONT && !ended_by)
                    cancel(ended_by = s);
            }
            while (const auto n = keeper_.take()) {
                if (n->what == note::kind::refused)
                    return ended_by ? 128 + ended_by : refused(*n);
                if (n->what == note::kind::trouble)
                    tell_trouble(*n);
                if (n->what != note::kind::granted)
                    continue;
                granted_ = *n;
                say_.detail("acquired", "acquired, fence " + std::to_string(granted_.fence));
                if (!ended_by)
                    return std::nullopt;
                keeper_.give_back(granted_.token);
                return 128 + ended_by;
            }
            if (keeper_.bond().broken() ||
                (ended_by && amux::clock::now() >= cancelled_at_ + keeper_limit)) {
                if (!ended_by)
                    say_.error("failed", "the process that waits for the lease has died");
                return ended_by ? 128 + ended_by : number(exit_code::failed);
            }
            if (!ended_by && amux::clock::now() >= limit) {
                if (overdue) {
                    say_.error("failed", "the process that waits for the lease does not answer");
                    return number(exit_code::failed);
                }
                overdue = true;
                limit =
                    amux::clock::now() + keeper_limit; // from now on: we may have been stopped too
            }
        }
    }

    void cancel(int signal)
    {
        cancelled_at_ = amux::clock::now();
        keeper_.bond().send(note::kind::cancel);
        say_.detail("cancelled", std::string{"no longer waiting: "} + strsignal(signal));
    }

    int refused(const note& n)
    {
        if (n.code == number(exit_code::busy)) {
            try {
                say_.warning("busy", "busy: " + holder_of(r_));
                return r_.busy_code;
            } catch (const amux::backend_error&) { // so it was the store that was in the way
                say_.error("store", n.text);
                return number(exit_code::store);
            }
        }
        if (r_.json || r_.loud == loudness::quiet ||
            n.text != last_trouble_) // else it was said already
            say_.error(n.code == number(exit_code::store) ? "store" : "failed", n.text);
        return n.code;
    }

    /// Once, and again after a while, as long as it is the same.
    void tell_trouble(const note& n)
    {
        keeper_.bond().shared().told = false;
        const time_point now = amux::clock::now();
        if (n.text == last_trouble_ && now < quiet_until_)
            return;
        last_trouble_ = n.text;
        quiet_until_ = now + 60s;
        say_.warning("trouble", n.text);
    }

    /// True when nothing of the command runs any more.
    bool step()
    {
        keeper_.wait_until(due_);
        take_notes();
        take_signals();
        if (const int s = command_->stopped())
            stop_with_command(s);
        const time_point now = amux::clock::now();
        if (!outcome_)
            outcome_ = command_->ended();
        if (outcome_ && command_->is_over())
            return true;
        if (!told_)
            look_for_an_end(now);
        if (told_)
            insist(now);
        else
            due_ = times_.term_due(keeper_.bond().until());
        tell_loss();
        return false;
    }

    void take_notes()
    {
        while (const auto n = keeper_.take()) {
            if (n->what == note::kind::trouble)
                tell_trouble(*n);
            else if (n->what == note::kind::lost)
                lose(std::string{"the lease is lost"} + (n->text[0] ? ": " : "") + n->text);
            else if (n->what == note::kind::released)
                lose("the lease was given back before the command began");
        }
        if (keeper_.bond().broken())
            lose("the process that keeps the lease has died");
    }

    void lose(const std::string& why)
    {
        if (!lost_)
            why_lost_ = outcome_ ? why : why + "; the command is ended";
        lost_ = true;
    }
    /// After the deed.
    void tell_loss()
    {
        if (!why_lost_.empty())
            say_.error("lost", std::exchange(why_lost_, {}));
    }

    void take_signals()
    {
        while (const int s = signals_.take()) {
            if (s == SIGCHLD)
                command_->bury_orphans();
            else if (s == SIGCONT)
                resume(!terminal_.is_shared());
            else if (!outcome_) {
                command_->send(s);
                typed_ = signals_.was_typed() ? s : typed_;
            }
        }
    }

    /// As a shell has it: who is stopped by the terminal gives it back, and stops whom the caller sees. Who stops the
    /// command in another way also lets it go on, unless the terminal would be nobody's meanwhile.
    void stop_with_command(int signal)
    {
        if (signal == SIGSTOP)
            return give_back_terminal();
        if (!terminal_.exists())
            return;
        const bool wants_terminal = signal == SIGTTIN || signal == SIGTTOU;
        if (!(wants_terminal && terminal_.ours())) {
            const bool was_in_front = terminal_.take_back_from(command_->id());
            // All of our group when it is the terminal's doing. A signal that was sent stops nobody else.
            const bool stopped =
                signals_.stop(signal, was_in_front || wants_terminal ? 0 : getpid());
            if (wants_terminal && !stopped && !hang_up())
                return;
        }
        resume(wants_terminal || !terminal_.is_shared());
    }
    /// As a shell that has suspended itself would have it.
    void give_back_terminal()
    {
        if (!terminal_.is_given_to(command_->id()))
            return;
        terminal_.take_back_from(command_->id());
        if (signals_.stop(SIGTSTP, getpid())) // where nobody can continue us it stops nobody
            resume(true);
        else
            terminal_.give_to(command_->id());
    }
    /// To one that asks for a terminal which nobody can give to it any more, what the kernel does to it then.
    /// Returns: false when it knows that already, and asks again. It stays stopped, until a signal comes.
    bool hang_up()
    {
        if (std::exchange(hung_up_, true))
            return false;
        command_->send(SIGHUP);
        return true;
    }
    void resume(bool with_terminal)
    {
        if (with_terminal && terminal_.ours())
            terminal_.give_to(command_->id());
        command_->send(SIGCONT);
    }

    void look_for_an_end(time_point now)
    {
        if (now >= times_.term_due(keeper_.bond().until())) {
            lose("the lease could not be renewed in time");
            keeper_.expect_no_store();
        }
        if (!lost_ && !outcome_)
            return;
        told_ = now;
        command_->end_all();
        if (!lost_)
            say_.warning("left", "the command has left something running, which is ended");
    }

    /// SIGKILL, when it is due, to all that runs; and again, until nothing does.
    void insist(time_point now)
    {
        due_ = times_.kill_due(*told_, keeper_.bond().until());
        if (now < due_)
            return;
        due_ = now + command_->kill_all();
    }

    /// Releases, and says what to exit with.
    int leave()
    {
        command_->bury_orphans();
        const bool was_in_front = terminal_.take_back_from(command_->id());
        const int trouble = keeper_.bond().shared().trouble;
        const bool ours = keeper_.give_back(granted_.token);
        if (was_in_front && (lost_ || outcome_->signal != 0))
            terminal_.restore_mode(); // else it is somebody else's: an editor's, in front of us
        command_->bury();
        keeper_.end();
        if (trouble == ETIME)
            lose("too late to begin");
        else if (!ours)
            lose("the lease was lost by the time the command had ended");
        if (lost_)
            return number(exit_code::lost);
        if (trouble != 0) {
            say_.error("failed", "cannot execute " + r_.command[0] + ": " + std::strerror(trouble));
            return number(trouble == ENOENT ? exit_code::not_found : exit_code::cannot_execute);
        }
        // Who called us would have met what was typed too, and did, unless the command had the terminal for itself. (One
        // that somebody has sent looks the same.)
        if (was_in_front && (outcome_->signal == SIGINT || outcome_->signal == SIGQUIT))
            signals_.pass_to_ourselves(outcome_->signal, 0);
        else if (outcome_->signal != 0 && outcome_->signal == typed_)
            signals_.pass_to_ourselves(typed_, getpid());
        return outcome_->status;
    }

    int finish(int code)
    {
        keeper_.end();
        tell_loss();
        return code;
    }

    static constexpr time_point never = time_point{1'000'000h};

    const request& r_;
    const ending times_;
    const reporter say_;
    signals signals_;
    terminal terminal_;
    partner keeper_{r_, say_, signals_};
    std::vector<pid_t>
        others_; // our children that are not the command's: the keeper, and what the caller had
    time_point cancelled_at_{};
    note granted_;
    std::optional<command> command_;
    int typed_ = 0; // a signal from the terminal, which was passed on
    bool hung_up_ = false;
    std::optional<outcome> outcome_; // the command itself has ended
    std::optional<time_point> told_; // when it was sent SIGTERM by us
    bool lost_ = false;
    std::string why_lost_; // not yet told
    std::string last_trouble_;
    time_point quiet_until_{}; // of it
    time_point due_{}; // the next look at the clock
};

} // namespace

int hold(const request& r)
{
    return front{r}.run();
}

} // namespace amuxctl

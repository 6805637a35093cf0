// SPDX-License-Identifier: BSL-1.0
// What /proc tells of processes: who is left of a command.
#pragma once

#include "ending.hpp"
#include "wake.hpp"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

namespace amuxctl {

struct process {
    pid_t id = 0;
    pid_t parent = 0;
    pid_t group = 0;
    bool ended = false; // a zombie: nothing of it runs any more
    bool of_the_kernel = false;
    unsigned long long begun = 0; // when, in ticks since the machine was started
};

/// Throws: `std::runtime_error` when /proc is missing, or shows the numbers of another PID namespace.
void require_proc();

/// All processes that can be seen; none when we may not look, for want of descriptors or memory. Other users' may be hidden.
std::optional<std::vector<process>> all_processes();

/// A signal to one that was looked at, and to nobody who has got its number since. (A moment is left when no descriptor is
/// to be had, and with a kernel before 5.3.)
void send_signal(const process& to, int signal);

/// What a process, to which orphans fall, has below it; not `except`, and what those have started.
class descendants {
public:
    /// Requires: that process has one thread. Throws: `std::system_error`.
    descendants(pid_t ancestor, std::vector<pid_t> except);

    /// The first generation, ended ones too; none when they cannot be read.
    ///
    /// Only their parent can take one away. While it does not, none is left out here, hidden ones neither: new ones come last.
    /// It needs no new descriptor. (A kernel without CONFIG_PROC_CHILDREN has no such list. Then /proc is searched, where some
    /// are hidden, and one that comes meanwhile may be missing.)
    std::optional<std::vector<pid_t>> children() const;

    /// Whether at one moment nothing of them ran.
    ///
    /// No look at all of /proc can tell: who passes itself on meanwhile is at none of the places where one looks. But whatever
    /// runs has a forefather among the children of the one to whom orphans fall, and these are seen at once. What cannot be
    /// seen counts as running.
    bool none() const;

    /// What runs, as far as it can be seen: children always, theirs unless they are hidden.
    /// (Of one that is hidden no more than its number and parent is known.)
    std::map<pid_t, process> running() const;

    /// SIGKILL to all of them, again and again, until `none`, for a tenth of a second at most. Of hidden ones the children
    /// are met, and when they are dead, theirs are children.
    /// Returns: how long to wait before it is called again, the longer the longer the same ones are left.
    duration kill_all();

private:
    static constexpr duration shortest_pause = std::chrono::milliseconds{50};

    std::set<pid_t> kill_once() const;
    bool is_other(pid_t id) const;

    pid_t ancestor_;
    std::vector<pid_t> except_;
    std::optional<descriptor> list_;
    std::set<pid_t> left_; // by the last call of kill_all
    duration pause_ = shortest_pause;
};

/// What runs in a group; none when that cannot be told.
std::optional<std::vector<pid_t>> running_in_group(pid_t group);

/// What has `word` in the list `variable` (NAME=WORD WORD...) of its environment, as far as that may be read.
class marked_processes {
public:
    marked_processes(const std::string& variable, std::string word);

    /// What runs of them; none when we may not look. Each gets `signal` as soon as it is found, unless that is 0. It may take
    /// long: the kernel lets who asks for an environment wait for its process.
    ///
    /// Whoever was found once is one of them for good. And a process that begins another program is without an environment
    /// for a moment: so who has none counts, but gets no signal, until it was like that for a second.
    std::optional<std::vector<pid_t>> running(int signal);

private:
    enum class verdict { other, marked, undecided };
    verdict judge(const process& p);

    struct sight {
        unsigned long long begun = 0; // tells who has the same number later
        bool marked = false;
        time_point empty_since{};
    };
    std::string name_; // with what stands before and behind it
    std::string word_;
    std::map<pid_t, sight> seen_;
};

/// How many processes and threads this machine has begun, if that can be read. When the number is the same before and after
/// a look at /proc, that look has overlooked nobody.
std::optional<unsigned long long> begun_so_far();

/// Our own, as far as /proc tells.
std::vector<int> open_descriptors();

} // namespace amuxctl

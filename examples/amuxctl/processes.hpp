// SPDX-License-Identifier: BSL-1.0
// What /proc tells of processes: who is left of a command.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace amuxctl {

struct process {
    pid_t id = 0;
    pid_t parent = 0;
    pid_t group = 0;
    bool ended = false; // a zombie: nothing of it runs any more
};

/// Throws: `std::runtime_error` when /proc is missing, or shows the numbers of another PID namespace.
void require_proc();

/// All processes that can be seen.
std::vector<process> all_processes();

/// The children of a process with one thread, ended ones too.
///
/// Only their parent can take one away. While it does not, none is left out here: new ones come last. (A kernel without
/// CONFIG_PROC_CHILDREN has no such list. Then /proc is searched, and one that comes meanwhile may be missing.)
std::vector<pid_t> children_of(pid_t parent);

/// What runs of the descendants of a process to which orphans fall; not `except`, and what those have started.
std::vector<process> running_below(pid_t ancestor, const std::vector<pid_t>& except);

/// Whether at one moment nothing of that was there.
///
/// No look at all of /proc can tell: who passes itself on meanwhile is at none of the places where one looks. But whatever
/// runs has a forefather among the children of the one to whom orphans fall, and these are seen at once.
bool none_below(pid_t ancestor, const std::vector<pid_t>& except);

/// SIGKILL to all of that, again and again, until `none_below`, for a tenth of a second at most.
void kill_below(pid_t ancestor, const std::vector<pid_t>& except);

/// What runs in a group.
std::vector<pid_t> running_in_group(pid_t group);

/// What runs with `word` in the list `variable` (NAME=WORD WORD...) of the environment with which it was started, as far as
/// that may be read. Each gets `signal` as soon as it is found, unless that is 0. It may take long: the kernel lets who asks
/// for an environment wait for its process.
std::vector<pid_t> running_with(std::string_view variable, std::string_view word, int signal);

/// How many processes and threads this machine has begun. When the number is the same before and after a look at /proc,
/// that look has overlooked nobody.
unsigned long long begun_so_far();

/// Our own, as far as /proc tells.
std::vector<int> open_descriptors();

} // namespace amuxctl

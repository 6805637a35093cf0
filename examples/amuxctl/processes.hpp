// SPDX-License-Identifier: BSL-1.0
// What /proc tells of processes: who is left of a command.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

namespace amuxctl {

struct process {
    pid_t id = 0;
    pid_t parent = 0;
    pid_t group = 0;
    bool ended = false; // a zombie: nothing of it runs any more
};

/// All processes that can be seen; none without /proc.
std::vector<process> all_processes();

/// What runs of the descendants of a process to which orphans fall; not `except`, and what that has started.
std::vector<process> running_below(pid_t ancestor, pid_t except);

/// What runs in a group. Without /proc: its number, while the group is there.
std::vector<pid_t> running_in_group(pid_t group);

/// What runs with `setting` (NAME=VALUE) in the environment with which it was started, as far as that may be read. It may
/// take long: the kernel lets who asks for an environment wait for its process.
std::vector<pid_t> running_with(const std::string& setting);

/// Our own, as far as /proc tells.
std::vector<int> open_descriptors();

} // namespace amuxctl

// SPDX-License-Identifier: BSL-1.0
#include "processes.hpp"

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>

#include <dirent.h>
#include <unistd.h>

namespace amuxctl {

namespace {

struct close_folder {
    void operator()(DIR* d) const { closedir(d); }
};

/// The names in a folder that are numbers. The folder itself is closed when they are known.
std::vector<int> numbers_in(const char* path)
{
    std::vector<int> found;
    const std::unique_ptr<DIR, close_folder> folder{opendir(path)};
    while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
        if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9')
            found.push_back(std::atoi(entry->d_name));
    }
    return found;
}

std::string text_of(pid_t id, const char* file)
{
    std::ifstream in{"/proc/" + std::to_string(id) + "/" + file, std::ios::binary};
    return {std::istreambuf_iterator<char>{in}, {}};
}

} // namespace

std::vector<process> all_processes()
{
    std::vector<process> all;
    for (const pid_t id : numbers_in("/proc")) {
        const std::string stat = text_of(id, "stat");
        // The name, in parentheses, may have any characters in it.
        const auto name_end = stat.rfind(')');
        char state = 0;
        process p;
        if (name_end != std::string::npos && std::sscanf(stat.c_str() + name_end + 1, " %c %d %d",
                                                         &state, &p.parent, &p.group) == 3) {
            p.id = id;
            p.ended = state == 'Z' || state == 'X';
            all.push_back(p);
        }
    }
    return all;
}

std::vector<process> running_below(pid_t ancestor, pid_t except)
{
    std::vector<process> found;
    if (ancestor <= 1) // everybody
        return found;
    const auto all = all_processes();
    std::set<pid_t> family{ancestor};
    for (std::size_t before = 0; before != family.size();) { // until there is no more generation
        before = family.size();
        for (const process& p : all) {
            if (p.id != except && family.contains(p.parent) && family.insert(p.id).second &&
                !p.ended)
                found.push_back(p);
        }
    }
    return found;
}

std::vector<pid_t> running_in_group(pid_t group)
{
    std::vector<pid_t> found;
    if (kill(-group, 0) != 0 && errno == ESRCH)
        return found;
    const auto all = all_processes();
    if (all.empty())
        found.push_back(group);
    for (const process& p : all) {
        if (p.group == group && !p.ended)
            found.push_back(p.id);
    }
    return found;
}

std::vector<pid_t> running_with(const std::string& setting)
{
    std::vector<pid_t> found;
    const std::string wanted = '\0' + setting + '\0';
    for (const pid_t id : numbers_in("/proc")) {
        if (id != getpid() && ('\0' + text_of(id, "environ")).find(wanted) != std::string::npos)
            found.push_back(id);
    }
    return found;
}

std::vector<int> open_descriptors()
{
    return numbers_in("/proc/self/fd");
}

} // namespace amuxctl

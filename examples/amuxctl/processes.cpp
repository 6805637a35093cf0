// SPDX-License-Identifier: BSL-1.0
#include "processes.hpp"

#include "ending.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace amuxctl {

namespace {

using namespace std::chrono_literals;

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

/// Empty when it cannot be read: not by a stream, which throws when the process ends between the opening and the reading.
std::string text_of(const std::string& path)
{
    std::string text;
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    char part[16 * 1024];
    for (ssize_t size = 0; fd >= 0 && (size = read(fd, part, sizeof part)) > 0;)
        text.append(part, static_cast<std::size_t>(size));
    if (fd >= 0)
        close(fd);
    return text;
}

std::string text_of(pid_t id, const char* file)
{
    return text_of("/proc/" + std::to_string(id) + "/" + file);
}

std::optional<process> look_at(pid_t id)
{
    const std::string stat = text_of(id, "stat");
    // The name, in parentheses, may have any characters in it.
    const auto name_end = stat.rfind(')');
    char state = 0;
    int threads = 0;
    process p;
    p.id = id;
    if (name_end == std::string::npos ||
        std::sscanf(stat.c_str() + name_end + 1,
                    " %c %d %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d", &state,
                    &p.parent, &p.group, &threads) != 4)
        return std::nullopt;
    // A first thread that has ended before the others is shown as a zombie too.
    p.ended = (state == 'Z' && threads <= 1) || state == 'X';
    return p;
}

bool contains(const std::vector<pid_t>& all, pid_t id)
{
    return std::find(all.begin(), all.end(), id) != all.end();
}

/// In the order of /proc, and as they are found: the longer one waits, the more of its own it has started.
void kill_family(pid_t ancestor, const std::vector<pid_t>& except)
{
    std::set<pid_t> family{ancestor};
    for (const pid_t id : numbers_in("/proc")) {
        const auto p = look_at(id);
        if (p && family.contains(p->parent) && !contains(except, id)) {
            family.insert(id);
            kill(id, SIGKILL);
        }
    }
}

} // namespace

void require_proc()
{
    char self[32] = "";
    if (readlink("/proc/self", self, sizeof self - 1) <= 0)
        throw std::runtime_error{"there is no /proc"};
    if (std::atoi(self) != getpid())
        throw std::runtime_error{"/proc is that of another PID namespace (unshare --mount-proc)"};
}

std::vector<process> all_processes()
{
    std::vector<process> all;
    for (const pid_t id : numbers_in("/proc")) {
        if (const auto p = look_at(id))
            all.push_back(*p);
    }
    return all;
}

std::vector<pid_t> children_of(pid_t parent)
{
    std::vector<pid_t> found;
    const std::string path = "task/" + std::to_string(parent) + "/children";
    std::istringstream list{text_of(parent, path.c_str())};
    static const bool is_there = access("/proc/thread-self/children", R_OK) == 0;
    if (!is_there) {
        for (const process& p : all_processes()) {
            if (p.parent == parent)
                found.push_back(p.id);
        }
    }
    for (pid_t child = 0; list >> child;)
        found.push_back(child);
    return found;
}

std::vector<process> running_below(pid_t ancestor, const std::vector<pid_t>& except)
{
    std::vector<process> found;
    const auto all = all_processes();
    std::set<pid_t> family{ancestor};
    for (std::size_t before = 0; before != family.size();) { // until there is no more generation
        before = family.size();
        for (const process& p : all) {
            if (!contains(except, p.id) && family.contains(p.parent) &&
                family.insert(p.id).second && !p.ended)
                found.push_back(p);
        }
    }
    return found;
}

bool none_below(pid_t ancestor, const std::vector<pid_t>& except)
{
    auto before = children_of(ancestor);
    for (int n = 0; n != 10; ++n) {
        for (const pid_t id : before) {
            const auto p = contains(except, id) ? std::nullopt : look_at(id);
            if (p && !p->ended)
                return false;
        }
        // All of them were dead by now, and the dead have no children: so none is there, unless one came meanwhile.
        auto after = children_of(ancestor);
        if (after == before)
            return true;
        before.swap(after);
    }
    return false;
}

void kill_below(pid_t ancestor, const std::vector<pid_t>& except)
{
    const time_point limit = amux::clock::now() + 100ms;
    do {
        kill_family(ancestor, except);
        // Who passes itself on is faster than that. But whenever a parent dies, the child is here.
        for (int n = 0; n != 20; ++n) {
            for (const pid_t id : children_of(ancestor)) {
                if (!contains(except, id))
                    kill(id, SIGKILL);
            }
        }
    } while (!none_below(ancestor, except) && amux::clock::now() < limit);
}

std::vector<pid_t> running_in_group(pid_t group)
{
    std::vector<pid_t> found;
    if (kill(-group, 0) != 0 && errno == ESRCH)
        return found;
    for (const process& p : all_processes()) {
        if (p.group == group && !p.ended)
            found.push_back(p.id);
    }
    return found;
}

std::vector<pid_t> running_with(std::string_view variable, std::string_view word, int signal)
{
    std::vector<pid_t> found;
    const std::string name = '\0' + std::string{variable} + '=';
    for (const pid_t id : numbers_in("/proc")) {
        const std::string all = '\0' + text_of(id, "environ");
        const auto begin = all.find(name);
        if (begin == all.npos || id == getpid())
            continue;
        const std::string_view list{all.c_str() + begin + name.size()};
        if (list.find(word) == list.npos)
            continue;
        if (signal != 0)
            kill(id, signal);
        found.push_back(id);
    }
    return found;
}

unsigned long long begun_so_far()
{
    std::istringstream in{text_of("/proc/stat")};
    for (std::string name; in >> name;) {
        unsigned long long number = 0;
        if (name == "processes" && in >> number)
            return number;
    }
    return 0;
}

std::vector<int> open_descriptors()
{
    return numbers_in("/proc/self/fd");
}

} // namespace amuxctl

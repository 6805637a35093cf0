// SPDX-License-Identifier: BSL-1.0
#include "processes.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace amuxctl {

namespace {

using namespace std::chrono_literals;

struct close_folder {
    void operator()(DIR* d) const { closedir(d); }
};

/// Not to be able to look is another thing than to see nothing.
[[noreturn]] void fail(const std::string& path)
{
    throw std::system_error{errno, std::generic_category(), path};
}

/// The names in a folder that are numbers. The folder itself is closed when they are known.
/// Throws: `std::system_error`.
std::vector<int> numbers_in(const char* path)
{
    std::vector<int> found;
    const std::unique_ptr<DIR, close_folder> folder{opendir(path)};
    if (!folder)
        fail(path);
    while (const dirent* entry = readdir(folder.get())) {
        if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9')
            found.push_back(std::atoi(entry->d_name));
    }
    return found;
}

/// To the end. False with `errno` when it cannot be read.
bool read_all(int fd, std::string& text)
{
    char part[16 * 1024];
    ssize_t size = 0;
    while ((size = read(fd, part, sizeof part)) > 0)
        text.append(part, static_cast<std::size_t>(size));
    return size == 0;
}

/// None when it is not there, or not for us: not by a stream, which throws when the process ends between the opening and
/// the reading. Throws: `std::system_error` when nothing can be opened at all.
std::optional<std::string> text_if_readable(const std::string& path)
{
    std::string text;
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const bool done = fd >= 0 && read_all(fd, text);
    const int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    if (!done && (error == EMFILE || error == ENFILE || error == ENOMEM))
        fail(path);
    return done ? std::optional{text} : std::nullopt;
}

std::string text_of(const std::string& path)
{
    return text_if_readable(path).value_or("");
}

std::string path_of(pid_t id, const char* file)
{
    return "/proc/" + std::to_string(id) + "/" + file;
}

std::optional<process> look_at(pid_t id)
{
    const std::string stat = text_of(path_of(id, "stat"));
    // The name, in parentheses, may have any characters in it.
    const auto name_end = stat.rfind(')');
    char state = 0;
    unsigned flags = 0;
    int threads = 0;
    process p;
    p.id = id;
    if (name_end == std::string::npos ||
        std::sscanf(stat.c_str() + name_end + 1,
                    " %c %d %d %*s %*s %*s %u %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d %*s %llu",
                    &state, &p.parent, &p.group, &flags, &threads, &p.begun) != 6)
        return std::nullopt;
    p.of_the_kernel = (flags & 0x00200000) != 0; // PF_KTHREAD
    // A first thread that has ended before the others is shown as a zombie too.
    p.ended = (state == 'Z' && threads <= 1) || state == 'X';
    return p;
}

bool contains(const std::vector<pid_t>& all, pid_t id)
{
    return std::find(all.begin(), all.end(), id) != all.end();
}

/// Whether nothing of it runs any more. Of a child of ours the kernel tells, of others /proc, unless they are hidden there.
bool has_ended(pid_t id)
{
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(id), &info, WEXITED | WNOHANG | WNOWAIT) == 0)
        return info.si_pid == id;
    try {
        if (const auto p = look_at(id))
            return p->ended;
    } catch (const std::system_error&) {
        return false;
    }
    return kill(id, 0) != 0 && errno == ESRCH;
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

std::optional<std::vector<process>> all_processes()
{
    std::vector<process> all;
    try {
        for (const pid_t id : numbers_in("/proc")) {
            if (const auto p = look_at(id))
                all.push_back(*p);
        }
    } catch (const std::system_error&) {
        return std::nullopt;
    }
    return all;
}

void send_signal(const process& to, int signal)
{
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, to.id, 0));
    if (fd < 0) {
        if (errno != ESRCH)
            kill(to.id, signal);
        return;
    }
    // Opened first: whose the number is now has had it then, or is another one.
    bool is_same = true;
    try {
        const auto now = look_at(to.id);
        is_same = now && now->begun == to.begun;
    } catch (const std::system_error&) { // it cannot be told
    }
    if (is_same)
        syscall(SYS_pidfd_send_signal, fd, signal, nullptr, 0);
    close(fd);
}

descendants::descendants(pid_t ancestor, std::vector<pid_t> except)
    : ancestor_{ancestor}, except_{std::move(except)}
{
    const std::string id = std::to_string(ancestor);
    const std::string path = "/proc/" + id + "/task/" + id + "/children";
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT)
        fail(path);
    if (fd >= 0)
        list_.emplace(fd);
}

std::optional<std::vector<pid_t>> descendants::children() const
{
    std::vector<pid_t> found;
    if (!list_) {
        const auto all = all_processes();
        if (!all)
            return std::nullopt;
        for (const process& p : *all) {
            if (p.parent == ancestor_)
                found.push_back(p.id);
        }
        return found;
    }
    std::string text;
    if (lseek(list_->get(), 0, SEEK_SET) != 0 || !read_all(list_->get(), text))
        return std::nullopt;
    std::istringstream list{text};
    for (pid_t child = 0; list >> child;)
        found.push_back(child);
    return found;
}

bool descendants::is_other(pid_t id) const
{
    return contains(except_, id);
}

bool descendants::none() const
{
    auto before = children();
    for (int n = 0; n != 10 && before; ++n) {
        for (const pid_t id : *before) {
            if (!is_other(id) && !has_ended(id))
                return false;
        }
        // All of them were dead by now, and the dead have no children: so none is there, unless one came meanwhile.
        auto after = children();
        if (after == before)
            return true;
        before.swap(after);
    }
    return false;
}

std::map<pid_t, process> descendants::running() const
{
    std::map<pid_t, process> found;
    std::set<pid_t> family{ancestor_};
    for (const pid_t id : children().value_or(std::vector<pid_t>{})) {
        if (!is_other(id) && !has_ended(id) && family.insert(id).second)
            found[id] = {.id = id, .parent = ancestor_};
    }
    const auto all = all_processes().value_or(std::vector<process>{});
    for (std::size_t before = 0; before != family.size();) { // until there is no more generation
        before = family.size();
        for (const process& p : all) {
            if (!is_other(p.id) && family.contains(p.parent) && family.insert(p.id).second &&
                !p.ended)
                found[p.id] = p;
        }
    }
    return found;
}

/// In the order of /proc, and as they are found: the longer one waits, the more of its own it has started.
/// Returns: whom it has met.
std::set<pid_t> descendants::kill_once() const
{
    std::set<pid_t> met;
    try {
        for (const pid_t id : numbers_in("/proc")) {
            const auto p = look_at(id);
            if (!p || is_other(id) || (p->parent != ancestor_ && !met.contains(p->parent)))
                continue;
            met.insert(id);
            send_signal(*p, SIGKILL);
        }
    } catch (const std::system_error&) { // there are still the children
    }
    // Who passes itself on is faster than that, and who is hidden is not met. But whenever a parent dies, the child is here.
    for (int n = 0; n != 20; ++n) {
        for (const pid_t id : children().value_or(std::vector<pid_t>{})) {
            if (is_other(id))
                continue;
            met.insert(id);
            kill(id, SIGKILL);
        }
    }
    return met;
}

duration descendants::kill_all()
{
    const time_point limit = amux::clock::now() + (pause_ > shortest_pause ? 0ms : 100ms);
    std::set<pid_t> met;
    do {
        met = kill_once();
    } while (!none() && amux::clock::now() < limit);
    // Whoever takes no signal, or hangs in the kernel, does not go sooner for being asked more often.
    pause_ = met == left_ ? (std::min<duration>)(2 * pause_, 1s) : shortest_pause;
    left_.swap(met);
    return pause_;
}

std::optional<std::vector<pid_t>> running_in_group(pid_t group)
{
    std::vector<pid_t> found;
    if (kill(-group, 0) != 0 && errno == ESRCH)
        return found;
    const auto all = all_processes();
    if (!all)
        return std::nullopt;
    for (const process& p : *all) {
        if (p.group == group && !p.ended)
            found.push_back(p.id);
    }
    return found;
}

marked_processes::marked_processes(const std::string& variable, std::string word)
    : name_{'\0' + variable + '='}, word_{std::move(word)}
{}

std::optional<std::vector<pid_t>> marked_processes::running(int signal)
{
    std::vector<pid_t> found;
    try {
        for (const pid_t id : numbers_in("/proc")) {
            const auto p = look_at(id);
            if (!p || p->ended || p->of_the_kernel || id == getpid())
                continue;
            const verdict v = judge(*p);
            if (v == verdict::other)
                continue;
            if (v == verdict::marked && signal != 0)
                send_signal(*p, signal);
            found.push_back(id);
        }
    } catch (const std::system_error&) {
        return std::nullopt;
    }
    return found;
}

marked_processes::verdict marked_processes::judge(const process& p)
{
    const time_point now = amux::clock::now();
    sight& s = seen_[p.id];
    if (s.begun != p.begun)
        s = {p.begun, false, {}};
    if (s.marked)
        return verdict::marked;
    const auto environment = text_if_readable(path_of(p.id, "environ"));
    if (environment && environment->empty()) {
        if (s.empty_since == time_point{})
            s.empty_since = now;
        return now < s.empty_since + 1s ? verdict::undecided : verdict::other;
    }
    s.empty_since = {};
    const std::string all = '\0' + environment.value_or("");
    const auto begin = all.find(name_);
    if (begin == all.npos)
        return verdict::other;
    s.marked = std::string_view{all.c_str() + begin + name_.size()}.find(word_) != all.npos;
    return s.marked ? verdict::marked : verdict::other;
}

std::optional<unsigned long long> begun_so_far()
{
    try {
        std::istringstream in{text_of("/proc/stat")};
        for (std::string name; in >> name;) {
            unsigned long long number = 0;
            if (name == "processes" && in >> number)
                return number;
        }
    } catch (const std::system_error&) { // it cannot be told
    }
    return std::nullopt;
}

std::vector<int> open_descriptors()
{
    try {
        return numbers_in("/proc/self/fd");
    } catch (const std::system_error&) {
        return {};
    }
}

} // namespace amuxctl

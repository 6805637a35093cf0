// SPDX-License-Identifier: BSL-1.0
// A backend of your own: four operations, each atomic across all processes. This one keeps its leases as files in a
// directory, for the processes of one machine.
#include "check.hpp"

#include <amux/amux.hpp>
#include <amux/testing/conformance.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

// [backend]
/// Leases in files: one file for the keys that share a hash, replaced as a whole with every change.
///
/// A process that dies in the middle of an operation leaves the old file or the new one, and no lock: `flock` ends with
/// it, and `rename` is atomic. Not for NFS. An operation blocks its thread for as long as a small file takes.
class file_backend {
public:
    /// `time` is the loop of the lock, or of a test. Its clock is the same in all processes of a machine.
    file_backend(std::filesystem::path directory, const amux::scheduler& time)
        : directory_{std::move(directory)}, time_{&time}
    {}

    amux::task<bool> acquire(std::string_view key, std::string_view token, milliseconds ttl)
    {
        const directory_lock alone{directory_};
        lease_map leases = read(key);
        const auto found = leases.find(key);
        if (found != leases.end() && found->second.token != token)
            co_return false;
        // Also when it is ours: who has lost the answer asks again.
        write(std::move(leases), key, token, ttl);
        co_return true;
    }

    amux::task<bool> extend(std::string_view key, std::string_view token, milliseconds ttl)
    {
        const directory_lock alone{directory_};
        lease_map leases = read(key);
        const auto found = leases.find(key);
        if (found == leases.end() || found->second.token != token)
            co_return false; // it never creates a lease
        write(std::move(leases), key, token, ttl);
        co_return true;
    }

    amux::task<bool> release(std::string_view key, std::string_view token)
    {
        const directory_lock alone{directory_};
        lease_map leases = read(key);
        const auto found = leases.find(key);
        if (found == leases.end() || found->second.token != token)
            co_return false;
        leases.erase(found);
        write(leases, key);
        co_return true;
    }

    amux::task<std::optional<std::string>> get(std::string_view key)
    {
        const lease_map leases = read(key); // a file is replaced as a whole: no lock is needed
        const auto found = leases.find(key);
        if (found == leases.end())
            co_return std::nullopt;
        co_return found->second.token;
    }

private:
    struct lease {
        std::string token;
        milliseconds ttl{};
        milliseconds end{}; // by the clock
    };
    using lease_map = std::map<std::string, lease, std::less<>>;

    /// One process, and in it one thread, at a time.
    class directory_lock {
    public:
        explicit directory_lock(const std::filesystem::path& directory)
            : file_{::open((directory / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)}
        {
            if (file_ < 0) // nothing will help: there is no such directory, or no right to write
                fail(amux::backend_error_kind::permanent, "cannot open the lock of the directory");
            const auto limit = amux::clock::now() + 2s; // every operation ends
            while (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
                if (amux::clock::now() >= limit) {
                    ::close(file_);
                    fail(amux::backend_error_kind::not_applied, "the directory is busy");
                }
                std::this_thread::sleep_for(1ms);
            }
        }
        directory_lock(const directory_lock&) = delete;
        directory_lock& operator=(const directory_lock&) = delete;
        ~directory_lock() { ::close(file_); }

    private:
        const int file_;
    };

    [[noreturn]] static void fail(amux::backend_error_kind kind, const std::string& what)
    {
        throw amux::backend_error{kind, what};
    }

    milliseconds now() const
    {
        return std::chrono::floor<milliseconds>(time_->now().time_since_epoch());
    }

    std::filesystem::path file_of(std::string_view key) const
    {
        std::uint32_t hash = 2166136261; // FNV-1a: the same in every program
        for (const char c : key)
            hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
        return directory_ / ("leases-" + std::to_string(hash % 1024));
    }

    /// The leases in the file of a key that are alive.
    lease_map read(std::string_view key) const
    {
        lease_map leases;
        std::ifstream in{file_of(key), std::ios::binary};
        std::size_t key_size = 0;
        std::size_t token_size = 0;
        milliseconds::rep ttl = 0;
        milliseconds::rep end = 0;
        while (in >> key_size >> token_size >> ttl >> end) {
            in.ignore(1); // the space
            std::string k(key_size, ' ');
            lease l{std::string(token_size, ' '), milliseconds{ttl}, milliseconds{end}};
            in.read(k.data(), static_cast<std::streamsize>(key_size));
            in.read(l.token.data(), static_cast<std::streamsize>(token_size));
            // If more is left than it was given, the machine was started anew, and its holder is gone.
            const milliseconds left = l.end - now();
            if (left > 0ms && left <= l.ttl)
                leases.emplace(std::move(k), std::move(l));
        }
        return leases;
    }

    void write(lease_map leases, std::string_view key, std::string_view token,
               milliseconds ttl) const
    {
        leases[std::string{key}] = {std::string{token}, ttl, now() + ttl};
        write(leases, key);
    }

    void write(const lease_map& leases, std::string_view key) const
    {
        const std::filesystem::path fresh = directory_ / "fresh"; // we are alone
        std::ofstream out{fresh, std::ios::binary | std::ios::trunc};
        for (const auto& [k, l] : leases)
            out << k.size() << ' ' << l.token.size() << ' ' << l.ttl.count() << ' ' << l.end.count()
                << ' ' << k << l.token;
        out.close();
        std::error_code error;
        if (out)
            std::filesystem::rename(fresh, file_of(key), error);
        if (!out || error) // such as a full disk: nothing has changed
            fail(amux::backend_error_kind::not_applied, "cannot write the leases");
    }

    std::filesystem::path directory_;
    const amux::scheduler* time_;
};

static_assert(amux::lock_backend<file_backend>);
// [/backend]

// [conformance]
void test_the_law(const std::filesystem::path& directory)
{
    amux::manual_event_loop loop; // so that leases expire at once
    file_backend backend{directory, loop};
    const auto results =
        amux::testing::run_conformance(backend, amux::testing::in_virtual_time(loop));
    for (const auto& r : results) {
        if (!r.ok)
            std::fprintf(stderr, "%s: %s\n", r.name.c_str(), r.message.c_str());
        check(r.ok, r.name.c_str());
    }
    std::printf("the backend keeps %zu sentences of the law\n", results.size());
}
// [/conformance]

int read_number(const std::filesystem::path& file)
{
    int n = 0;
    std::ifstream{file} >> n;
    return n;
}

// [count]
/// Reads, waits, writes: only a lock makes that safe between processes.
amux::task<> count_up(amux::distributed_lock<file_backend&>& locks, amux::event_loop& loop,
                      std::filesystem::path file)
{
    for (int i = 0; i != 20; ++i) {
        auto lease = co_await locks.acquire("counter");
        const int n = read_number(file);
        co_await loop.sleep_for(1ms);
        std::ofstream{file} << n + 1;
        co_await lease.release();
    }
}

[[noreturn]] void be_a_process(const std::filesystem::path& directory)
{
    int result = 1;
    try {
        // [lifetime]
        amux::event_loop loop; // goes last: the store and the lock refer to it
        file_backend store{directory, loop}; // an lvalue: it does not go before its lock
        amux::distributed_lock locks{store, loop, {.poll_interval = 4ms}};
        loop.block_on(count_up(locks, loop, directory / "counter"));
        const bool answered = loop.block_on(locks.drain(1s)); // nothing asks the store any more
        // [/lifetime]
        result = answered ? 0 : 1;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
    }
    std::_Exit(result);
}
// [/count]

/// A directory that is gone when this is.
class temporary_directory {
public:
    temporary_directory()
    {
        std::string name = (std::filesystem::temp_directory_path() / "amux-XXXXXX").string();
        check(::mkdtemp(name.data()) != nullptr, "there is a temporary directory");
        path_ = name;
    }
    temporary_directory(const temporary_directory&) = delete;
    temporary_directory& operator=(const temporary_directory&) = delete;
    ~temporary_directory()
    {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
};

} // namespace

int main()
{
    const temporary_directory directory;
    test_the_law(directory.path());

    std::vector<pid_t> children;
    for (int i = 0; i != 4; ++i) {
        const pid_t child = ::fork();
        if (child == 0)
            be_a_process(directory.path());
        children.push_back(child);
    }
    for (const pid_t child : children) {
        int status = 0;
        ::waitpid(child, &status, 0);
        check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "each process is done");
    }
    const int counted = read_number(directory.path() / "counter");
    std::printf("4 processes have counted to %d\n", counted);
    check(counted == 80, "no count is lost");
}

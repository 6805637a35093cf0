// SPDX-License-Identifier: BSL-1.0
// Without this file nothing tells two holders at a time from one: the thing that a lease is to protect.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

namespace support {

/// A counter in a file that processes share.
///
/// `read` and `write` look at fences, each by itself: a holder that has lost its lease since it has read is refused.
/// `add_unfenced` relies on the lease alone. A process may be killed or stopped anywhere.
class protected_resource {
public:
    /// Requires: the first one on a file is made before others open it.
    explicit protected_resource(const std::filesystem::path& file)
    {
        const bool first = !std::filesystem::exists(file);
        const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 || ftruncate(fd, sizeof(state)) != 0)
            throw std::runtime_error("no file for the resource");
        void* const memory =
            mmap(nullptr, sizeof(state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (memory == MAP_FAILED)
            throw std::runtime_error("no memory for the resource");
        state_ = static_cast<state*>(memory);
        if (!first)
            return;
        pthread_mutexattr_t kind;
        pthread_mutexattr_init(&kind);
        pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&state_->mutex, &kind);
        pthread_mutexattr_destroy(&kind);
    }
    protected_resource(const protected_resource&) = delete;
    protected_resource& operator=(const protected_resource&) = delete;
    ~protected_resource() { munmap(state_, sizeof(state)); }

    /// None when a higher fence was seen.
    std::optional<std::int64_t> read(std::uint64_t fence)
    {
        return change(fence, [](content&) {});
    }
    bool write(std::uint64_t fence, std::int64_t value)
    {
        return change(fence,
                      [value](content& c) {
                          c.counter = value;
                          ++c.writes;
                      })
            .has_value();
    }
    void add_unfenced()
    {
        const std::int64_t seen = state_->plain.load(std::memory_order_relaxed);
        sched_yield(); // room for somebody who must not be there
        state_->plain.store(seen + 1, std::memory_order_relaxed);
    }

    std::int64_t counter() { return look().counter; }
    std::int64_t writes() { return look().writes; }
    std::int64_t refused() { return look().refused; }
    std::uint64_t highest() { return look().highest; }
    std::int64_t plain() const { return state_->plain.load(std::memory_order_relaxed); }

private:
    struct content {
        std::uint64_t highest = 0;
        std::int64_t counter = 0;
        std::int64_t writes = 0;
        std::int64_t refused = 0;
    };
    struct state {
        pthread_mutex_t mutex;
        // Which of the two counts: whoever dies half way through a change leaves the other one broken.
        std::atomic<std::uint32_t> current;
        content contents[2];
        std::atomic<std::int64_t> plain;
    };

    class holder {
    public:
        explicit holder(state& s) : state_{s}
        {
            if (pthread_mutex_lock(&s.mutex) == EOWNERDEAD)
                pthread_mutex_consistent(&s.mutex);
        }
        holder(const holder&) = delete;
        holder& operator=(const holder&) = delete;
        ~holder() { pthread_mutex_unlock(&state_.mutex); }

    private:
        state& state_;
    };

    content look()
    {
        const holder hold{*state_};
        return state_->contents[state_->current];
    }

    template <class F>
    std::optional<std::int64_t> change(std::uint64_t fence, F f)
    {
        const holder hold{*state_};
        const std::uint32_t now = state_->current;
        content next = state_->contents[now];
        const bool good = fence >= next.highest;
        if (good) {
            next.highest = fence;
            f(next);
        } else {
            ++next.refused;
        }
        state_->contents[1 - now] = next;
        state_->current = 1 - now;
        return good ? std::optional{next.counter} : std::nullopt;
    }

    state* state_ = nullptr;
};

} // namespace support

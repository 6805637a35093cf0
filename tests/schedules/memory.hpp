// SPDX-License-Identifier: BSL-1.0
// Without this file what is touched after it is gone looks as it did before.
#pragma once

#include "schedules/explorer.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define AMUX_SCHEDULES_POISON(address, size) __asan_poison_memory_region(address, size)
#define AMUX_SCHEDULES_UNPOISON(address, size) __asan_unpoison_memory_region(address, size)
#else
#define AMUX_SCHEDULES_POISON(address, size) static_cast<void>(0)
#define AMUX_SCHEDULES_UNPOISON(address, size) static_cast<void>(0)
#endif

namespace schedules {

/// Room for one object at a time. What was given back is filled with a pattern, of which no valid pointer is made, and
/// must hold it still when everything has ended; the address sanitizer sees each access at once.
class watched_memory {
public:
    watched_memory() noexcept { std::memset(room_.data(), pattern, room_.size()); }
    watched_memory(const watched_memory&) = delete;
    watched_memory& operator=(const watched_memory&) = delete;
    ~watched_memory() { AMUX_SCHEDULES_UNPOISON(room_.data(), room_.size()); }

    void* take(std::size_t size) noexcept
    {
        require(size <= room_.size() && used_ == 0, "there is no room");
        AMUX_SCHEDULES_UNPOISON(room_.data(), size);
        used_ = size;
        return room_.data();
    }

    static void give_back(void* object) noexcept
    {
        // `room_` is the first member.
        watched_memory& self = *reinterpret_cast<watched_memory*>(object);
        std::memset(self.room_.data(), pattern, self.used_);
        AMUX_SCHEDULES_POISON(self.room_.data(), self.used_);
        self.given_back_ = std::max(self.given_back_, std::exchange(self.used_, 0));
    }

    void* address() noexcept { return room_.data(); }

    /// Nothing is there now, and what was there has not been written to.
    void require_untouched(const char* otherwise) noexcept
    {
        require(used_ == 0, "something is left that should be gone");
        AMUX_SCHEDULES_UNPOISON(room_.data(), given_back_);
        require(std::memcmp(room_.data(), untouched.data(), given_back_) == 0, otherwise);
        given_back_ = 0;
    }

private:
    using bytes = std::array<unsigned char, 1024>;
    static constexpr unsigned char pattern = 0xDD;
    static constexpr bytes untouched = [] {
        bytes b{};
        b.fill(pattern);
        return b;
    }();

    alignas(64) bytes room_;
    std::size_t used_ = 0;
    std::size_t given_back_ = 0;
};

} // namespace schedules

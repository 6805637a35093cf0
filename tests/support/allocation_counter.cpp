// SPDX-License-Identifier: BSL-1.0
// Without this file a promise to allocate nothing is not tested.
#include "support/allocation_counter.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

// clang's sanitizers link forms of their own that cannot be replaced.
#if defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define SANITIZER_OWNS_NEW
#endif
#endif

namespace {

std::atomic<std::size_t> made{0};
std::atomic<std::ptrdiff_t> live{0};
thread_local std::size_t until_none = 0; // calls; 0: there is memory
thread_local bool missed = false;

/// Whether this call finds none.
[[maybe_unused]] bool none_left() noexcept
{
    if (until_none == 0)
        return false;
    if (until_none > 1) {
        --until_none;
        return false;
    }
    missed = true;
    return true;
}

void* counted(void* p) noexcept
{
    if (p) {
        made.fetch_add(1, std::memory_order_relaxed);
        live.fetch_add(1, std::memory_order_relaxed);
    }
    return p;
}

[[maybe_unused]] void* allocate(std::size_t size) noexcept
{
    return none_left() ? nullptr : counted(std::malloc(size != 0 ? size : 1));
}

[[maybe_unused]] void* allocate(std::size_t size, std::align_val_t alignment) noexcept
{
    const auto a = static_cast<std::size_t>(alignment);
    if (none_left())
        return nullptr;
    return counted(std::aligned_alloc(a, (size + a - 1) / a * a));
}

[[maybe_unused]] void* or_throw(void* p)
{
    if (!p)
        throw std::bad_alloc{};
    return p;
}

[[maybe_unused]] void release(void* p) noexcept
{
    if (p)
        live.fetch_sub(1, std::memory_order_relaxed);
    std::free(p);
}

} // namespace

namespace support {

std::size_t allocations() noexcept
{
    return made.load(std::memory_order_relaxed);
}

std::ptrdiff_t live_allocations() noexcept
{
    return live.load(std::memory_order_relaxed);
}

no_memory::no_memory(std::size_t nth) noexcept
{
    missed = false;
    until_none = nth;
}
no_memory::~no_memory()
{
    until_none = 0;
}

bool no_memory::was_missed() const noexcept
{
    return missed;
}

} // namespace support

#if !defined(SANITIZER_OWNS_NEW)

// All forms: those of a sanitizer do not call one another.
void* operator new(std::size_t n)
{
    return or_throw(allocate(n));
}
void* operator new[](std::size_t n)
{
    return or_throw(allocate(n));
}
void* operator new(std::size_t n, std::align_val_t a)
{
    return or_throw(allocate(n, a));
}
void* operator new[](std::size_t n, std::align_val_t a)
{
    return or_throw(allocate(n, a));
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept
{
    return allocate(n);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept
{
    return allocate(n);
}
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept
{
    return allocate(n, a);
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept
{
    return allocate(n, a);
}
void operator delete(void* p) noexcept
{
    release(p);
}
void operator delete[](void* p) noexcept
{
    release(p);
}
void operator delete(void* p, std::size_t) noexcept
{
    release(p);
}
void operator delete[](void* p, std::size_t) noexcept
{
    release(p);
}
void operator delete(void* p, std::align_val_t) noexcept
{
    release(p);
}
void operator delete[](void* p, std::align_val_t) noexcept
{
    release(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept
{
    release(p);
}
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept
{
    release(p);
}

#endif

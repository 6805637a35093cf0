// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace amux::detail {

/// Memory for one operation of Asio at a time, so that starting it again allocates nothing.
class asio_memory {
public:
    asio_memory() = default;
    asio_memory(const asio_memory&) = delete;
    asio_memory& operator=(const asio_memory&) = delete;

    void* allocate(std::size_t size)
    {
        if (size <= sizeof block_ && !used_.exchange(true, std::memory_order_acquire))
            return block_;
        return ::operator new(size);
    }

    void deallocate(void* p) noexcept
    {
        if (p == block_)
            used_.store(false, std::memory_order_release);
        else
            ::operator delete(p);
    }

private:
    alignas(std::max_align_t) std::byte block_[256];
    std::atomic<bool> used_{false};
};

/// Gives an `asio_memory`, which it keeps alive, to a handler of Asio.
template <class T>
class asio_allocator {
public:
    using value_type = T;

    explicit asio_allocator(std::shared_ptr<asio_memory> m) noexcept : memory_{std::move(m)} {}
    template <class U>
    asio_allocator(const asio_allocator<U>& other) noexcept : memory_{other.memory()}
    {}

    T* allocate(std::size_t n)
    {
        static_assert(alignof(T) <= alignof(std::max_align_t));
        return static_cast<T*>(memory_->allocate(n * sizeof(T)));
    }
    void deallocate(T* p, std::size_t) noexcept { memory_->deallocate(p); }

    const std::shared_ptr<asio_memory>& memory() const noexcept { return memory_; }

    template <class U>
    bool operator==(const asio_allocator<U>& other) const noexcept
    {
        return memory_ == other.memory();
    }

private:
    std::shared_ptr<asio_memory> memory_;
};

} // namespace amux::detail

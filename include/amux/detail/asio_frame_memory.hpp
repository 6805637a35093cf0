// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/asio_config.hpp>

#if defined(AMUX_STANDALONE_ASIO)
#include <asio/associated_allocator.hpp>
#include <asio/recycling_allocator.hpp>
#else
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/recycling_allocator.hpp>
#endif

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace amux::detail {

/// Lays the frame of an operation into memory of its handler's allocator, a copy of which stands behind it.
template <class Work, class Handler>
class asio_frame_memory {
public:
    static void* operator new(std::size_t size, Work& /*work*/, Handler& handler, bool& /*ended*/)
    {
        allocator a{asio::get_associated_allocator(handler, asio::recycling_allocator<void>{})};
        block* const p = std::allocator_traits<allocator>::allocate(a, blocks(size) + extra);
        new (p + blocks(size)) allocator(std::move(a));
        return p;
    }
    static void operator delete(void* p, std::size_t size) noexcept
    {
        auto* const first = static_cast<block*>(p);
        auto* const kept = std::launder(reinterpret_cast<allocator*>(first + blocks(size)));
        allocator a{std::move(*kept)};
        kept->~allocator();
        std::allocator_traits<allocator>::deallocate(a, first, blocks(size) + extra);
    }

private:
    struct alignas(std::max_align_t) block {
        std::byte bytes[alignof(std::max_align_t)];
    };
    using allocator = typename std::allocator_traits<asio::associated_allocator_t<
        Handler, asio::recycling_allocator<void>>>::template rebind_alloc<block>;
    static_assert(alignof(allocator) <= alignof(block));
    static constexpr std::size_t blocks(std::size_t size) noexcept
    {
        return (size + sizeof(block) - 1) / sizeof(block);
    }
    static constexpr std::size_t extra = (sizeof(allocator) + sizeof(block) - 1) / sizeof(block);
};

} // namespace amux::detail

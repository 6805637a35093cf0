// SPDX-License-Identifier: BSL-1.0
// Without this file there is nothing to switch between.
#include "schedules/fibre.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <link.h>
#include <new>
#include <pthread.h>

#if defined(__SANITIZE_ADDRESS__)
#define AMUX_SCHEDULES_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define AMUX_SCHEDULES_ASAN 1
#endif
#endif
#if defined(AMUX_SCHEDULES_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

namespace schedules::fibres {
namespace {

struct fibre {
#if defined(__x86_64__) || defined(__aarch64__)
    void* stack_pointer;
#else
    ucontext_t context;
#endif
    void* fake_stack;
    const void* bottom;
    std::size_t size;
    std::byte* thread_locals; // while another runs; never freed: they may own memory
    std::array<std::byte, 2 * sizeof(void*)> exceptions; // those caught, and how many are in flight
};

constexpr std::size_t stack_size = 256 * 1024;

std::array<fibre, most + 1> all;
void (*body_of_all)(int);

/// The thread-locals of the executable; those of shared libraries stay where they are.
struct thread_local_block {
    std::byte* address = nullptr;
    std::size_t size = 0;
    const std::byte* image = nullptr; // how they begin; the rest is zero
    std::size_t image_size = 0;
} block;

int find_thread_locals(dl_phdr_info* info, std::size_t, void*)
{
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& header = info->dlpi_phdr[i];
        if (header.p_type != PT_TLS || !info->dlpi_tls_data)
            continue;
        block.address = static_cast<std::byte*>(info->dlpi_tls_data);
        block.size = header.p_memsz;
        block.image = reinterpret_cast<const std::byte*>(info->dlpi_addr + header.p_vaddr);
        block.image_size = header.p_filesz;
    }
    return 1; // the first is the executable
}

void switched() noexcept
{
#if defined(AMUX_SCHEDULES_ASAN)
    const fibre& self = all[static_cast<std::size_t>(running_now)];
    __sanitizer_finish_switch_fiber(self.fake_stack, nullptr, nullptr);
#endif
}

} // namespace

extern "C" void amux_schedules_fibre_main()
{
    switched();
    body_of_all(running_now);
    std::abort();
}

// What a call may not change goes to the stack, and the stack pointer to where `from` points.
extern "C" void amux_schedules_switch(void** from, void* to) noexcept;
#if defined(__x86_64__)
asm(R"(
.text
.type amux_schedules_switch, @function
amux_schedules_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size amux_schedules_switch, . - amux_schedules_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.type amux_schedules_switch, %function
amux_schedules_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size amux_schedules_switch, . - amux_schedules_switch
)");
#endif

namespace {

void prepare_stack(fibre& f, std::byte* stack)
{
#if defined(AMUX_SCHEDULES_ASAN)
    __asan_unpoison_memory_region(stack, stack_size);
#endif
    f.bottom = stack;
    f.size = stack_size;
    f.fake_stack = nullptr;
#if defined(__x86_64__)
    auto** top = reinterpret_cast<void**>(stack + stack_size);
    *--top = nullptr; // as if called: the stack is 16 bytes aligned before the return address
    *--top = reinterpret_cast<void*>(&amux_schedules_fibre_main);
    for (int saved = 0; saved < 6; ++saved)
        *--top = nullptr;
    f.stack_pointer = top;
#elif defined(__aarch64__)
    auto** top = reinterpret_cast<void**>(stack + stack_size - 160);
    std::memset(static_cast<void*>(top), 0, 160);
    top[11] = reinterpret_cast<void*>(&amux_schedules_fibre_main); // x30, where it returns to
    f.stack_pointer = top;
#else
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stack;
    f.context.uc_stack.ss_size = stack_size;
    makecontext(&f.context, &amux_schedules_fibre_main, 0);
#endif
}

void find_main_stack(fibre& f)
{
    pthread_attr_t attributes;
    void* bottom = nullptr;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &bottom, &f.size);
    pthread_attr_destroy(&attributes);
    f.bottom = bottom;
}

} // namespace

void start(void (*body)(int))
{
    static std::byte* const stacks =
        static_cast<std::byte*>(::operator new(most * stack_size, std::align_val_t{4096}));
    body_of_all = body;
    if (!block.address)
        dl_iterate_phdr(&find_thread_locals, nullptr);
    for (std::size_t i = 0; i < all.size(); ++i) {
        fibre& f = all[i];
        f.exceptions = {};
        if (!f.thread_locals) {
            f.thread_locals = new std::byte[block.size + 1]{};
            std::copy_n(block.image, block.image_size, f.thread_locals);
        }
        if (i < most)
            prepare_stack(f, stacks + i * stack_size);
        else
            find_main_stack(f);
    }
}

void switch_to(int number) noexcept
{
    fibre& from = all[static_cast<std::size_t>(running_now)];
    fibre& to = all[static_cast<std::size_t>(number)];
    running_now = number;
    if (block.size != 0) {
        std::memcpy(from.thread_locals, block.address, block.size);
        std::memcpy(block.address, to.thread_locals, block.size);
    }
    void* const exceptions = abi::__cxa_get_globals();
    std::memcpy(from.exceptions.data(), exceptions, from.exceptions.size());
    std::memcpy(exceptions, to.exceptions.data(), to.exceptions.size());
#if defined(AMUX_SCHEDULES_ASAN)
    __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.size);
#endif
#if defined(__x86_64__) || defined(__aarch64__)
    amux_schedules_switch(&from.stack_pointer, to.stack_pointer);
#else
    swapcontext(&from.context, &to.context);
#endif
    switched();
}

} // namespace schedules::fibres

// SPDX-License-Identifier: BSL-1.0
// How deep the stack gets when a lock is handed over in the two ways that amux does not use; see rejected_ideas.py.
#include <coroutine>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <utility>

namespace {

/// A coroutine that nobody awaits; it begins at once and owns itself.
struct job {
    struct promise_type {
        job get_return_object() const noexcept { return {}; }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }
    };
};

// Idea: give the thread to the next coroutine by symmetric transfer.

struct hand_over {
    std::coroutine_handle<>& other;
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> me) const noexcept
    {
        return std::exchange(other, me); // a jump, if the compiler makes one
    }
    void await_resume() const noexcept {}
};

struct pause {
    std::coroutine_handle<>& me;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> h) const noexcept { me = h; }
    void await_resume() const noexcept {}
};

job take_turns(std::coroutine_handle<>& other, long& left, std::coroutine_handle<>* start)
{
    if (start)
        co_await pause{*start};
    while (--left > 0)
        co_await hand_over{other};
}

void transfer(long turns)
{
    std::coroutine_handle<> other;
    std::coroutine_handle<> first;
    take_turns(other, turns, &first);
    take_turns(other, turns, &other);
    first.resume();
    std::printf("%ld\n", turns); // 0: they have taken all turns
    std::fflush(stdout);
    std::_Exit(0); // the two are left where they are
}

// Idea: resume the next waiter inside unlock(), without a queue.

class nesting_mutex {
public:
    struct waiter {
        nesting_mutex& m;
        std::coroutine_handle<> handle{};
        waiter* next = nullptr;
        bool await_ready() const noexcept { return !std::exchange(m.held_, true); }
        void await_suspend(std::coroutine_handle<> h) noexcept
        {
            handle = h;
            (m.last_ ? m.last_->next : m.first_) = this;
            m.last_ = this;
        }
        void await_resume() const noexcept {}
    };

    waiter lock() noexcept { return {*this}; }
    void unlock()
    {
        waiter* const w = first_;
        if (!w)
            return void(held_ = false);
        first_ = w->next;
        if (!first_)
            last_ = nullptr;
        w->handle.resume();
    }

private:
    bool held_ = false;
    waiter* first_ = nullptr;
    waiter* last_ = nullptr;
};

job pass_on(nesting_mutex& m, long& served)
{
    co_await m.lock();
    ++served;
    m.unlock();
}

void nest(long waiters)
{
    nesting_mutex m;
    long served = 0;
    static_cast<void>(m.lock().await_ready()); // held
    for (long i = 0; i != waiters; ++i)
        pass_on(m, served);
    m.unlock();
    std::printf("%ld\n", served);
}

} // namespace

int main(int argc, char** argv)
{
    const std::string_view idea = argc > 2 ? argv[1] : "";
    const long n = argc > 2 ? std::atol(argv[2]) : 0;
    if (idea == "transfer")
        transfer(n);
    else if (idea == "nest")
        nest(n);
    else
        std::fprintf(stderr, "usage: see tests/benchmarks/rejected_ideas.py\n");
    return idea == "nest" ? 0 : 2;
}

// SPDX-License-Identifier: BSL-1.0
// Without this file nobody but chance looks for programs on which a mux and the model of it differ.
// libFuzzer: -max_len=1024 -len_control=10
#include "fuzz/program_of_bytes.hpp"

#include "support/model_driver.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

using namespace walks;

namespace {

// libFuzzer keeps inputs that raise one of these, as it keeps those that reach new code.
[[gnu::section("__libfuzzer_extra_counters")]] unsigned char states[1 << 13];

bool looks_for_states = true;

unsigned size_of(std::size_t n)
{
    return n > 2 ? 3 : static_cast<unsigned>(n);
}

unsigned digest(const counts& c)
{
    const unsigned mode = !c.mode ? 0 : *c.mode == lock_mode::shared ? 1 : 2;
    const unsigned who = size_of(c.holders) * 4 + size_of(c.waiters);
    return (mode * 16 + who) * 2 + (c.granted_not_resumed != 0);
}

/// Most mistakes in a lock show in a state that no line of it stands for: tells the fuzzer which states there were.
void tell_states(const program& p)
{
    model m{p.prevent_reentrancy, p.max_waiters};
    for (const step& s : p.steps) {
        if (!m.applies(s.what, s.id))
            continue;
        const unsigned whole = digest(m.count(-1));
        const unsigned key = digest(m.count(0));
        const unsigned other = digest(m.count(1));
        const unsigned state = ((static_cast<unsigned>(s.what) * 96 + whole) * 96 + key) * 96;
        states[(state + other) * 2654435761u >> 19] = 1;
        m.apply(s);
    }
}

template <class Mux, forms Forms>
void walk(byte_source from)
{
    const checks c{.after_each_step = true, .tried_keys = most_keys, .finish = from.below(4) != 3};
    const program p = program_of_bytes{from, Forms}.make();
    if (looks_for_states)
        tell_states(p);
    if (run<Mux, Forms>(p, c).empty())
        return;
    const program smallest =
        shrunk(p, [&c](const program& less) { return !run<Mux, Forms>(less, c).empty(); });
    std::fprintf(stderr, "a smallest program that fails:\n%s\n",
                 report<Mux, Forms>(smallest, c).c_str());
    std::abort();
}

} // namespace

// A corpus is kept for the code that it reaches: there are too many states.
extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments)
{
    for (int i = 1; i < *count; ++i) {
        if (std::string_view{(*arguments)[i]}.find("merge") != std::string_view::npos)
            looks_for_states = false;
    }
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
    byte_source from{data, size};
    switch (from.below(4)) {
        case 0:
            walk<amux::asyncmux<int, growing<4>>, forms::all>(from);
            break;
        case 1:
            walk<amux::asyncmux<std::string>, forms::all>(from);
            break;
        case 2:
            walk<amux::asyncmux<owning_key, growing<16>, owning_key::hash>, forms::few>(from);
            break;
        default:
            walk<amux::unsynchronized_asyncmux<int>, forms::few>(from);
    }
    return 0;
}

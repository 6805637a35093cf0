// SPDX-License-Identifier: BSL-1.0
// Without this file the fuzzer may have no way left to write some step, and nobody would notice.
#include "fuzz/program_of_bytes.hpp"

#include "support/model.hpp"

#include <catch2/catch_test_macros.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <tuple>
#include <vector>

using namespace walks;

namespace {

program random_bytes(std::mt19937& random, forms ways)
{
    std::vector<std::uint8_t> bytes(400);
    for (std::uint8_t& b : bytes)
        b = static_cast<std::uint8_t>(random());
    byte_source from{bytes.data(), bytes.size()};
    return program_of_bytes{from, ways}.make();
}

} // namespace

TEST_CASE("fuzzing: bytes make steps of every kind that apply", "[random]")
{
    std::mt19937 random{1};
    std::set<verb> verbs;
    std::set<verb> afterwards;
    std::set<std::tuple<scope, limit, coroutine, bool>> requests; // and whether resume_on is said
    std::set<std::tuple<token, int, std::size_t>> details; // with the context and the keys
    for (int n = 0; n != 400; ++n) {
        const program p = random_bytes(random, forms::all);
        model now{p.prevent_reentrancy, p.max_waiters};
        for (const step& s : p.steps) {
            if (!now.applies(s.what, s.id))
                continue;
            now.apply(s);
            verbs.insert(s.what);
            if (s.what != verb::ask)
                continue;
            afterwards.insert(s.then);
            requests.insert({s.scope, s.limit, s.coroutine, s.resume_on != not_said});
            details.insert({s.token, s.context, s.key_count});
        }
    }
    CHECK(verbs.size() == 11);
    CHECK(afterwards.size() == 6);
    // Three scopes with three limits and one with none; tasks and spawned ones say no resume_on, and plain ones that have a
    // time must.
    CHECK(requests.size() == 3 * (6 + 5 + 5) + 6);
    CHECK(details.size() == 3 * 5 * 5);
}

TEST_CASE("fuzzing: where few ways to ask are compiled, bytes ask in no other", "[random]")
{
    std::mt19937 random{1};
    for (int n = 0; n != 100; ++n) {
        for (const step& s : random_bytes(random, forms::few).steps) {
            CHECK(s.resume_on == not_said);
            CHECK((s.coroutine == coroutine::plain || s.coroutine == coroutine::hooked));
            CHECK((!s.timed() || (s.scope == scope::key && s.limit == limit::time &&
                                  s.coroutine == coroutine::hooked)));
            CHECK((s.scope != scope::listed || s.key_count == 2));
        }
    }
}

TEST_CASE("fuzzing: when the bytes end the program ends", "[random]")
{
    const std::uint8_t bytes[] = {0, 1, 0, 0};
    for (std::size_t size = 0; size <= sizeof bytes; ++size) {
        byte_source from{bytes, size};
        CHECK(program_of_bytes{from, forms::all}.make().steps.size() == (size < 3 ? 0u : 1u));
    }
}

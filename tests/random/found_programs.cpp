// SPDX-License-Identifier: BSL-1.0
// Without this file a program that was once found to fail may fail again without notice.
#include "support/model_driver.hpp"
#include "support/request.hpp"

#include <catch2/catch_test_macros.hpp>

#include <string>
#include <string_view>
#include <utility>

using namespace walks;

namespace {

step ask(int id, lock_mode mode, scope what, int context)
{
    step s;
    s.what = verb::ask;
    s.id = id;
    s.mode = mode;
    s.scope = what;
    s.key_count = what == scope::key ? 1 : 0;
    s.coroutine = coroutine::hooked;
    s.context = context;
    return s;
}

std::string run_found(const program& p)
{
    return run<amux::asyncmux<int, growing<4>>, forms::few>(p, {.tried_keys = 1});
}

} // namespace

TEST_CASE("prevent_reentrancy: no keys at all are granted to who holds the whole mux",
          "[asyncmux][reentrancy]")
{
    program p;
    p.prevent_reentrancy = true;
    p.steps = {ask(0, lock_mode::exclusive, scope::whole, 0),
               ask(1, lock_mode::exclusive, scope::range, 0)};
    CHECK(run_found(p) == "");
}

TEST_CASE("observer: a lock on one key is told with its key, also with prevent_reentrancy",
          "[asyncmux][reentrancy]")
{
    program p;
    p.prevent_reentrancy = true;
    p.steps = {ask(0, lock_mode::exclusive, scope::key, 0),
               ask(1, lock_mode::shared, scope::key, 1)};
    CHECK(run_found(p) == "");
}

TEST_CASE("asyncmux: a description refers to the text of a view, not to the view", "[asyncmux]")
{
    amux::asyncmux<> mux;
    std::string_view view{"a"};
    auto described = mux.lock(view);
    view = "b";
    support::request<amux::asyncmux<>::guard> asked{std::move(described)};
    REQUIRE(asked.guard().key() != nullptr);
    CHECK(*asked.guard().key() == "a");
}

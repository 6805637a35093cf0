// SPDX-License-Identifier: BSL-1.0
// Without this file two processes may believe in one lease after some mixture of lost answers, pauses and clocks, and
// nobody would know before their data do.
#include "support/lease_walk.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <chrono>

using namespace std::chrono_literals;
using amux::testing::plain_scripted_backend;
using amux::testing::scripted_backend;
using support::one_store;
using support::walk_manners;

TEMPLATE_TEST_CASE("distributed_lock: whatever the store and the clocks do, one process believes",
                   "[distributed_lock][random]", one_store<scripted_backend>,
                   one_store<plain_scripted_backend>)
{
    support::check_walks<TestType>({}, 500);
}

TEST_CASE("distributed_lock: with a store that works everybody is woken long before a poll",
          "[distributed_lock][random]")
{
    walk_manners manners;
    manners.store_fails = false;
    manners.pauses = false;
    manners.poll = 1h;
    manners.patience = 60s;
    support::check_walks<one_store<scripted_backend>>(manners, 500);
}

// SPDX-License-Identifier: BSL-1.0
// Without this file main.cpp would not know which rows there are.
#pragma once

#include "harness.hpp"

namespace bench {

void add_uncontended(table& t);
void add_queues(table& t);
void add_threads(table& t);
void add_whole_mux(table& t);
void add_cancellation(table& t);
void add_several(table& t);
void add_holding(table& t);
void add_observers(table& t);
void add_asio(table& t); // where Boost is found

} // namespace bench

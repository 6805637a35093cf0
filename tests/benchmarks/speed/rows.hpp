// SPDX-License-Identifier: BSL-1.0
// Without this file main.cpp would not know which rows there are.
#pragma once

#include "harness.hpp"

namespace bench {

void add_uncontended(table& t);

} // namespace bench

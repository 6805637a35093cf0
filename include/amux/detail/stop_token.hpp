// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <stop_token>
#include <version>

// A <stop_token> that exists may still be empty; this macro says that it is real.
#if !defined(__cpp_lib_jthread)
#error "amux needs std::stop_token. With libc++ before 20, compile with -fexperimental-library."
#endif

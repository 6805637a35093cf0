// SPDX-License-Identifier: BSL-1.0
// error: amux needs std::stop_token. With libc\+\+ before 20
#include <stop_token>
#include <thread>
#include <version>
#undef __cpp_lib_jthread /* as in a library whose <stop_token> is there, and empty */ // wrong
#include <amux/asyncmux.hpp>

// SPDX-License-Identifier: BSL-1.0
// Without this file no test sees in which order a scheduler runs its nodes.
#pragma once

#include <amux/scheduler.hpp>

#include <string>

namespace support {

/// A node that writes its letter down when it runs.
class recorded : public amux::scheduler::node {
public:
    recorded(char letter, std::string& log) noexcept : node{&write}, letter_{letter}, log_{log} {}

private:
    static void write(node& n) noexcept
    {
        const auto& self = static_cast<recorded&>(n);
        self.log_ += self.letter_;
    }

    char letter_;
    std::string& log_;
};

/// A node that calls something when it runs.
template <class F>
class calling : public amux::scheduler::node {
public:
    explicit calling(F f) : node{&call}, f_{f} {}

private:
    static void call(node& n) noexcept { static_cast<calling&>(n).f_(); }

    F f_;
};

} // namespace support

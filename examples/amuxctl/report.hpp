// SPDX-License-Identifier: BSL-1.0
// What amuxctl says of itself, on the standard error stream: the command has the other two.
#pragma once

#include "words.hpp"

#include <string>
#include <string_view>

namespace amuxctl {

/// A line to the standard error stream, as text or as JSON. `key` may be empty.
///
/// Effects: nothing when nobody takes it: who has a lease to keep, and a command to end, waits for no reader. Of a line
/// that is taken in part the rest is dropped.
void tell(bool json, std::string_view event, std::string_view key, std::string_view text);

class reporter {
public:
    reporter(const request& r) : json_{r.json}, loud_{r.loud}, key_{r.key} {}

    /// What ends the call, or the command.
    void error(std::string_view event, std::string_view text) const
    {
        tell(json_, event, key_, text);
    }
    /// What passes.
    void warning(std::string_view event, std::string_view text) const
    {
        if (loud_ != loudness::quiet)
            tell(json_, event, key_, text);
    }
    void detail(std::string_view event, std::string_view text) const
    {
        if (loud_ == loudness::verbose || (json_ && loud_ != loudness::quiet))
            tell(json_, event, key_, text);
    }

private:
    bool json_;
    loudness loud_;
    std::string key_;
};

} // namespace amuxctl

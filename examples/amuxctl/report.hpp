// SPDX-License-Identifier: BSL-1.0
// What amuxctl says of itself, on the standard error stream: the command has the other two.
#pragma once

#include "json.hpp"
#include "words.hpp"

#include <cstdio>
#include <string>
#include <string_view>

namespace amuxctl {

class reporter {
public:
    reporter(const request& r) : json_{r.json}, loud_{r.loud}, key_{r.key} {}

    /// What ends the call, or the command.
    void error(std::string_view event, std::string_view text) const { say(event, text); }
    /// What passes.
    void warning(std::string_view event, std::string_view text) const
    {
        if (loud_ != loudness::quiet)
            say(event, text);
    }
    void detail(std::string_view event, std::string_view text) const
    {
        if (loud_ == loudness::verbose || (json_ && loud_ != loudness::quiet))
            say(event, text);
    }

private:
    void say(std::string_view event, std::string_view text) const
    {
        constexpr std::string_view library = "amux: ";
        if (text.starts_with(library))
            text.remove_prefix(library.size());
        std::string line;
        if (json_) {
            json_line object;
            object.add("event", event).add("key", key_).add("text", text);
            line = object.done();
        } else {
            line = "amuxctl: " + plain_text(key_) + ": " + plain_text(text);
        }
        line += '\n';
        std::fputs(line.c_str(), stderr); // one write: the command may be writing too
    }

    bool json_;
    loudness loud_;
    std::string key_;
};

} // namespace amuxctl

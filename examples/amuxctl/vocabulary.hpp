// SPDX-License-Identifier: BSL-1.0
// The words that amuxctl knows, and what its help says of them.
#pragma once

#include "words.hpp"

#include <string>
#include <string_view>

namespace amuxctl {

struct option {
    std::string_view name;
    std::string_view value; // in the help; empty: it takes none
    std::string_view verbs; // in which it is known; empty: in all
    const char* help;
};

struct verb_text {
    verb what;
    std::string_view name;
    const char* usage;
    const char* help;
};

/// Null when there is none.
const option* find_option(std::string_view name);
const verb_text* find_verb(std::string_view name);

bool applies(const option& o, std::string_view verb_name);

/// All of the help, or that of one command.
std::string help_text(std::string_view about);

} // namespace amuxctl

// SPDX-License-Identifier: BSL-1.0
#include "vocabulary.hpp"

#include "exit_code.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace amuxctl {

namespace {

constexpr option options[] = {
    {"--url", "URL", "", "the Redis server; else AMUX_URL, else redis://127.0.0.1:6379"},
    {"--json", "", "", "objects of JSON, one a line; of hold and try on the standard error"},
    {"--quiet", "", "hold try", "-q, no message when the key is busy, no warnings"},
    {"--verbose", "", "hold try", "-v, tell when the lease begins and ends"},
    {"--wait", "DURATION", "hold", "how long to wait for the key; forever; 0: one attempt (30s)"},
    {"--ttl", "DURATION", "hold try", "the lease's time to live, at least 1s (30s)"},
    {"--stop-margin", "DURATION", "hold try",
     "SIGTERM this long before the lease runs out (a fifth of the ttl)"},
    {"--kill-after", "DURATION", "hold try",
     "SIGKILL this long after the SIGTERM (half of the stop margin)"},
    {"--metadata", "TEXT", "hold try", "kept with the lease, for people (HOST:PID)"},
    {"--busy-code", "NUMBER", "hold try", "the exit code when the key is busy (121)"},
    {"--force", "", "release", "release whoever holds the key"},
    {"--help", "", "", "this text; behind a command, that of the command"},
    {"--version", "", "", "the version"},
};

constexpr verb_text verbs[] = {
    {verb::hold, "hold", "hold [OPTION...] KEY [--] COMMAND...",
     "Waits for the key, runs the command under its lease, renews that, and releases it when the\n"
     "command has ended. Ends the command when the lease is lost. Gives the command's exit code.\n"
     "The command finds AMUX_KEY, AMUX_TOKEN, AMUX_TOKENS and AMUX_FENCE in its environment.\n"},
    {verb::attempt, "try", "try [OPTION...] KEY [--] COMMAND...",
     "The same, but does not wait: ends with 121 when somebody else has the key.\n"},
    {verb::inspect, "inspect", "inspect [OPTION...] KEY",
     "Shows who holds a key: token, fence, remaining time, metadata. Ends with 1 when it is "
     "free.\n"},
    {verb::list, "list", "list [OPTION...] [PREFIX]",
     "Shows all keys that are held, or those that begin with PREFIX.\n"},
    {verb::release, "release", "release [OPTION...] KEY TOKEN\n       amuxctl release --force KEY",
     "Frees a key, if the token holds it; with --force whoever holds it. Its command, if there is\n"
     "one, is ended when its next renewal fails. Until then two may be at work.\n"},
    {verb::watch, "watch", "watch [OPTION...] KEY",
     "Prints a line whenever the key is acquired or released, until it is interrupted.\n"},
};

std::string option_lines(std::string_view verb_name)
{
    std::string out;
    for (const option& o : options) {
        if (!verb_name.empty() && !applies(o, verb_name))
            continue;
        std::string head =
            std::string{o.name} + (o.value.empty() ? "" : " ") + std::string{o.value};
        head.resize((std::max)(head.size() + 1, std::size_t{24}), ' ');
        out += "  " + head + o.help + "\n";
    }
    return out;
}

std::string exit_lines()
{
    std::string out;
    for (const exit_row& row : exit_table) {
        std::string head = row.shown;
        head.resize(8, ' ');
        out += "  " + head + row.meaning + "\n";
    }
    return out;
}

} // namespace

const option* find_option(std::string_view name)
{
    const auto* const found = std::find_if(std::begin(options), std::end(options),
                                           [&](const option& o) { return o.name == name; });
    return found == std::end(options) ? nullptr : found;
}

const verb_text* find_verb(std::string_view name)
{
    const auto* const found = std::find_if(std::begin(verbs), std::end(verbs),
                                           [&](const verb_text& v) { return v.name == name; });
    return found == std::end(verbs) ? nullptr : found;
}

bool applies(const option& o, std::string_view verb_name)
{
    for (std::string_view left = o.verbs; !left.empty();) {
        const std::string_view word = left.substr(0, left.find(' '));
        if (word == verb_name)
            return true;
        left.remove_prefix((std::min)(left.size(), word.size() + 1));
    }
    return o.verbs.empty();
}

std::string help_text(std::string_view about)
{
    std::string out;
    if (const verb_text* const v = find_verb(about)) {
        out += std::string{"usage: amuxctl "} + v->usage + "\n\n" + v->help + "\nOptions:\n";
        return out + option_lines(v->name) + "\nExit codes:\n" + exit_lines();
    }
    out =
        "Leases in Redis, for people and for cron: runs commands under a lease, shows who holds "
        "what.\n\n";
    for (const verb_text& v : verbs)
        out += std::string{out.ends_with("\n\n") ? "usage: amuxctl " : "       amuxctl "} +
               v.usage + "\n";
    return out + "       amuxctl COMMAND --help\n\nOptions:\n" + option_lines("") +
           "\nExit codes:\n" + exit_lines();
}

} // namespace amuxctl

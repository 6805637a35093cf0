// SPDX-License-Identifier: BSL-1.0
// The one table of exit codes: the help prints it, the code returns it, and a test holds the page against it.
#pragma once

namespace amuxctl {

/// What amuxctl says by its exit code, when it is not the command's.
enum class exit_code : int {
    done = 0,
    no = 1,
    usage = 2,
    store = 120,
    busy = 121,
    lost = 122,
    failed = 125,
    cannot_execute = 126,
    not_found = 127,
    by_signal = 128,
};

struct exit_row {
    exit_code code;
    const char* shown;
    const char* meaning;
};

inline constexpr exit_row exit_table[] = {
    {exit_code::done, "0", "done; hold, try: the command has ended with 0"},
    {exit_code::no, "1", "inspect: the key is free; release: the token does not hold it"},
    {exit_code::usage, "2", "bad words on the command line; nothing was done"},
    {exit_code::store, "120", "the server cannot be reached, refuses, or does not answer"},
    {exit_code::busy, "121", "somebody else has the key (--busy-code sets another number)"},
    {exit_code::lost, "122",
     "the lease was lost: the command was ended, or not begun, or had ended before that was known"},
    {exit_code::failed, "125", "amuxctl itself could not go on"},
    {exit_code::cannot_execute, "126", "the command was found, but cannot be executed"},
    {exit_code::not_found, "127", "there is no such command"},
    {exit_code::by_signal, "128+N",
     "signal N ended the command, or amuxctl before the command began"},
};

} // namespace amuxctl

// SPDX-License-Identifier: BSL-1.0
// What the two processes of `amuxctl hold` have in common.
//
// THE PROCESSES
//
//     who called ---> front ---> command ---> what it starts      (a process group of its own)
//                         |
//                         +----> keeper                           (a session of its own)
//
//     front and keeper share the bond: a page of memory, and a socket
//
// front    The process that the caller knows. One thread. Starts the keeper first and the command last, is the parent of
//          both, and the one to whom what the command leaves behind falls (subreaper). Passes signals on, does what a shell
//          does for a job that has a terminal, ends the command, gives its exit code.
// keeper   Has the lease: waits for it, renews it, releases it. All threads, and the connections to the server, are its.
// command  In a process group of its own. Dies with the front (PR_SET_PDEATHSIG).
//
// Each of the two looks at the clock by itself, and may end the command: so it does not matter which of them is stopped.
// What `page::until` says is the only thing that either believes.
//
// WHO DOES WHAT, WHEN
//
//     state       begins when                        front                            keeper
//     waiting     start                              signals: tells `cancel`          asks for the lease
//     granted     note `granted`                     starts the command, unless       renews; releases, if nothing was
//                                                    it is too late                   started by the first term_due
//     running     page::command is set               passes signals on                renews
//     ending      note `lost`, term_due, no keeper,  SIGTERM; at kill_due SIGKILL     at backstop_due SIGKILL
//                 or the command has left something
//     ended       nothing of it runs                 note `release`                   releases, note `released`, ends
//
//     end of ...  is seen by                         and then
//     front       the keeper: the socket ends        SIGTERM to what is left of the command, at kill_due SIGKILL; the lease is
//                                                    renewed until nothing is left, then released
//     keeper      the front: the socket ends         the command is ended as if the lease were lost, then the front
//                                                    releases by the token
//     both        the kernel                         SIGKILL to the command; the key is free when its time is up
#pragma once

#include "ending.hpp"

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace amuxctl {

/// Shared memory: what must be known also by who was stopped for long, when messages would have piled up.
struct page {
    static constexpr pid_t none_any_more = -1; // of `command`: it is too late to start one

    pid_t front = 0; // its process
    // The end of belief, by amux::clock; 0: no lease yet. The keeper's.
    std::atomic<std::int64_t> until{0};
    // The command's process and group, by itself before it begins: whoever is first has decided.
    std::atomic<pid_t> command{0};
    // Why the command could not begin (errno), or 0.
    std::atomic<int> trouble{0};
    // A note of trouble waits to be read.
    std::atomic<bool> told{false};
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

struct note {
    enum class kind : unsigned char {
        granted, // keeper: there is a lease
        refused, // keeper: there will be none
        trouble, // keeper: of the store; it goes on
        lost, // keeper: the lease is over
        released, // keeper: the last one
        cancel, // front: wait no longer
        release, // front: the command has ended
    };
    kind what = kind::trouble;
    bool yes = false; // released: it was ours until then; granted: there is a fence
    int code = 0; // refused: the exit code
    std::uint64_t fence = 0;
    char token[64] = "";
    char text[1024] = "";
};

/// For the last note of the keeper: twice the limit of a request, and some.
inline constexpr duration keeper_limit = std::chrono::seconds{6};

/// One end of the bond.
class bond {
public:
    /// Before the fork. Throws: `std::system_error`.
    bond();
    bond(const bond&) = delete;
    bond& operator=(const bond&) = delete;
    ~bond();

    /// After the fork, in each process.
    void be_front();
    void be_keeper();

    page& shared() const { return *page_; }
    int fd() const { return mine_; }

    time_point until() const { return time_point{duration{page_->until.load()}}; }

    /// Never blocks; false when the other is gone, or has read nothing for long.
    bool send(note::kind what, std::string_view text = {}, int code = 0) const;
    bool send(const note& n) const;
    /// A note that is there.
    std::optional<note> take();
    /// The other has ended.
    bool broken() const { return broken_; }

private:
    page* page_;
    int ends_[2];
    int mine_ = -1;
    bool broken_ = false;
};

/// Cut to what fits.
template <std::size_t Size>
void copy_text(char (&to)[Size], std::string_view text)
{
    to[text.copy(to, Size - 1)] = '\0';
}

} // namespace amuxctl

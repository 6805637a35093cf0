// SPDX-License-Identifier: BSL-1.0
// The keeper, as the front sees it.
#pragma once

#include "bond.hpp"
#include "command.hpp"
#include "report.hpp"
#include "wake.hpp"
#include "words.hpp"

#include <optional>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace amuxctl {

class partner {
public:
    /// Throws: `std::system_error`.
    partner(const request& r, const reporter& say, signals& s) : r_{r}, say_{say}, signals_{s} {}
    partner(const partner&) = delete;
    partner& operator=(const partner&) = delete;

    /// Starts it; it does not return there. `others` are our children that are not the command's; it becomes one.
    ///
    /// Requires: a process with one thread. Throws: `std::system_error`.
    void start(std::vector<pid_t>& others);

    const amuxctl::bond& bond() const { return bond_; }
    std::optional<note> take() { return bond_.take(); }
    /// Sleeps until a signal, a note, or `when` comes.
    void wait_until(time_point when) const;

    /// Has the lease released, or releases it by its token when the keeper is dead or stopped.
    ///
    /// Returns: false when the lease was somebody else's, or nobody's.
    bool give_back(std::string_view token);
    /// That the store is out of reach was said: a release that fails says it no more.
    void expect_no_store() { expects_store_ = false; }
    /// However it fares.
    void end();

private:
    bool release_ourselves(std::string_view token);
    bool released(bool ours, std::string_view trouble) const;

    const request& r_;
    const reporter& say_;
    signals& signals_;
    amuxctl::bond bond_;
    alarm_clock alarm_;
    pid_t id_ = 0;
    bool expects_store_ = true;
};

} // namespace amuxctl

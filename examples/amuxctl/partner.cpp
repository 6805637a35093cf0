// SPDX-License-Identifier: BSL-1.0
#include "partner.hpp"

#include "keeper.hpp"
#include "store.hpp"
#include "streams.hpp"

#include <amux/detail/lease_terms.hpp>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <system_error>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace amuxctl {

void partner::start(std::vector<pid_t>& others)
{
    std::fflush(nullptr);
    id_ = fork();
    if (id_ < 0)
        throw std::system_error{errno, std::generic_category(), "no process for the keeper"};
    if (id_ != 0) {
        others.push_back(id_);
        bond_.be_front();
        return;
    }
    setsid(); // nothing that is typed, and no signal to our group, reaches it
    prctl(PR_SET_NAME, "amux-keeper"); // so that who kills all amuxctl by name leaves it
    let_go_of_streams();
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, nullptr);
    bond_.be_keeper();
    close_descriptors([this](int fd) { return fd != bond_.fd(); });
    others.push_back(getpid());
    keep(r_, bond_, others);
}

void partner::wait_until(time_point when) const
{
    alarm_.set(when);
    pollfd fds[] = {{signals_.fd(), POLLIN, 0}, {alarm_.fd(), POLLIN, 0}, {bond_.fd(), POLLIN, 0}};
    poll(fds, bond_.broken() ? 2 : 3, -1);
}

bool partner::give_back(std::string_view token)
{
    bond_.send(note::kind::release);
    const time_point limit = amux::clock::now() + keeper_limit;
    while (!bond_.broken() && amux::clock::now() < limit) {
        while (const auto n = bond_.take()) {
            if (n->what == note::kind::released)
                return released(n->yes, n->text);
        }
        if (!bond_.broken())
            wait_until(limit);
        while (signals_.take() != 0) { // nobody is there any more to whom they could be passed on
        }
    }
    return release_ourselves(token);
}

/// The keeper must not renew what is released here.
bool partner::release_ourselves(std::string_view token)
{
    end();
    try {
        return released(release_token(r_, token), "");
    } catch (const std::exception&) {
        return released(true, amux::detail::what_of(std::current_exception()));
    }
}

bool partner::released(bool ours, std::string_view trouble) const
{
    if (!trouble.empty() && expects_store_)
        say_.error("unreleased",
                   "not released, so taken until its time is up: " + std::string{trouble});
    else if (ours && trouble.empty())
        say_.detail("released", "released");
    return ours;
}

void partner::end()
{
    if (id_ == 0)
        return;
    kill(id_, SIGKILL);
    waitpid(id_, nullptr, 0);
    id_ = 0;
}

} // namespace amuxctl

// SPDX-License-Identifier: BSL-1.0
#include "bond.hpp"

#include <cerrno>
#include <new>
#include <system_error>

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

namespace amuxctl {

bond::bond()
{
    void* const memory =
        mmap(nullptr, sizeof(page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    // Packets: a note arrives whole or not at all.
    if (memory == MAP_FAILED || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_) != 0)
        throw std::system_error{errno, std::generic_category(), "no shared memory, or no socket"};
    page_ = new (memory) page;
    page_->front = getpid();
}

bond::~bond()
{
    if (mine_ >= 0)
        close(mine_);
}

void bond::be_front()
{
    close(ends_[1]);
    mine_ = ends_[0];
}

void bond::be_keeper()
{
    close(ends_[0]);
    mine_ = ends_[1];
}

bool bond::send(note::kind what, std::string_view text, int code) const
{
    note n;
    n.what = what;
    n.code = code;
    copy_text(n.text, text);
    return send(n);
}

bool bond::send(const note& n) const
{
    return ::send(mine_, &n, sizeof n, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof n;
}

std::optional<note> bond::take()
{
    note n;
    const auto size = recv(mine_, &n, sizeof n, MSG_DONTWAIT);
    if (size == sizeof n)
        return n;
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR))
        broken_ = true;
    return std::nullopt;
}

} // namespace amuxctl

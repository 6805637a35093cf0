// SPDX-License-Identifier: BSL-1.0
// What ends the keeper's wait for the lease.
#pragma once

#include "bond.hpp"
#include "wake.hpp"

#include <stop_token>
#include <thread>

#include <poll.h>

namespace amuxctl {

/// While the lease is waited for, whatever the front says, and its end, means: no longer. It is not read here.
class cancel_listener {
public:
    explicit cancel_listener(const bond& front) : thread_{[this, &front] { listen(front); }} {}
    cancel_listener(const cancel_listener&) = delete;
    cancel_listener& operator=(const cancel_listener&) = delete;
    ~cancel_listener()
    {
        done_();
        thread_.join();
    }

    std::stop_source stop;

private:
    void listen(const bond& front)
    {
        pollfd fds[] = {{front.fd(), POLLIN, 0}, {done_.fd(), POLLIN, 0}};
        while (poll(fds, 2, -1) < 0) {
        }
        if (fds[1].revents == 0)
            stop.request_stop();
    }

    wake done_;
    std::thread thread_;
};

} // namespace amuxctl

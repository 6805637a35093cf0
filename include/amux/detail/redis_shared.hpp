// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/redis_settings.hpp>
#include <amux/detail/redis_tls.hpp>
#include <amux/detail/redis_waker.hpp>
#include <amux/detail/suspension.hpp>
#include <amux/detail/token.hpp>

#include <memory>
#include <mutex>
#include <utility>

namespace amux::detail {

/// What the parts of a Redis backend share.
///
/// One mutex guards everything in all of them; what is the I/O thread's alone says so. Under it nothing blocks, and no
/// code of the user's runs: a coroutine that is done is posted to its scheduler, or put into `finished`.
struct redis_shared {
    explicit redis_shared(redis_settings s) : settings{std::move(s)} {}

    const redis_settings settings;
    const redis_tls_context tls{settings};
    std::mutex mutex;
    std::shared_ptr<redis_waker> waker; // from the first operation on
    jitter random;
    resumption_list finished; // have no scheduler: the I/O thread resumes them, without the mutex
    bool closed = false; // the backend is gone; the I/O thread ends everything
};

} // namespace amux::detail

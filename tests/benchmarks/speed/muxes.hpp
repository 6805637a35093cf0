// SPDX-License-Identifier: BSL-1.0
// Without this file a mux that threads have fought for could not be measured by one thread.
#pragma once

#include <amux/asyncmux.hpp>

#include <cstdint>

namespace bench {

/// Has as many shards as a mux ever gets, from its first locks on.
template <class Key, class Policy = amux::multi_threaded>
class grown_asyncmux {
    /// Pretends to be contended while it is told so.
    class pretender : public Policy::mutex {
    public:
        static inline bool pretends = false;
        bool try_lock() noexcept { return !pretends && Policy::mutex::try_lock(); }
    };
    struct threading : Policy {
        using mutex = pretender;
    };

public:
    using mux = amux::asyncmux<Key, threading>;

    explicit grown_asyncmux(amux::asyncmux_options options = {}) : mux_{options}
    {
        pretender::pretends = true;
        for (unsigned i = 0; i != 100; ++i)
            static_cast<void>(mux_.try_lock(Key{}).owns_lock());
        pretender::pretends = false;
    }
    mux& get() noexcept { return mux_; }

private:
    mux mux_;
};

} // namespace bench

// SPDX-License-Identifier: BSL-1.0
// Needs hiredis's headers and library, which only amux::redis brings. There is no server on port 1.
#include <amux/amux.hpp>
#include <amux/redis_backend.hpp>

#include <chrono>
#include <string_view>

namespace {

amux::task<bool> ask(amux::redis_backend& store)
{
    try {
        const auto holder = co_await store.get("key");
        co_return holder.has_value();
    } catch (const amux::backend_error& e) {
        co_return std::string_view{e.what()}.find("127.0.0.1:1") != std::string_view::npos;
    }
}

} // namespace

int main()
{
    using namespace std::chrono_literals;
    amux::redis_backend store{amux::redis_options{.port = 1, .command_timeout = 100ms}};
    amux::event_loop loop;
    return loop.block_on(ask(store)) ? 0 : 1;
}

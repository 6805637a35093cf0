// SPDX-License-Identifier: BSL-1.0
// Needs OpenSSL, which only amux::redis_tls brings. A file that is not there is refused before anything is connected.
#include <amux/redis_backend.hpp>

#include <stdexcept>
#include <string_view>

int main()
{
    const amux::redis_backend trusting{"rediss://127.0.0.1:1"};
    try {
        const amux::redis_backend store{"rediss://127.0.0.1:1?ca_file=/no/such/file"};
    } catch (const std::invalid_argument& e) {
        return std::string_view{e.what()}.find("CA file") != std::string_view::npos ? 0 : 1;
    }
    return 1;
}

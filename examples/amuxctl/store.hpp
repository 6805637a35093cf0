// SPDX-License-Identifier: BSL-1.0
// What is asked of the server once: all but `hold` and `try`.
#pragma once

#include "exit_code.hpp"
#include "words.hpp"

#include <string>
#include <string_view>

namespace amuxctl {

/// Throws: `usage_error` for a URL that cannot be; it names the part and repeats none.
void require_url(const std::string& url);

/// `url`, with time limits of a request that suit the ttl, if it has none of its own.
std::string url_for(const request& r);

exit_code inspect(const request& r);
exit_code list(const request& r);
exit_code release(const request& r);
exit_code watch(const request& r);

/// "held by METADATA, its lease lasts 12.3 s", or that it is free by now. Throws: `amux::backend_error`.
std::string holder_of(const request& r);

/// Throws: `amux::backend_error`.
bool release_token(const request& r, std::string_view token);

} // namespace amuxctl
